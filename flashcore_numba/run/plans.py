"""Plans: what `attention()` keeps of a call on a GPU, so that the next call like it has only to launch.

Checking the arguments, choosing a stage and packing what its kernels take depends on how the arrays are laid
out, not on where they lie. The first call of a layout does all of it and keeps the launches; the calls after
it put in the addresses. Plans serve CuPy arrays and PyTorch tensors whose rows start at multiples of 16
bytes, and stages in CUDA C; all other calls go the long way each time. A small output that the caller does
not give is allocated ahead, while the GPU works on the call before.

A plan holds compiled kernels: it does not see that a file has been edited since. `forget()` after an edit.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_reference.driver import LEGACY, Allowed, Handle
from flashcore_numba.core.problem import ALIGNMENT, Problem
from flashcore_numba.run import workspace

if TYPE_CHECKING:
    from cuda_reference.packed import PackedLaunches
    from flashcore_numba.core.executor import Executor


MOST = 512  # plans; a program that never repeats a layout starts over after so many

ALIGNED = 256  # bytes: where scratch arrays may begin
SPARE_BYTES, MOST_SPARES = 1 << 20, 8  # an output is allocated ahead where microseconds count

_readers: "dict[type, Callable]" = {}
_plans: "dict[tuple, Plan]" = {}
Addresses = tuple[int, ...]
UNREAD: "tuple[None, Addresses]" = (None, ())
NOT_SERVED: "tuple[None, Addresses, None]" = (None, (), None)
# Outputs for the next call of a plan on a stream, allocated while the GPU was busy with the last one.
_spares: "dict[tuple[Plan, int, bool], Any]" = {}


def forget() -> None:
    """Drop all plans, so that the next calls read the kernels' files again."""
    _plans.clear()
    _spares.clear()
    workspace.forget()


def find(q: Any, k: Any, v: Any, out: Any, options: tuple) -> "tuple[tuple | None, Addresses, Plan | None]":
    """What a call's plan depends on, where its arrays lie, and the plan that an earlier call left, if any.

    options: the other arguments of `attention()`. The first is None for a call that no plan can serve. The
    addresses are those of q, k, v and out, 0 without one.
    """
    kind = type(q)
    read = _readers.get(kind) or _reader(kind)
    if read is None or type(k) is not kind or type(v) is not kind:
        return NOT_SERVED
    if out is not None and type(out) is not kind:
        return NOT_SERVED
    layout, addresses = read(q, k, v, out)
    if layout is None or (addresses[0] | addresses[1] | addresses[2] | addresses[3]) % ALIGNMENT:
        return NOT_SERVED
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
def _cupy(q: Any, k: Any, v: Any, out: Any) -> "tuple[tuple | None, Addresses]":
    dtype = q.dtype
    if k.dtype is not dtype or v.dtype is not dtype:
        return UNREAD
    a, b, c = q.data, k.data, v.data
    devices = (a.device_id, b.device_id, c.device_id)
    layout = (dtype, devices, q.shape, q.strides, k.shape, k.strides, v.shape, v.strides)
    if out is None:
        return layout, (a.ptr, b.ptr, c.ptr, 0)
    if out.dtype is not dtype:
        return UNREAD
    d = out.data
    return (layout, d.device_id, out.shape, out.strides), (a.ptr, b.ptr, c.ptr, d.ptr)


def _torch(q: Any, k: Any, v: Any, out: Any) -> "tuple[tuple | None, Addresses]":
    dtype = q.dtype
    if k.dtype is not dtype or v.dtype is not dtype:
        return UNREAD
    if not (q.is_cuda and k.is_cuda and v.is_cuda) or q.requires_grad or k.requires_grad or v.requires_grad:
        return UNREAD
    try:
        devices = (q.get_device(), k.get_device(), v.get_device())
        layout = (dtype, devices, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride())
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if out is None:
            return layout, (q_at, k_at, v_at, 0)
        if out.dtype is not dtype or not out.is_cuda or out.requires_grad:
            return UNREAD
        return (layout, out.get_device(), out.shape, out.stride()), (q_at, k_at, v_at, out.data_ptr())
    except RuntimeError:  # a sparse tensor, which has no strides
        return UNREAD


def _reader(kind: type) -> "Callable | None":
    """What reads arrays of this type; a subclass may mean something else, so none reads it."""
    name = kind.__module__, kind.__qualname__
    if name == ("cupy", "ndarray"):
        _readers[kind] = _cupy
    elif name == ("torch", "Tensor"):
        _readers[kind] = _torch
    return _readers.get(kind)


class Plan:
    """The launches of one stage for arrays of one layout, kind and device.

    kind: the type of the arrays, CuPy's or PyTorch's. scratch: bytes of each array of scratch memory among
    the arguments of the launches. counter: whether a counter follows.
    """

    def __init__(
        self,
        launches: "PackedLaunches",
        problem: Problem,
        out: Any,
        kind: type,
        lse: bool,
        scratch: list[int],
        counter: bool,
    ) -> None:
        import cupy

        self._launches, self._lse = launches, lse
        rooms = [-(-size // ALIGNED) * ALIGNED for size in scratch]
        self._offsets = [sum(rooms[:i]) for i in range(len(rooms))]
        self._scratch_bytes, self._counter = sum(rooms), counter
        self._shape, self._device = tuple(problem.q.shape), problem.q.device.id
        self._dtype = problem.element.dtype
        self._sizes = [_span(x) for x in (problem.q, problem.k, problem.v, out)]
        self._cupy, self._current_device = cupy, cupy.cuda.runtime.getDevice
        self._launch = self._with_scratch if scratch or counter else launches
        self._apart: Addresses = ()  # found not to overlap
        self._spares = prod(self._shape) * problem.element.size <= SPARE_BYTES
        self._contiguous = problem.q.flags.c_contiguous
        self._start = self._on_cupy
        if kind.__module__ == "torch":
            self._torch, self._start = sys.modules["torch"], self._on_torch
            self._torchs_dtype = getattr(self._torch, problem.element.name)
            self._torchs_handle = _handle_of(self._torch)

    def run(self, addresses: Addresses, q: Any, out: Any) -> Any:
        """What `attention()` returns; None, and nothing is launched, where `out` may overlap an input."""
        if out is not None and addresses != self._apart:
            if self._may_overlap(*addresses):
                return None
            self._apart = addresses
        if self._current_device() == self._device:
            return self._start(addresses, q, out)
        with self._cupy.cuda.Device(self._device):
            return self._start(addresses, q, out)

    def _on_cupy(self, addresses: Addresses, q: Any, out: Any) -> Any:
        cuda, lse, lse_at = self._cupy.cuda, None, 0
        stream = cuda.get_current_stream().ptr
        q_at, k_at, v_at, out_at = addresses
        spare = None
        if out is None:
            spare = self, stream, False
            out = None if self._is_captured(stream) else _spares.pop(spare, None)
            if out is None:
                out = self._array(self._shape, self._dtype, stream)
            out_at = out.data.ptr
        if self._lse:
            lse = self._array(self._shape[:3], np.float32, stream)
            lse_at = lse.data.ptr
        self._launch((q_at, k_at, v_at, out_at, lse_at), stream)
        if spare is not None and self._spares and not self._is_captured(stream):
            with Allowed():
                _put_aside(spare, self._cupy.ndarray(self._shape, self._dtype))
        return out if lse is None else (out, lse)

    def _array(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Any:
        """Memory for what is returned; a graph that is captured keeps it too."""
        with Allowed():
            array = self._cupy.ndarray(shape, dtype)
        if self._is_captured(stream):
            workspace.keep(stream, array)
        return array

    def _on_torch(self, addresses: Addresses, q: Any, out: Any) -> Any:
        lse, lse_at = None, 0
        stream = self._torchs_handle(self._device)
        q_at, k_at, v_at, out_at = addresses
        spare = None
        if out is None:
            spare = self, stream, self._torch.is_inference_mode_enabled()
            out = None if self._is_captured(stream) else _spares.pop(spare, None)
            if out is None:  # a graph has memory of its own
                out = self._tensor(q)
            out_at = out.data_ptr()
        if self._lse:
            lse = self._torch.empty(self._shape[:3], dtype=self._torch.float32, device=self._device)
            lse_at = lse.data_ptr()
        self._launch((q_at, k_at, v_at, out_at, lse_at), stream)
        if spare is not None and self._spares and not self._is_captured(stream):
            _put_aside(spare, self._tensor(q))
        return out if lse is None else (out, lse)

    def _tensor(self, q: Any) -> Any:
        """C-contiguous memory for the output."""
        if self._contiguous:
            return self._torch.empty_like(q)  # half the time of `empty`
        return self._torch.empty(self._shape, dtype=self._torchs_dtype, device=self._device)

    def _is_captured(self, stream: int) -> bool:
        return stream not in LEGACY and self._cupy.cuda.runtime.streamIsCapturing(stream)

    def _with_scratch(self, addresses: Addresses, stream: int) -> None:
        piece = workspace.take(self._device, stream, self._scratch_bytes)
        places = [piece.at + offset for offset in self._offsets]
        if self._counter:
            places.append(piece.counter)
        self._launches((*addresses, *places), stream)
        workspace.give_back(piece)

    def _may_overlap(self, q: int, k: int, v: int, out: int) -> bool:
        q_size, k_size, v_size, size = self._sizes
        end = out + size
        return (
            (q < end and out < q + q_size) or (k < end and out < k + k_size) or (v < end and out < v + v_size)
        )


def _put_aside(key: "tuple[Plan, int, bool]", out: Any) -> None:
    _spares[key] = out
    if len(_spares) > MOST_SPARES:
        for oldest in list(_spares)[:-MOST_SPARES]:
            _spares.pop(oldest, None)


class Recorder:
    """An executor that notes what a stage asks of `Gpu` and passes it on.

    An array that stands for two arguments would leave open which of them a launch meant: give the stage
    `recorder.problem`, which has views of its own.
    """

    def __init__(self, executor: "Executor", problem: Problem) -> None:
        self._executor = executor
        self._notes: list[tuple] = []
        self._scratch: list[Any] = []
        self._counter: Any = None
        self.problem = replace(problem, q=problem.q.view(), k=problem.k.view(), v=problem.v.view())

    @property
    def sm_count(self) -> int:
        return self._executor.sm_count

    @property
    def shared_limit(self) -> int:
        return self._executor.shared_limit

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self._scratch.append(self._executor.empty(shape, dtype))
        return self._scratch[-1]

    def counter(self) -> Any:
        if self._counter is None:
            self._counter = self._executor.counter()
        return self._counter

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self._executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
        self._notes.append((kernel, grid, block, args, shared_bytes))

    def plan(self, out: Any, lse: Any, kind: type) -> Plan | None:
        """The plan of what was launched; None where an argument is neither an array of the call nor a number.

        `out` and `lse` are the arrays that the stage was given, `kind` is the type of the caller's.
        """
        from cuda_reference import Source
        from cuda_reference.gpu import load
        from cuda_reference.packed import PackedLaunches

        if not all(isinstance(kernel, Source) for kernel, *_ in self._notes):
            return None
        p = self.problem
        launches = [(load(kernel), *rest) for kernel, *rest in self._notes]
        try:
            counters = () if self._counter is None else (self._counter,)
            packed = PackedLaunches(launches, (p.q, p.k, p.v, out, lse, *self._scratch, *counters))
        except ValueError:
            return None
        sizes = [prod(x.shape) * x.dtype.itemsize for x in self._scratch]
        return Plan(packed, p, out, kind, lse is not None, sizes, bool(counters))


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
