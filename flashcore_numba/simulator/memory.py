"""Memories of a simulated GPU: allocations, the arrays a kernel sees, scratch that knows what was written."""

import math
from typing import Any

import numpy as np

__all__ = [
    *("GLOBAL", "SHARED", "Allocation", "FromEnd", "LocalArray", "Memory", "ScratchArray", "View", "scratch"),
]

GLOBAL, SHARED = "global", "shared"


class Allocation:
    """Bytes that belong together for the race check: one array argument, or one shared array in all blocks.

    `recent` holds the accesses since the last barrier. A pool of dynamic shared memory is one allocation,
    seen through a `Memory` for each element type.
    """

    def __init__(self, name: str, space: str, nbytes: int, block_bytes: int):
        self.name, self.space = name, space
        self.nbytes, self.block_bytes = nbytes, block_bytes
        self.recent: list = []
        self.recent_lanes = 0
        self.written = False  # since the last barrier
        self.ever_written = False
        self.itemsize = 0  # the smallest element of its memories: the cell of the race check
        self.blocks: Any = None  # races.Touched: who touched what, over the whole launch


class Memory:
    """An allocation seen as a flat array of one element type.

    It starts at a multiple of `alignment` bytes. `log` holds the accesses not yet counted. `written` says of
    each element whether it was ever written: one row an element, one column a byte where several types share
    the bytes; None where nobody asks (any longer).
    """

    def __init__(
        self, allocation: Allocation, flat: np.ndarray, base: int = 0, written: np.ndarray | None = None
    ):
        self.allocation, self.flat, self.base = allocation, flat, base
        self.name, self.space = allocation.name, allocation.space
        self.itemsize = flat.itemsize
        self.written = written
        self.alignment = 16
        self.log: list = []
        self.logged_lanes = 0
        allocation.itemsize = min(allocation.itemsize or flat.itemsize, flat.itemsize)

    @property
    def block_size(self) -> int:
        """Elements of one block's part."""
        return self.allocation.block_bytes // self.itemsize


class View:
    """An array as the kernel sees it. `offset` counts elements and may differ per lane."""

    __slots__ = ("memory", "offset", "shape", "strides")

    def __init__(self, memory: Memory, offset, shape, strides=None):
        self.memory, self.offset = memory, offset
        self.shape = tuple(int(n) for n in shape)
        if strides is None:
            strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        self.strides = tuple(strides)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    dtype = property(lambda self: self.memory.flat.dtype)
    name = property(lambda self: self.memory.name)

    def __len__(self):
        return self.shape[0]


class FromEnd(int):
    """A negative index written as a literal: it counts from the end, as Numba compiles it."""


class LocalArray:
    """cuda.local.array: every lane has its own copy, along the last axis of `data`."""

    name = "local array"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, lanes: int):
        self.shape, self.dtype = shape, dtype
        fill = np.nan if dtype.kind in "fc" else 0
        self.data = np.full((*shape, lanes), fill, dtype)
        self.written = np.zeros((*shape, lanes), bool)
        self.complete = False  # every element of every lane was written

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))

    def __len__(self):
        return self.shape[0]

    def part(self, index) -> "LocalArray":
        """The sub-array that a partial index or a slice selects; it shares the elements."""
        new = object.__new__(LocalArray)
        new.data, new.written, new.dtype = self.data[index], self.written[index], self.dtype
        new.shape, new.complete = new.data.shape[:-1], self.complete
        return new


class ScratchArray(np.ndarray):
    """A NumPy array that remembers which elements were ever written, by a simulated kernel or by assignment.

    Basic views share the memory of what was written. Make one with `scratch`.
    """

    _root: "ScratchArray | None" = None
    _written_flat: np.ndarray | None = None

    def __array_finalize__(self, obj):
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

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        written = self.written()
        if written is not None:
            written[key] = True

    def fill(self, value):
        self[...] = value


def scratch(shape, dtype) -> ScratchArray:
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
