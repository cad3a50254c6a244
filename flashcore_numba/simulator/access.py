"""Loads and stores: addresses with checked bounds, recorded for counting and for the race check."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import count_nonzero

from flashcore_numba.simulator.masks import LaneSet
from flashcore_numba.simulator.memory import (
    ARRAYS,
    CONSTANT,
    GLOBAL,
    Choice,
    FromEnd,
    LocalArray,
    Memory,
    View,
    choose,
)
from flashcore_numba.simulator.rules import Value, char_of, convert, plain, strong

LOAD, STORE, ATOMIC = range(3)
FLUSH_LANES = 2_000_000  # accesses kept before they are counted, a bound on memory
ndarray = np.ndarray


class Access(NamedTuple):
    """One access by a group of lanes: `width` neighbours from `element` on, one value or one per lane."""

    site: int
    op: int
    element: Any
    mask: np.ndarray | None
    lanes: Any
    warp_syncs: np.ndarray
    known_syncs: np.ndarray | None
    epoch: np.ndarray
    width: int
    memory: Any
    value: Any = None  # what a store wrote; of a wide one a tuple
    fenced: bool = False  # a load by blocks with a threadfence and an atomic, or one after waiting for others
    counted: bool = True  # False for a part of an access that is counted as a whole


def _as_tuple(index: Any) -> tuple:
    return index if type(index) is tuple else (index,)


def _converted(value: Value, dtype: np.dtype) -> Value:
    """A stored value in the element's type; NumPy converts between floats and widens as a machine does."""
    if type(value) is ndarray and value.dtype == dtype:
        return value
    return convert(value, dtype.char) if dtype.kind in "iu" else value


def _is_index(i: Value) -> bool:
    """May this number index an array? Not a float or a truth value."""
    if char_of(i) not in "bhilBHIL":
        raise TypeError(f"an index of type {np.dtype(char_of(i)).name}: Numba takes integers")
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, ndarray | np.generic | int | float)


def _kind_of(value: Value) -> Any:
    """What must be the same in all elements of a tuple that is indexed at run time."""
    if isinstance(value, ARRAYS):
        return value.dtype.char, value.ndim
    return "tuple" if type(value) is tuple else char_of(value)


def _beside(old: Value, new: Value, lanes: np.ndarray) -> Value:
    """`new` in these lanes, `old` in the others; `old` may be nothing yet."""
    if new is None or old is None:
        return new
    if isinstance(new, ARRAYS):
        return choose(lanes, new, old)
    if type(new) is tuple:
        return tuple(_beside(one, other, lanes) for one, other in zip(old, new, strict=True))
    return np.where(lanes, strong(new), strong(old))


def _slice_bounds(part: slice, extent: int) -> tuple[Value, Value]:
    """Where a slice begins and how many elements it has, as Python's slice.indices, for vectors."""
    step = 1 if part.step is None else part.step
    if type(step) is ndarray:
        raise TypeError("a slice whose step differs between threads")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def bound(value: Value | None, default: int) -> Value:
        if value is None:
            return default
        return np.clip(np.where(value < 0, value + extent, value), low, high).astype(np.int64)

    begin = bound(part.start, low if step > 0 else high)
    end = bound(part.stop, high if step > 0 else low)
    count = (end - begin + step - (1 if step > 0 else -1)) // step
    return begin, np.maximum(0, count)


def _called(array: Any) -> str:
    """How a report names an array."""
    return f"a part of {array.name}" if type(array) is View and array.is_part else array.name


def _wrong_rank(array: Any, index: tuple) -> IndexError:
    return IndexError(f"{_called(array)} has {len(array.shape)} dimensions and is indexed with {len(index)}")


class Accesses(LaneSet):
    """The memory part of `Lanes`."""

    def address(self, view: Any, index: tuple, site: int) -> Value:
        """The element's number in its memory: a Python integer, or one per lane. Every index is checked."""
        offset, vector, known, mask = view.offset, None, self.index_cache, self.mask
        if len(index) != len(view.shape):
            raise _wrong_rank(view, index)
        for i, extent, stride in zip(index, view.shape, view.strides, strict=True):
            if type(i) is ndarray:
                hit = known.get((id(i), extent, stride))
                if hit is not None and hit[0] is i and (hit[2] is None or hit[2] is mask):
                    scaled = hit[1]
                else:
                    scaled = self._checked(view, index, site, i, extent, stride)
                vector = scaled if vector is None else vector + scaled
            else:
                offset = offset + self._scaled(view, index, site, i, extent, stride)
        if vector is None:
            return offset
        return vector + offset if type(offset) is ndarray or offset else vector

    def _scaled(self, view: Any, index: Any, site: int, i: Value, extent: int, stride: Value) -> Value:
        """i * stride, checked against the extent."""
        if type(i) is ndarray:
            return self._checked(view, index, site, i, extent, stride)
        if (type(i) is int or type(i) is FromEnd or _is_index(i)) and 0 <= i < extent:
            return int(i) * stride
        if type(i) is FromEnd and -extent <= i:
            return (extent + i) * stride
        self._out_of_bounds(view, index, site, self.active())
        return 0

    def _checked(
        self, view: Any, index: Any, site: int, i: Value, extent: Value, stride: Value
    ) -> np.ndarray:
        """i * stride, checked against the extent; a vector never changes, so its identity is a cache key."""
        _is_index(i)
        bad = (i < 0) | (i >= extent)
        if self.mask is not None:
            bad &= self.mask
        if count_nonzero(bad):
            self._out_of_bounds(view, index, site, bad)
        if len(self.index_cache) > 500:
            self.index_cache.clear()
        wide = i if i.dtype == np.int64 else i.astype(np.int64)
        scaled = wide if stride == 1 else wide * stride
        self.index_cache[id(i), extent, stride] = (i, scaled, self.mask)
        return scaled

    def _out_of_bounds(self, array: Any, index: Any, site: int, bad: np.ndarray) -> None:
        lane = int(np.flatnonzero(bad)[0])
        parts = [":" if type(i) is slice else int(i[lane] if type(i) is ndarray else i) for i in index]
        element = tuple(i for i in parts if i != ":")
        where = ", ".join(map(str, parts))
        text = f"index [{where}] of {_called(array)}, shape {array.shape}, {self.whom(bad)}"
        facts: dict[str, Any] = {"array": array.name, "element": element, "threads": (self.first(bad),)}
        self.launch.problem("out of bounds", site, None, text, fatal=True, **facts)

    def record(
        self, memory: Memory, site: int, op: int, element: Value, width: int = 1, value: Value = None
    ) -> None:
        launch, fences = self.launch, self.group.fenced
        if launch.deadline is not None:
            launch.check_time(site)
        if memory.space == CONSTANT:
            return
        waited = launch.program.waits and bool(self.acquired[self.active()].all())
        fenced = waited or (
            op == LOAD
            and fences is not None
            and bool((fences & self.group.signalled)[self.block[self.active()]].all())
        )
        clocks = self.warp_syncs, self.known_syncs, self.epoch
        access = Access(site, op, element, self.mask, self, *clocks, width, memory, value, fenced)
        if self.merging is not None:
            access = access._replace(counted=False)
            self.merging.append(access)
        memory.log.append(access)
        if launch.recording:
            launch.record(access)
        allocation = memory.allocation
        if launch.races and not waited:
            allocation.recent.append(access)
            allocation.recent_lanes += self.n
        if op != LOAD:
            allocation.written = allocation.ever_written = True
        memory.logged_lanes += self.n
        if memory.logged_lanes > FLUSH_LANES:
            launch.flush(memory)

    @staticmethod
    def attribute(value: Any, name: str) -> Any:
        """`value.name`, of an array; a number of each lane is a NumPy array here, and none in the kernel."""
        if _is_number(value):
            raise TypeError(f"the attribute .{name} of a number")
        return getattr(value, name)

    # Arrays of which each lane has its own

    def each_part(self, choice: Choice, act: Callable[[Any], Any]) -> Value:
        """`act(array)` by the lanes that have each array, and what it returned; counted as one access."""
        saved, outside, result, having = self.mask, self.merging, None, np.zeros(self.n, bool)
        self.merging = [] if outside is None else outside
        try:
            for array, lanes in choice.parts:
                mine = lanes if saved is None else lanes & saved
                having |= mine
                if count_nonzero(mine):
                    self.mask = mine
                    result = _beside(result, act(array), mine)
            if count_nonzero((self.whole if saved is None else saved) & ~having):
                raise TypeError(
                    f"the variable holds an array of {choice.dtype} with {choice.ndim} dimension(s) in some "
                    "threads, and something else in others: Numba cannot unify them"
                )
            if outside is None:
                self._count_merged(self.merging)
        finally:
            self.mask, self.merging = saved, outside
        return result

    def _count_merged(self, accesses: list[Access]) -> None:
        """Count accesses to several arrays, by different lanes, as the one instruction that they are."""
        groups: dict = {}
        for access in accesses:
            key = access.memory.space, access.site, access.op, access.width
            groups.setdefault(key, []).append(access)
        for together in groups.values():
            memories = list({id(access.memory): access.memory for access in together}.values())
            merged, starts = memories[0], {id(memories[0]): 0}
            if len(memories) > 1:
                merged = self.launch.merged(memories)
                starts = dict(zip(map(id, memories), merged.starts, strict=True))
            element, mask = np.zeros(self.n, np.int64), np.zeros(self.n, bool)
            for access in together:
                element = np.where(access.mask, starts[id(access.memory)] + access.element, element)
                mask = mask | access.mask
            merged.log.append(together[0]._replace(element=element, mask=mask, memory=merged, counted=True))
            merged.logged_lanes += self.n
            if merged.logged_lanes > FLUSH_LANES:
                self.launch.flush(merged)

    def _choice(self, kinds: np.ndarray, array_of: Callable[[int], Any]) -> Any:
        """`array_of(kind)` for each lane's own kind, an integer."""
        active = self.active()
        chosen: Any = None
        for kind in np.unique(kinds[active]).tolist():
            mine = active & (kinds == kind)
            new = array_of(kind)
            chosen = new if chosen is None else choose(mine, new, chosen)
        return chosen

    def view(self, array: Any, index: Any, site: int) -> Any:
        """`a[1:5]`, or `a[i]` of a two-dimensional array: a window on the same memory."""
        if type(array) is Choice:
            return self.each_part(array, lambda part: self.view(part, index, site))
        if type(array) is LocalArray:
            return self._local_part(array, _as_tuple(index), site)
        if type(array) is not View:
            return self._element(array, index, site)
        index = _as_tuple(index)
        if len(index) > len(array.shape):
            raise _wrong_rank(array, index)
        if any(type(i) is slice and ndarray in map(type, (i.start, i.stop, i.step)) for i in index):
            return self._ragged_view(array, index, site)
        offset, shape, strides = array.offset, [], []
        for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
            i = index[axis] if axis < len(index) else slice(None)
            if isinstance(i, slice):
                begin, end, step = i.indices(extent)
                offset = offset + begin * stride
                shape.append(len(range(begin, end, step)))
                strides.append(stride * step)
            else:
                offset = offset + self._scaled(array, index, site, i, extent, stride)
        return View(array.memory, offset, shape, strides, array.is_part or tuple(shape) != array.shape)

    def _ragged_view(self, array: View, index: tuple, site: int) -> Any:
        """A view by slices whose bounds differ between lanes; arrays of one length differ in their start."""
        begins, lengths, plain_index = [], [], []
        for axis, i in enumerate(index):
            if type(i) is slice:
                begin, length = _slice_bounds(i, array.shape[axis])
                begins.append(np.broadcast_to(begin, self.n))
                lengths.append(np.broadcast_to(length, self.n))
                plain_index.append(slice(None, None, i.step))
            else:
                plain_index.append(i)
        rows = np.stack(lengths, 1)
        distinct, kinds = np.unique(rows, axis=0, return_inverse=True)
        whole = [i if type(i) is not slice else slice(None) for i in plain_index]
        base = self.view(array, tuple(whole), site)
        axes = [k for k, i in enumerate(index) if type(i) is slice]
        steps = [index[k].step or 1 for k in axes]
        offset = base.offset
        for begin, k in zip(begins, axes, strict=True):
            offset = offset + begin * array.strides[k]
        rest, fixed = base.shape[len(axes) :], base.strides[len(axes) :]
        strides = [*(array.strides[k] * step for k, step in zip(axes, steps, strict=True)), *fixed]

        def of(kind: int) -> View:
            return View(array.memory, offset, [*distinct[kind].tolist(), *rest], strides, is_part=True)

        return self._choice(kinds.ravel(), of)

    def _element(self, values: Any, index: Any, site: int) -> Value:
        """An element of a tuple, or of what else Python can index."""
        if _is_number(values):
            raise TypeError("an index of a number")
        if type(values) is not tuple or type(index) is not ndarray:
            return (
                values[index if type(index) is slice else int(index)]
                if type(values) is tuple
                else values[index]
            )
        bad = ((index < 0) | (index >= len(values))) & self.active()
        if count_nonzero(bad):
            lane = int(np.flatnonzero(bad)[0])
            text = f"index [{int(index[lane])}] of a tuple of {len(values)}, {self.whom(bad)}"
            facts: dict[str, Any] = {"element": (int(index[lane]),), "threads": (self.first(bad),)}
            self.launch.problem("out of bounds", site, None, text, fatal=True, **facts)
        if len({_kind_of(value) for value in values}) > 1:
            raise TypeError("an index that is no literal, of a tuple whose elements have different types")
        result: Any = None
        for k, value in enumerate(values):
            result = value if k == 0 else _beside(result, value, index == k)
        return result

    def load(self, array: Any, index: Any, site: int) -> Value:
        """`array[index]`."""
        if type(array) is Choice:
            return self.each_part(array, lambda part: self.load(part, index, site))
        if type(array) is LocalArray:
            return self._local_load(array, index, site)
        if type(array) is not View:
            return self._element(array, index, site)
        index = _as_tuple(index)
        if len(index) < len(array.shape):
            return self.view(array, index, site)
        element, memory = self.address(array, index, site), array.memory
        if self.launch.counting:
            self.record(memory, site, LOAD, element)
        self.check_written(memory, element, site)
        if type(element) is not ndarray:
            return plain(memory.flat[element])
        # Inactive lanes may hold any address: take clips it and their value is never used.
        return memory.flat.take(element, mode="clip")

    def check_written(self, memory: Memory, element: Value, site: int, width: int = 1) -> None:
        rows = memory.written
        if rows is None:
            return
        if width > 1:
            whole = len(rows) // width * width
            rows, element = rows[:whole].reshape(whole // width, -1), element // width
        rows = rows.take(element, axis=0, mode="clip")
        if count_nonzero(rows) == rows.size:
            return
        known, element = rows.reshape(*np.shape(element), -1).all(-1), element * width
        bad = ~np.broadcast_to(known, self.n) & self.active()
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            cell = int(element[lane] if type(element) is ndarray else element) % memory.block_size
            text = f"{memory.name} element {cell} was never written, {self.whom(bad)}"
            facts: dict[str, Any] = {"array": memory.name, "element": (cell,), "threads": (self.first(bad),)}
            self.launch.problem("uninitialised read", site, None, text, **facts)

    def store(self, array: Any, index: Any, value: Value, site: int) -> None:
        """`array[index] = value`; lanes that share an address: the last wins (reverse: the first)."""
        if type(array) is Choice:
            self.each_part(array, lambda part: self.store(part, index, value, site))
            return
        if type(array) is LocalArray:
            self._local_store(array, index, value, site)
            return
        if type(array) is not View:
            raise TypeError("an assignment to an element of something that is not an array")
        index = _as_tuple(index)
        if any(type(i) is slice for i in index) or len(index) < len(array.shape):
            self._fill(self.view(array, index, site), value, site)
            return
        value = _converted(value, array.dtype)
        element, memory = self.address(array, index, site), array.memory
        if self.launch.counting:
            self.record(memory, site, STORE, element, value=value)
        self._write(memory, element, value, site)

    def _write(self, memory: Memory, element: Value, value: Value, site: int) -> None:
        where, what = self._lanes_to_store(element, value)
        before = memory.flat[where] if self.launch.program.waits else None
        memory.flat[where] = what
        if before is not None and np.any(memory.flat[where] != before):
            self.launch.changes += 1
        if memory.written is not None:
            memory.written[where] = True
        self._check_nan(memory, value, site)

    def _fill(self, array: View, value: Value, site: int) -> None:
        """`array[:] = value`: element after element."""
        if isinstance(value, (*ARRAYS, tuple)):
            raise TypeError("an assignment of an array to a part of an array")
        for index in np.ndindex(array.shape):
            self.store(array, index, value, site)

    def _check_nan(self, memory: Memory, value: Value, site: int) -> None:
        """Report a NaN that arithmetic made, not one that was read, when it reaches global memory."""
        launch = self.launch
        if not launch.nans or memory.space != GLOBAL or memory.flat.dtype.kind != "f":
            return
        bad = np.broadcast_to(np.isnan(value), self.n) & self.active()
        if not bad.any():
            return
        own = self.nan_sites[bad].max()
        origin = int(own) if own >= 0 else next(iter(launch.nans))  # made by another lane, then passed on
        text = f"a NaN, made of {launch.nans[origin]}, is stored in {memory.name}, {self.whom(bad)}"
        kind = "warp mask" if origin in launch.absent else "not a number"
        launch.problem(kind, origin, site, text, array=memory.name, threads=(self.first(bad),))

    def _lanes_to_store(self, element: Value, value: Value) -> tuple[Value, Value]:
        mask, reverse = self.mask, self.launch.reverse
        if type(element) is not ndarray:
            if type(value) is ndarray:
                value = value[self.active()][0 if reverse else -1]
            return element, value
        if mask is not None:
            element = element[mask]
            if type(value) is ndarray:
                value = value[mask]
        if reverse and type(value) is ndarray:
            element, value = element[::-1], value[::-1]
        return element, value

    # Wide accesses (flashcore_numba.wide)

    def _wide_address(
        self, array: Any, index: Any, site: int, op: int, width: int, dtype: str, values: tuple | None = None
    ) -> tuple[Value, Memory]:
        index = _as_tuple(index)
        if type(array) is not View or array.memory.space == CONSTANT:
            raise TypeError(f"a wide access wants an array in global or shared memory, of {dtype}")
        if array.dtype != dtype or array.strides[-1:] != (1,):
            found = f"shape {array.shape}, {array.dtype}"
            raise TypeError(f"a wide access wants {dtype} and a contiguous last dimension, not {found}")
        last = index[-1] + (width - 1)
        if type(last) is ndarray:
            self._checked(array, (*index[:-1], last), site, last, array.shape[-1], 1)
        else:
            self.address(array, (*index[:-1], last), site)
        element, memory = self.address(array, index, site), array.memory
        odd = element & (width - 1)  # widths are powers of two
        if count_nonzero(odd) and (bad := np.broadcast_to(odd != 0, self.n) & self.active()).any():
            lane = int(np.flatnonzero(bad)[0])
            first = int(np.broadcast_to(element, self.n)[lane])
            text = (
                f"{memory.name}: a {width * memory.itemsize}-byte access must start at a multiple of "
                f"{width} elements, not at {first}, {self.whom(bad)}"
            )
            facts: dict[str, Any] = {"array": memory.name, "element": (first,), "threads": (self.first(bad),)}
            self.launch.problem("misaligned", site, None, text, fatal=True, **facts)
        if width * memory.itemsize > memory.alignment:
            text = (
                f"{memory.name} may start at any multiple of {memory.alignment} bytes: a "
                f"{width * memory.itemsize}-byte access needs cuda.shared.array(..., alignment=16)"
            )
            self.launch.problem("misaligned", site, None, text, array=memory.name)
        if self.launch.counting:
            self.record(memory, site, op, element, width, values)
        return element, memory

    def wide_load(self, width: int, dtype: str, site: int, array: Any, index: Any) -> Value:
        """`width` neighbours from `array[index]` on, as a tuple of float32."""
        if type(array) is Choice:
            return self.each_part(array, lambda part: self.wide_load(width, dtype, site, part, index))
        element, memory = self._wide_address(array, index, site, LOAD, width, dtype)
        self.check_written(memory, element, site, width)
        rows = memory.flat[: len(memory.flat) // width * width].reshape(-1, width)
        values = rows.take(element // width, axis=0, mode="clip").astype(np.float32, copy=False)
        return tuple(np.ascontiguousarray(values.T)) if values.ndim == 2 else tuple(values)

    def wide_store(self, width: int, dtype: str, site: int, array: Any, index: Any, *values: Value) -> None:
        """Store `width` values at `array[index]` and its neighbours."""
        if type(array) is Choice:
            self.each_part(array, lambda part: self.wide_store(width, dtype, site, part, index, *values))
            return
        element, memory = self._wide_address(array, index, site, STORE, width, dtype, values)
        for k, value in enumerate(values):
            self._write(memory, element + k, value, site)

    # Local arrays

    def _local_index(self, array: LocalArray, index: Any, site: int) -> tuple:
        index = _as_tuple(index)
        if len(index) != len(array.shape):
            raise _wrong_rank(array, index)
        vector = False
        for i, extent in zip(index, array.shape, strict=True):
            if type(i) is FromEnd and -extent <= i:
                continue
            if type(i) is not ndarray and 0 <= i < extent:
                continue
            bad = ((i < 0) | (i >= extent)) & self.active()
            if bad.any():
                self._out_of_bounds(array, index, site, bad)
            vector = True
        if not vector:
            return index
        active = self.active()
        return (*(np.where(active, i, 0) for i in index), np.arange(self.n))

    def _local_part(self, array: LocalArray, index: tuple, site: int) -> Any:
        """A row or a slice of a local array; rows that differ between lanes are a choice among them."""
        if len(index) > len(array.shape):
            raise _wrong_rank(array, index)
        for axis, (i, extent) in enumerate(zip(index, array.shape, strict=False)):
            if type(i) is slice or (type(i) is FromEnd and -extent <= i):
                continue
            _is_index(i)
            bad = ((i < 0) | (i >= extent)) & self.active()
            if bad.any():
                self._out_of_bounds(array, index, site, bad)
            if type(i) is ndarray:
                return self._local_rows(array, index, axis, site)
        return array.part(index)

    def _local_rows(self, array: LocalArray, index: tuple, axis: int, site: int) -> Any:
        before, after = index[:axis], index[axis + 1 :]
        return self._choice(index[axis], lambda k: self._local_part(array, (*before, k, *after), site))

    def _local_load(self, array: LocalArray, index: Any, site: int) -> Value:
        if len(_as_tuple(index)) < len(array.shape):
            return self._local_part(array, _as_tuple(index), site)
        index = self._local_index(array, index, site)
        if not array.complete:
            self._check_local(array, index, site)
        value = array.data[index]
        return value.copy() if value.base is not None else value

    def _check_local(self, array: LocalArray, index: Any, site: int) -> None:
        array.complete = bool(array.written.all())
        if array.complete:
            return
        bad = ~array.written[index] & self.active()
        if bad.any():
            text = f"an element of a local array was never written, {self.whom(bad)}"
            self.launch.problem("uninitialised read", site, None, text, threads=(self.first(bad),))

    def _local_store(self, array: LocalArray, index: Any, value: Value, site: int) -> None:
        if isinstance(value, (*ARRAYS, tuple)):
            raise TypeError("an assignment of an array to a part of an array")
        value = _converted(value, array.dtype)
        if not any(type(i) is slice for i in _as_tuple(index)):
            index = self._local_index(array, index, site)
        if self.mask is None:
            array.data[index] = value
            if not array.complete:
                array.written[index] = True
            return
        array.data[index] = np.where(self.mask, value, array.data[index])
        if not array.complete:
            array.written[index] |= self.mask
