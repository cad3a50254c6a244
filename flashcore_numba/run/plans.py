"""Plans: what a public call keeps of its work on a GPU, so that the next call like it has only to launch.

Checking the arguments, choosing a stage and packing what its kernels take depends on how the arrays are laid
out, not on where they lie. The first call of a layout does all of it and keeps the launches; the calls after
it put in the addresses. Plans serve CuPy arrays and PyTorch tensors whose rows start at multiples of 16
bytes, and stages in CUDA C; all other calls go the long way each time. Small outputs that the caller does
not give are allocated ahead, while the GPU works on the call before; tensors on the default stream alone.

A plan holds compiled kernels: it does not see that a file has been edited since. `forget()` after an edit.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from cuda_reference.driver import LEGACY, PER_THREAD, Allowed, Handle
from flashcore_numba.core.arrays import Adopted, Outline, share_memory
from flashcore_numba.core.problem import ALIGNMENT
from flashcore_numba.run import workspace

if TYPE_CHECKING:
    from cuda_reference.packed import PackedLaunches
    from flashcore_numba.core.executor import Executor


MOST = 512  # plans; a program that never repeats a layout starts over after so many

ALIGNED = 256  # bytes: where scratch arrays may begin
SPARE_BYTES, MOST_SPARES = 1 << 20, 8  # an output is allocated ahead where microseconds count
MOST_APART = 64  # sets of addresses that a plan remembers not to overlap
WORD = 4  # bytes of a number that stands by itself: an LSE, a length

Addresses = tuple[int, ...]
Outputs = tuple[tuple, Addresses]  # and where they are
Readers = tuple[Any, Any]
_readers: dict[type, Readers] = {}
_plans: "dict[tuple, Plan]" = {}
UNREAD_KIND: Readers = (None, None)
UNREAD: "tuple[None, Addresses]" = (None, ())
NOT_SERVED: "tuple[None, Addresses, None]" = (None, (), None)
# Outputs for the next call of a plan on a stream, allocated while the GPU was busy with the last one.
_spares: "dict[tuple[Plan, int, bool], Outputs | None]" = {}


def forget() -> None:
    """Drop all plans, so that the next calls read the kernels' files again."""
    _plans.clear()
    _spares.clear()
    workspace.forget()


def find(
    q: Any, k: Any, v: Any, target: Any, options: tuple, others: tuple = (), history: bool = False
) -> "tuple[tuple | None, Addresses, Plan | None]":
    """What a call's plan depends on, where its arrays are, and the plan that an earlier call left, if any.

    target: the first output, None where the caller gives none. options: all arguments that are no arrays, or
    that stand for what such an argument contains. others: all other arrays, None for one that is absent.
    history: whether tensors may require gradients, of which the caller takes care. The first result is None
    for a call that no plan can serve. The addresses are those of q, k, v, target and others, 0 for an absent
    one.
    """
    kind = type(q)
    read, read_more = _readers.get(kind) or _reader(kind)
    if read is None or type(k) is not kind or type(v) is not kind:
        return NOT_SERVED
    if target is not None and type(target) is not kind:
        return NOT_SERVED
    layout, addresses = read(q, k, v, target, history)
    if layout is None or (addresses[0] | addresses[1] | addresses[2] | addresses[3]) % ALIGNMENT:
        return NOT_SERVED
    if others:
        more, places = read_more(kind, others, history)
        if more is None:
            return NOT_SERVED
        layout, addresses = (layout, more), addresses + places
    # True == 1 and 1 == 1.0, but only one of them may be a good argument.
    key = (kind, layout, options, *map(type, options))
    try:
        return key, addresses, _plans.get(key)
    except Exception:  # an argument without a hash, or with a broken one, is a bad one: the long way says so
        return NOT_SERVED


def keep(key: tuple | None, plan: "Plan | None") -> None:
    """Remember the plan of a call; without a key or a plan nothing."""
    if plan is None or key is None:
        return
    if len(_plans) >= MOST:
        _plans.clear()
    _plans[key] = plan


# What follows reads element types, devices, shapes and strides, and addresses; no layout where no plan serves
# one of the arrays. A type that no stage serves has a layout and never a plan. A loop over the arrays would
# take a microsecond longer.
def _cupy(q: Any, k: Any, v: Any, out: Any, history: bool) -> "tuple[tuple | None, Addresses]":
    dtype, stored = q.dtype, k.dtype
    if v.dtype is not stored:
        return UNREAD
    a, b, c = q.data, k.data, v.data
    devices = (a.device_id, b.device_id, c.device_id)
    layout = (dtype, stored, devices, q.shape, q.strides, k.shape, k.strides, v.shape, v.strides)
    if out is None:
        return layout, (a.ptr, b.ptr, c.ptr, 0)
    d = out.data
    return (layout, out.dtype, d.device_id, out.shape, out.strides), (a.ptr, b.ptr, c.ptr, d.ptr)


def _torch(q: Any, k: Any, v: Any, out: Any, history: bool) -> "tuple[tuple | None, Addresses]":
    dtype, stored = q.dtype, k.dtype
    if v.dtype is not stored:
        return UNREAD
    if not (q.is_cuda and k.is_cuda and v.is_cuda):
        return UNREAD
    if not history and (q.requires_grad or k.requires_grad or v.requires_grad):
        return UNREAD
    if q.is_neg() or k.is_neg() or v.is_neg():
        return UNREAD
    try:
        devices = (q.get_device(), k.get_device(), v.get_device())
        layout = (dtype, stored, devices, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride())
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if out is None:
            return layout, (q_at, k_at, v_at, 0)
        if not out.is_cuda or out.requires_grad or out.is_neg():
            return UNREAD
        more = (out.dtype, out.get_device(), out.shape, out.stride())
        return (layout, *more), (q_at, k_at, v_at, out.data_ptr())
    except RuntimeError:  # a sparse tensor, which has no strides
        return UNREAD


# The same of arrays of any shape and type. Those with numbers of four bytes or more are no rows of
# elements and may begin at any number, unless they are [B, H, S, D].
def _more_of_cupy(kind: Any, arrays: tuple, history: bool) -> "tuple[tuple | None, Addresses]":
    layout: list[Any] = []
    addresses, rows = [], 0
    for x in arrays:
        if x is None:
            layout.append(None)
            addresses.append(0)
            continue
        if type(x) is not kind:
            return UNREAD
        data = x.data
        layout += (x.dtype, data.device_id, x.shape, x.strides)
        addresses.append(data.ptr)
        if x.itemsize < WORD or len(x.shape) == 4:
            rows |= data.ptr
        elif data.ptr % x.itemsize:
            return UNREAD
    return UNREAD if rows % ALIGNMENT else (tuple(layout), tuple(addresses))


def _more_of_torch(kind: Any, arrays: tuple, history: bool) -> "tuple[tuple | None, Addresses]":
    layout: list[Any] = []
    addresses = []
    try:
        for x in arrays:
            if x is None:
                layout.append(None)
                addresses.append(0)
                continue
            if type(x) is not kind or not x.is_cuda or x.is_neg() or (not history and x.requires_grad):
                return UNREAD
            place = x.data_ptr()
            layout += (x.dtype, x.get_device(), x.shape, x.stride())
            addresses.append(place)
            if place % ALIGNMENT:
                size = x.element_size()
                if size < WORD or len(x.shape) == 4 or place % size:
                    return UNREAD
    except RuntimeError:
        return UNREAD
    return tuple(layout), tuple(addresses)


def _reader(kind: type) -> "Readers":
    """What reads arrays of this type; a subclass may mean something else, so none reads it."""
    name = kind.__module__, kind.__qualname__
    if name == ("cupy", "ndarray"):
        _readers[kind] = _cupy, _more_of_cupy
    elif name == ("torch", "Tensor"):
        _readers[kind] = _torch, _more_of_torch
    return _readers.get(kind, UNREAD_KIND)


class Apart(NamedTuple):
    """Two arrays that must not overlap: the places of their addresses, their bytes from the first element to
    the last, and their outlines, for rows of one between those of the other.
    """

    first: int
    first_size: int
    second: int
    second_size: int
    outlines: tuple[Outline, Outline]

    def overlap(self, addresses: Addresses) -> bool:
        """Whether they do at these addresses."""
        a, b = addresses[self.first], addresses[self.second]
        if a >= b + self.second_size or b >= a + self.first_size:
            return False
        first, second = self.outlines
        return share_memory(first.at(a), second.at(b))


class Made(NamedTuple):
    """An output that the caller did not give. steps: a tensor's strides, in elements. like: which of q, k and
    v is C-contiguous and of its shape and type; None where none is.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: Any  # of the caller's kind
    size: int  # bytes
    like: int | None


class Plan:
    """The launches of one stage for arrays of one layout, kind and device.

    kind: the type of the arrays, CuPy's or PyTorch's. made: the outputs that the caller did not give; given:
    whether there are others. apart: what the caller's outputs must not overlap. scratch: bytes of each array
    of scratch memory among the arguments of the launches. counters: how many follow.
    """

    def __init__(
        self,
        launches: "PackedLaunches",
        kind: type,
        device: int,
        made: list[Made],
        given: bool,
        apart: list[Apart],
        scratch: list[int],
        counters: int,
    ) -> None:
        import cupy

        self._launches, self._device, self._made, self._given = launches, device, made, given
        rooms = [-(-size // ALIGNED) * ALIGNED for size in scratch]
        self._offsets = [sum(rooms[:i]) for i in range(len(rooms))]
        self._scratch_bytes, self._counters = sum(rooms), counters
        self._cupy, self._current_device = cupy, cupy.cuda.runtime.getDevice
        self._is_capturing = cupy.cuda.runtime.streamIsCapturing
        self._launch = self._with_scratch if scratch or counters else launches
        self._apart, self._found_apart = apart, set[Addresses]()
        self._start = self._on_cupy
        if kind.__module__ == "torch":
            self._torch, self._start = sys.modules["torch"], self._on_torch
            self._torchs_handle = _handle_of(self._torch)
        self._ahead = bool(made) and all(x.size <= SPARE_BYTES for x in made)

    def run(self, addresses: Addresses, like: tuple, given: tuple) -> tuple | None:
        """The outputs in their order; None, and nothing is launched, where those that the caller gave may
        overlap what they must not. like: q, k and v. given: the outputs, None for each that is to be made.
        """
        if self._apart and addresses not in self._found_apart:
            if any(each.overlap(addresses) for each in self._apart):
                return None
            if len(self._found_apart) >= MOST_APART:
                self._found_apart = set()
            self._found_apart.add(addresses)
        if self._current_device() == self._device:
            made = self._start(addresses, like)
        else:
            with self._cupy.cuda.Device(self._device):
                made = self._start(addresses, like)
        if not self._given:
            return made
        if not self._made:
            return given
        rest = iter(made)
        return tuple([next(rest, None) if each is None else each for each in given])

    def _on_cupy(self, addresses: Addresses, like: tuple) -> tuple:
        stream = self._cupy.cuda.get_current_stream().ptr
        captured = stream not in LEGACY and self._is_capturing(stream)
        if not self._made:
            self._launch(addresses, stream, captured)
            return ()
        # Put aside only where one stream has this handle: PER_THREAD is another one in each thread.
        ahead = self._ahead and not captured and stream != PER_THREAD
        spare = self, stream, False
        made, places = (ahead and _spares.pop(spare, None)) or self._arrays()
        if captured:  # a graph keeps what is returned too
            workspace.keep(stream, made)
        self._launch(addresses + places, stream, captured)
        if ahead:
            _put_aside(spare, self._arrays())
        return made

    def _arrays(self) -> "Outputs":
        made: tuple = ()
        places: Addresses = ()
        with Allowed():
            for shape, _, dtype, *_ in self._made:
                made += (x := self._cupy.ndarray(shape, dtype),)
                places += (x.data.ptr,)
        return made, places

    def _on_torch(self, addresses: Addresses, like: tuple) -> tuple:
        stream = self._torchs_handle(self._device)
        captured = stream not in LEGACY and self._is_capturing(stream)
        if not self._made:
            self._launch(addresses, stream, captured)
            return ()
        # On another stream memory may come from a pool whose owner counts what is alive in it: PyTorch's own
        # CUDA graphs run a function there once before they capture it.
        ahead = self._ahead and stream in LEGACY
        spare = self, stream, self._torch.is_inference_mode_enabled()
        made, places = (ahead and _spares.pop(spare, None)) or self._tensors(like)
        self._launch(addresses + places, stream, captured)
        if ahead:
            _put_aside(spare, self._tensors(like))
        return made

    def _tensors(self, like: tuple) -> "Outputs":
        """C-contiguous memory for the outputs."""
        made: tuple = ()
        places: Addresses = ()
        for shape, steps, dtype, _, i in self._made:
            if i is not None:
                x = self._torch.empty_like(like[i])  # half the time of `empty`
            else:  # three quarters of it
                x = self._torch.empty_strided(shape, steps, dtype=dtype, device=self._device)
            made += (x,)
            places += (x.data_ptr(),)
        return made, places

    def _with_scratch(self, addresses: Addresses, stream: int, captured: bool) -> None:
        piece = workspace.take(self._device, stream, self._scratch_bytes, captured, self._counters)
        places = [piece.at + offset for offset in self._offsets]
        if self._counters:
            places.append(piece.counter)
        self._launches((*addresses, *places), stream, captured)
        workspace.give_back(piece)


def _put_aside(key: "tuple[Plan, int, bool]", outputs: Outputs) -> None:
    _spares[key] = outputs
    if len(_spares) > MOST_SPARES:
        for oldest in list(_spares)[:-MOST_SPARES]:
            _spares.pop(oldest, None)


class Recorder:
    """An executor that notes what a stage asks of `Gpu` and passes it on.

    An array that stands for two arguments would leave open which of them a launch meant: give the stage
    `recorder.problem`, which has views of its own.
    """

    def __init__(self, executor: "Executor", problem: Any) -> None:
        self._executor = executor
        self._notes: list[tuple] = []
        self._scratch: list[Any] = []
        self._counter: Any = None
        self.problem = problem.on({name: x.view() for name, x in problem.inputs.items()})

    @property
    def sm_count(self) -> int:
        return self._executor.sm_count

    @property
    def shared_limit(self) -> int:
        return self._executor.shared_limit

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self._scratch.append(self._executor.empty(shape, dtype))
        return self._scratch[-1]

    def counter(self, count: int = 1) -> Any:
        if self._counter is None:
            self._counter = self._executor.counter(count)
        return self._counter

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self._executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
        self._notes.append((kernel, grid, block, args, shared_bytes))

    def plan(
        self,
        order: Sequence[str],
        inputs: Mapping[str, Adopted],
        outputs: Mapping[str, Adopted],
        given: Collection[str],
        in_place: Mapping[str, str],
    ) -> Plan | None:
        """The plan of what was launched; None where an argument is neither an array of the call nor a number.

        order: the names of the arrays whose addresses `find` gives, q, k and v first. outputs: what the stage
        was given to write, those whose names are in `given` by the caller; they must not overlap each other
        or `inputs`, other than the input that `in_place` names.
        """
        from cuda_reference import Source
        from cuda_reference.gpu import load
        from cuda_reference.packed import PackedLaunches

        if not all(isinstance(kernel, Source) for kernel, *_ in self._notes):
            return None
        views = {name: each.view for name, each in outputs.items()}
        known = self.problem.inputs | {name: views[name] for name in given}
        made = {name: each for name, each in outputs.items() if name not in given}
        counters = () if self._counter is None else (self._counter,)
        arrays = (*map(known.get, order), *map(views.get, made), *self._scratch, *counters)
        launches = [(load(kernel), *rest) for kernel, *rest in self._notes]
        try:
            packed = PackedLaunches(launches, arrays)
        except ValueError:
            return None
        like = [inputs[name].source for name in order[:3]]
        return Plan(
            packed,
            type(like[0]),
            self.problem.q.device.id,
            [_made(each, like) for each in made.values()],
            bool(given),
            [
                Apart(
                    *(order.index(a), _span(known[a]), order.index(b), _span(known[b])),
                    (Outline(known[a]), Outline(known[b])),
                )
                for a in given
                for b in (*inputs, *given)
                if b not in (a, in_place.get(a))
            ],
            list(map(_bytes, self._scratch)),
            sum(each.nbytes // 4 for each in counters),
        )


def _made(output: Adopted, others: Sequence[Any]) -> Made:
    x = output.source
    like, steps = None, ()
    if output.kind == "PyTorch":
        steps = tuple(x.stride())
        alike = (y.is_contiguous() and (y.shape, y.dtype) == (x.shape, x.dtype) for y in others)
        like = next((i for i, found in enumerate(alike) if found), None)
    return Made(tuple(x.shape), steps, x.dtype, _bytes(output.view), like)


def _bytes(array: Any) -> int:
    return prod(array.shape) * array.dtype.itemsize


def _span(array: Any) -> int:
    """Bytes from the first element of an array to the end of its last one."""
    steps = zip(array.shape, array.strides, strict=True)
    return sum((size - 1) * step for size, step in steps) + array.dtype.itemsize


def _handle_of(torch: Any) -> Callable[[int], int]:
    """A function that gives PyTorch's current stream of a device as an address."""
    try:  # what the code that PyTorch generates itself calls: no Stream object is made
        return torch._C._cuda_getCurrentRawStream
    except AttributeError:
        return lambda device: torch.cuda.current_stream(device).cuda_stream


def torchs_stream(device: int) -> AbstractContextManager:
    """PyTorch's current stream of a device as a CuPy stream."""
    import cupy

    return cupy.cuda.Stream.from_external(Handle(_handle_of(sys.modules["torch"])(device)))
