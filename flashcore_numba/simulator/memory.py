"""Memories of a simulated GPU: allocations, the arrays a kernel sees, scratch that knows what was written."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashcore_numba.simulator.rules import Value

GLOBAL, SHARED, CONSTANT = "global", "shared", "constant"


class Allocation:
    """Bytes that belong together for the race check: one array argument, or one shared array in all blocks.

    `recent` holds the accesses since the last barrier. A pool of dynamic shared memory is one allocation,
    seen through a `Memory` for each element type.
    """

    def __init__(self, name: str, space: str, nbytes: int, block_bytes: int) -> None:
        self.name, self.space = name, space
        self.nbytes, self.block_bytes = nbytes, block_bytes
        self.recent: list = []
        self.recent_lanes = 0
        self.written = False  # since the last barrier
        self.ever_written = False
        self.several = False  # seen as elements of several types, each with a memory of its own
        self.itemsize = 0  # the smallest element of its memories: the cell of the race check
        self.blocks: Any = None  # races.Touched: who touched what, over the whole launch


class Memory:
    """An allocation seen as a flat array of one element type.

    It starts at a multiple of `alignment` bytes. `log` holds the accesses not yet counted. `written` says of
    each element whether it was ever written: one row per element, one column per byte where several types
    share the bytes; None where nobody asks (any longer).
    """

    def __init__(
        self, allocation: Allocation, flat: np.ndarray, base: int = 0, written: np.ndarray | None = None
    ) -> None:
        self.allocation, self.flat, self.base = allocation, flat, base
        self.name, self.space = allocation.name, allocation.space
        self.itemsize = flat.itemsize
        self.written = written
        self.alignment = 16
        self.log: list = []
        self.logged_lanes = 0
        allocation.itemsize = min(allocation.itemsize or flat.itemsize, flat.itemsize)

    def copy(self) -> tuple:
        """The elements, and which were written."""
        return self.flat.copy(), None if self.written is None else self.written.copy()

    def restore(self, state: tuple) -> None:
        flat, written = state
        if self.flat.flags.writeable:
            self.flat[...] = flat
            if self.written is not None and written is not None:
                self.written[...] = written

    @property
    def block_size(self) -> int:
        """Elements of one block's part."""
        return self.allocation.block_bytes // self.itemsize


class View:
    """An array as the kernel sees it. `offset` counts elements and may differ per lane; `is_part`: it shows a
    part of the array that has its name.
    """

    __slots__ = ("is_part", "memory", "offset", "shape", "strides")

    def __init__(
        self,
        memory: Memory,
        offset: Value,
        shape: Iterable[int],
        strides: Iterable[int] | None = None,
        is_part: bool = False,
    ) -> None:
        self.memory, self.offset, self.is_part = memory, offset, is_part
        self.shape = tuple(int(n) for n in shape)
        if strides is None:
            strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        self.strides = tuple(strides)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    dtype = property(lambda self: self.memory.flat.dtype)
    name = property(lambda self: self.memory.name)

    def __len__(self) -> int:
        return self.shape[0]

    def key(self) -> tuple:
        """Views with equal keys differ at most in where they start."""
        return id(self.memory), self.shape, self.strides

    def beside(self, other: "View", lanes: np.ndarray) -> "View":
        """The view, and in `lanes` another with the same key."""
        if other.offset is self.offset:
            return self
        offset = np.where(lanes, other.offset, self.offset)
        return View(self.memory, offset, self.shape, self.strides, self.is_part)


def constants(value: Any) -> Any:
    """A global array as the kernel has it, which Numba freezes when it compiles; in tuples, too."""
    if isinstance(value, tuple) and any(isinstance(item, np.ndarray | tuple) for item in value):
        return tuple(map(constants, value))
    if not isinstance(value, np.ndarray):
        return value
    flat = np.array(value, order="C").ravel()
    flat.flags.writeable = False
    allocation = Allocation("constant array", CONSTANT, flat.nbytes, max(flat.itemsize, flat.nbytes))
    return View(Memory(allocation, flat), 0, value.shape)


class FromEnd(int):
    """A negative index written as a literal: it counts from the end, as Numba compiles it."""


class LocalArray:
    """cuda.local.array: every lane has its own copy, along the last axis of `data`."""

    name = "local array"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, lanes: int) -> None:
        self.shape, self.dtype = shape, dtype
        fill = np.nan if dtype.kind in "fc" else 0
        self.data = np.full((*shape, lanes), fill, dtype)
        self.written = np.zeros((*shape, lanes), bool)
        self.complete = False  # every element of every lane was written

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    strides = property(lambda self: tuple(step // self.dtype.itemsize for step in self.data.strides[:-1]))

    def __len__(self) -> int:
        return self.shape[0]

    def key(self) -> tuple:
        return self.data.ctypes.data, self.shape, self.data.strides

    def beside(self, other: "LocalArray", lanes: np.ndarray) -> "LocalArray":
        return self

    def part(self, index: Any) -> "LocalArray":
        """The sub-array that a partial index or a slice selects; it shares the elements."""
        new = object.__new__(LocalArray)
        new.data, new.written, new.dtype = self.data[index], self.written[index], self.dtype
        new.shape, new.complete = new.data.shape[:-1], self.complete
        return new


class Choice:
    """An array of which each lane has chosen its own: `parts` are arrays with the lanes that have them.

    All are of one element type and number of dimensions, as Numba demands. A lane in no part holds something
    that is no array, or one of another type.
    """

    def __init__(self, parts: list[tuple[Any, np.ndarray]]) -> None:
        self.parts = parts
        first = parts[0][0]
        self.dtype, self.ndim = first.dtype, first.ndim

    name = property(lambda self: "/".join(dict.fromkeys(array.name for array, _ in self.parts)))

    def _each(self, value_of: Callable[[Any], int]) -> Value:
        """A property of the arrays: one number where all agree, else one per lane."""
        values = [value_of(array) for array, _ in self.parts]
        if all(value == values[0] for value in values):
            return values[0]
        return np.select([lanes for _, lanes in self.parts], values).astype(np.int64)

    shape = property(
        lambda self: tuple(self._each(lambda a, axis=axis: a.shape[axis]) for axis in range(self.ndim))
    )
    strides = property(
        lambda self: tuple(self._each(lambda a, axis=axis: a.strides[axis]) for axis in range(self.ndim))
    )
    size = property(lambda self: self._each(lambda array: array.size))


ARRAYS = (View, LocalArray, Choice)


def choose(mask: np.ndarray, new: Any, old: Any) -> Any:
    """The array `new` in the lanes of `mask` and `old` in the others."""
    found: dict = {}
    for value, lanes in ((new, mask), (old, ~mask)):
        for array, having in _parts(value, lanes):
            if array.dtype != new.dtype or array.ndim != new.ndim:
                continue
            key = array.key()
            if key in found:
                known, before = found[key]
                array, having = known.beside(array, having), before | having
            found[key] = array, having
    parts = list(found.values())
    return parts[0][0] if len(parts) == 1 and parts[0][1].all() else Choice(parts)


def _parts(value: Any, lanes: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    if not isinstance(value, ARRAYS):
        return []
    if not isinstance(value, Choice):
        return [(value, lanes)] if lanes.any() else []
    mine = [(array, having & lanes) for array, having in value.parts]
    return [(array, having) for array, having in mine if having.any()]


class Merged(Memory):
    """Several arrays as one memory, for one instruction that accesses them all; it is only counted.

    `starts` says which of its elements is the first of each.
    """

    def __init__(self, memories: list[Memory]) -> None:
        self.members, place = memories, 0
        self.starts = []
        for memory in memories:
            base = memory.base if memory.space == GLOBAL else place
            self.starts.append(base // memory.itemsize)
            place = base + -(-memory.flat.nbytes // 256) * 256
        name = "/".join(memory.name for memory in memories)
        allocation = Allocation(name, memories[0].space, place, place)
        super().__init__(allocation, memories[0].flat)


class ScratchArray(np.ndarray):
    """A NumPy array that remembers which elements were ever written, by a simulated kernel or by assignment.

    Basic views share the memory of what was written. Make one with `scratch`.
    """

    _root: "ScratchArray | None" = None
    _written_flat: np.ndarray | None = None

    def __array_finalize__(self, obj: np.ndarray | None) -> None:
        self._root = getattr(obj, "_root", None)

    def written(self) -> np.ndarray | None:
        """Which elements were written, in the shape of the array; None for no view of a scratch array."""
        root = self._root
        if root is None or root._written_flat is None or self.itemsize != root.itemsize or self.size == 0:
            return None
        start, rest = divmod(self.ctypes.data - root.ctypes.data, self.itemsize)
        if rest or not 0 <= start < root.size or any(step % self.itemsize for step in self.strides):
            return None
        steps = [step // self.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(root._written_flat[start:], self.shape, steps)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        written = self.written()
        if written is not None:
            written[key] = True

    def fill(self, value: Any) -> None:
        self[...] = value


def scratch(shape: int | tuple[int, ...], dtype: DTypeLike) -> ScratchArray:
    """Uninitialised memory for kernels, like `cuda.device_array`.

    Floats are NaN, integers -1, so a result that uses them shows it; `simulate` reports reads of elements
    that no launch and no assignment has written.
    """
    array = np.empty(shape, dtype).view(ScratchArray)
    array._root = array
    array._written_flat = np.zeros(array.size, bool)
    poison = np.nan if array.dtype.kind in "fc" else np.array(-1).astype(array.dtype)
    np.ndarray.fill(array, poison)
    return array
