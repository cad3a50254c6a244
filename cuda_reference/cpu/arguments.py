"""A kernel's arguments: NumPy arrays in guarded memory, scalars and tensor maps as bytes."""

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

__all__ = ["Memory", "Parameter", "TensorMap", "pack"]

GAP = 1 << 20  # between arrays: an access that misses one array does not reach the next
ALIGNMENT = 256  # of every allocation on a GPU
MAGIC = 0x7E45F1A5  # marks a tensor map; as in src/copies.cpp


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its name, its size in bytes, whether it points to what it may not write."""

    name: str
    bytes: int
    pointer: bool
    constant: bool


@dataclass(frozen=True)
class TensorMap:
    """What `cuTensorMapEncodeTiled` makes on a GPU: how the copy engine sees `array`.

    box: elements to copy in each dimension, outermost first like `array.shape`. swizzle: 0, 32, 64 or 128
    bytes. Raises ValueError for what the copy engine cannot do.
    """

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 128

    def __post_init__(self) -> None:
        array, box = self.array, tuple(self.box)
        if not 1 <= array.ndim <= 5 or len(box) != array.ndim:
            raise ValueError(f"a tensor map has 1 to 5 dimensions and a box of as many: {array.shape}, {box}")
        if array.strides[-1] != array.itemsize or any(stride % 16 for stride in array.strides[:-1]):
            raise ValueError(
                f"the last dimension must be contiguous, other strides multiples of 16: {array.strides}"
            )
        if any(not 1 <= extent <= 256 for extent in box):
            raise ValueError(f"each extent of a box is 1 to 256: {box}")
        if self.swizzle not in (0, 32, 64, 128):
            raise ValueError(f"swizzle is 0, 32, 64 or 128, not {self.swizzle}")
        inner = box[-1] * array.itemsize
        if inner % 16 or (self.swizzle and inner > self.swizzle):
            raise ValueError(f"a row of the box is {inner} bytes: a multiple of 16, at most the swizzle")

    def encode(self, address: int) -> bytes:
        def five(values: Sequence[int], letter: str) -> bytes:
            return struct.pack(f"5{letter}", *reversed(values), *[0] * (5 - len(values)))

        array = self.array
        head = struct.pack("QII", address, array.ndim, array.itemsize)
        body = five(array.shape, "Q") + five(array.strides, "Q") + five(self.box, "I")
        return (head + body + struct.pack("II", self.swizzle, MAGIC)).ljust(128, b"\0")


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Memory:
    """Copies of a launch's arrays, each as far into its allocation as the caller's own; guards between."""

    def __init__(self, arrays: list[np.ndarray]):
        owners = {id(owner): owner for owner in map(_owner, arrays)}
        starts: dict[int, int] = {}
        size = GAP
        for key, owner in owners.items():
            low, high = byte_bounds(owner)
            starts[key] = size
            size += (high - low + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT + GAP
        self._map = mmap.mmap(-1, size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        base = self._bytes.ctypes.data
        self._moved: dict[int, int] = {}  # id of an owner -> how far its copy lies from it
        for key, owner in owners.items():
            low, high = byte_bounds(owner)
            ctypes.memmove(base + starts[key], low, high - low)
            self._moved[key] = base + starts[key] - low
        self._owners = owners  # keeps the ids alive

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data + self._moved[id(_owner(array))]

    def bounds(self, array: np.ndarray) -> tuple[int, int]:
        low, high = byte_bounds(array)
        moved = self._moved[id(_owner(array))]
        return low + moved, high + moved

    def copy_back(self, array: np.ndarray) -> None:
        offset = self.address(array) - self._bytes.ctypes.data
        array[...] = np.ndarray(array.shape, array.dtype, self._bytes, offset, array.strides)


def pack(kernel: str, parameter: Parameter, position: int, value: Any, memory: Memory) -> bytes:
    """The bytes of one argument.

    Raises TypeError when it does not fit the parameter.
    """
    name = f"{kernel}: argument {position} ({parameter.name})"
    if isinstance(value, TensorMap):
        if parameter.bytes != 128:
            raise TypeError(f"{name} has {parameter.bytes} bytes, a tensor map 128")
        return value.encode(memory.address(value.array))
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
        return int(value).to_bytes(parameter.bytes, "little", signed=value < 0)
    if not isinstance(value, np.generic):
        raise TypeError(f"{name}: pass a NumPy scalar of {parameter.bytes} bytes, not {type(value).__name__}")
    if value.dtype.itemsize != parameter.bytes:
        raise TypeError(
            f"{name} has {parameter.bytes} bytes, the {value.dtype} passed {value.dtype.itemsize}"
        )
    return value.tobytes()
