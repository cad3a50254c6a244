"""A kernel's arguments: NumPy arrays in guarded memory, scalars and tensor maps as bytes."""

import ctypes
import mmap
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..tensor_map import TensorMap

__all__ = ["Memory", "Parameter", "pack"]

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
        return int(value).to_bytes(parameter.bytes, "little", signed=value < 0)
    if not isinstance(value, np.generic):
        raise TypeError(f"{name}: pass a NumPy scalar of {parameter.bytes} bytes, not {type(value).__name__}")
    if value.dtype.itemsize != parameter.bytes:
        raise TypeError(
            f"{name} has {parameter.bytes} bytes, the {value.dtype} passed {value.dtype.itemsize}"
        )
    return value.tobytes()
