"""A kernel's arguments: NumPy arrays in guarded memory, scalars and tensor maps as bytes."""

import ctypes
import mmap
import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from cuda_reference.shown import shown
from cuda_reference.tensor_map import TensorMap

GAP = 1 << 20  # between arrays: an access that misses one array does not reach the next
ALIGNMENT = 256  # of every allocation on a GPU


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its name, its size in bytes, whether it points to what it may not write."""

    name: str
    bytes: int
    pointer: bool
    constant: bool


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@dataclass
class _Span:
    """Bytes that some of the arrays are in, and where their copy begins."""

    low: int
    high: int
    copy: int = 0
    gaps: bool = False  # between the elements of an array
    writeable: bool = True
    before: np.ndarray | None = None  # where there are gaps: the bytes as they came

    def holds(self, low: int, high: int, array: np.ndarray) -> None:
        self.high = max(self.high, high)
        self.gaps |= high - low != array.nbytes
        self.writeable &= _owner(array).flags.writeable


class Memory:
    """Copies of a launch's arrays, each as far into its allocation as the caller's own; guards between.

    Arrays that overlap overlap in the copies too. Of a larger array that they are windows of, only what is
    between their first byte and their last is copied.
    """

    def __init__(self, arrays: list[np.ndarray]):
        self._spans: list[_Span] = []
        size = GAP
        for low, high, array in sorted(((*byte_bounds(a), a) for a in arrays), key=lambda each: each[:2]):
            if self._spans and low < self._spans[-1].high:
                size += max(0, high - self._spans[-1].high)
                self._spans[-1].holds(low, high, array)
                continue
            size = -(-size // ALIGNMENT) * ALIGNMENT + GAP
            size += (low - byte_bounds(_owner(array))[0]) % ALIGNMENT
            self._spans.append(_Span(low, high, size))
            self._spans[-1].holds(low, high, array)
            size += high - low
        self._map = mmap.mmap(-1, size + GAP)
        self._bytes = np.frombuffer(self._map, np.uint8)
        base = self._bytes.ctypes.data
        for span in self._spans:
            span.copy += base
            ctypes.memmove(span.copy, span.low, span.high - span.low)
            if span.gaps and span.writeable:
                span.before = self._copy_of(span).copy()
        self._lows = [span.low for span in self._spans]

    def _copy_of(self, span: _Span) -> np.ndarray:
        start = span.copy - self._bytes.ctypes.data
        return self._bytes[start : start + span.high - span.low]

    def _span(self, array: np.ndarray) -> _Span:
        return self._spans[bisect_right(self._lows, byte_bounds(array)[0]) - 1]

    def _moved(self, array: np.ndarray) -> int:
        """How far the copy of an array is from it."""
        span = self._span(array)
        return span.copy - span.low

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data + self._moved(array)

    def bounds(self, array: np.ndarray) -> tuple[int, int]:
        low, high = byte_bounds(array)
        moved = self._moved(array)
        return low + moved, high + moved

    def span(self, array: np.ndarray) -> tuple[int, int]:
        """Bounds of the copies of all arrays that overlap this one, or each other and then this one."""
        span = self._span(array)
        return span.copy, span.copy + span.high - span.low

    def copy_back(self, array: np.ndarray) -> None:
        """Gives the array what its copy holds; a subclass learns nothing of it."""
        offset = self.address(array) - self._bytes.ctypes.data
        copy = np.ndarray(array.shape, array.dtype, self._bytes, offset, array.strides)
        array.view(np.ndarray)[...] = copy

    def copy_back_gaps(self, arrays: list[np.ndarray]) -> None:
        """Gives the caller's memory what was written beside elements, and no more: others may write there."""
        changed = {
            span.copy: self._copy_of(span) != span.before for span in self._spans if span.before is not None
        }
        for array in arrays if any(each.any() for each in changed.values()) else ():
            span = self._span(array)
            if span.copy in changed:
                _bytes_of(array, changed[span.copy], self.address(array) - span.copy)[...] = False
        for span in self._spans:
            if span.copy in changed and (beside := changed[span.copy]).any():
                theirs = (ctypes.c_uint8 * len(beside)).from_address(span.low)
                np.ctypeslib.as_array(theirs)[beside] = self._copy_of(span)[beside]


def _bytes_of(array: np.ndarray, told: np.ndarray, start: int) -> np.ndarray:
    """What `told`, with one element per byte, says of the bytes of an array that begins at `start` in it."""
    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    return np.ndarray(shape, told.dtype, told, start, strides)


class Written:
    """Which bytes of a span with scratch arrays were written; the launch adds to it."""

    def __init__(self, span: tuple[int, int]) -> None:
        self._low = span[0]
        self._bytes = np.zeros(span[1] - span[0], np.uint8)

    def address(self, low: int) -> int:
        """Where it is told of the byte at `low`."""
        return self._bytes.ctypes.data + low - self._low

    def take(self, array: np.ndarray, address: int, written: np.ndarray | None) -> None:
        """Of an array whose copy is at `address`; None: all of it."""
        _bytes_of(array, self._bytes, address - self._low)[...] |= (
            True if written is None else written[..., None]
        )

    def give(self, array: np.ndarray, address: int, written: np.ndarray) -> None:
        written |= _bytes_of(array, self._bytes, address - self._low).all(-1)


def pack(kernel: str, parameter: Parameter, position: int, value: Any, memory: Memory) -> bytes:
    """The bytes of one argument.

    Raises TypeError when it does not fit the parameter.
    """
    name = f"{kernel}: argument {position} ({parameter.name})"
    if isinstance(value, TensorMap):
        if parameter.bytes != 128:
            raise TypeError(f"{name} has {parameter.bytes} bytes, a tensor map 128")
        return value.for_cpu(memory.address(value.array))
    if parameter.pointer:
        if value is None or (isinstance(value, int | np.integer) and value == 0):
            return bytes(8)
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"{name} is a pointer: pass a NumPy array, or None or 0, not {type(value).__name__}"
            )
        if not parameter.constant and not value.flags.writeable:
            raise TypeError(f"{name} may be written by the kernel, but the array is read-only")
        return struct.pack("Q", memory.address(value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name} is no pointer: pass a NumPy scalar of {parameter.bytes} bytes, not an array")
    if isinstance(value, bool | int) and not isinstance(value, np.generic):
        try:
            return int(value).to_bytes(parameter.bytes, "little", signed=value < 0)
        except OverflowError:
            raise TypeError(f"{name} has {parameter.bytes} bytes: {shown(value)} does not fit") from None
    if not isinstance(value, np.generic):
        raise TypeError(f"{name}: pass a NumPy scalar of {parameter.bytes} bytes, not {type(value).__name__}")
    if value.dtype.itemsize != parameter.bytes:
        raise TypeError(
            f"{name} has {parameter.bytes} bytes, the {value.dtype} passed {value.dtype.itemsize}"
        )
    return value.tobytes()
