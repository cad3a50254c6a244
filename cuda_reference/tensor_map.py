"""How the copy engine of sm_90 sees an array: the argument of a kernel that takes a `ptx::TensorMap`."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

MAGIC = 0x7E45F1A5  # marks a tensor map of the CPU executor; as in cpu/src/tma.cpp


@dataclass(frozen=True, eq=False)
class TensorMap:
    """Pass it to a kernel in place of `array`: NumPy's on the CPU executor, CuPy's on a GPU.

    array: 1 to 5 dimensions, the last one contiguous; the other strides, and the address, are multiples of 16
    bytes. A stride of 0 repeats; the stride of an axis of length one does not matter. box: elements that one
    copy moves in each dimension, outermost first like `array.shape`. swizzle: 0, 32, 64 or 128 bytes.
    shape, strides (bytes): what the engine takes the array for; None is its own.

    Raises ValueError for what the copy engine cannot do (CUDA Driver API, cuTensorMapEncodeTiled).
    """

    array: Any
    box: tuple[int, ...]
    swizzle: int = 128
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _layout(*self._extents, self.array.itemsize, self.box, self.swizzle)

    @property
    def _extents(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides."""
        return self.shape or self.array.shape, self.strides or self.array.strides

    def for_cpu(self, address: int) -> bytes:
        """The 128 bytes that the CPU executor reads, for an array at this address."""
        (shape, strides), itemsize = self._extents, self.array.itemsize
        steps = _layout(shape, strides, itemsize, self.box, self.swizzle)

        def five(values: Sequence[int], letter: str) -> bytes:
            return struct.pack(f"5{letter}", *reversed(values), *[0] * (5 - len(values)))

        head = struct.pack("QII", address, len(shape), itemsize)
        body = five(shape, "Q") + five(steps, "Q") + five(self.box, "I")
        return (head + body + struct.pack("II", self.swizzle, MAGIC)).ljust(128, b"\0")

    def for_gpu(self) -> np.void:
        """The CUtensorMap of a CuPy array: 128 bytes, encoded once for each place, layout and box."""
        array = self.array
        return _encoded(
            array.data.ptr,
            *self._extents,
            array.dtype.name,
            array.itemsize,
            self.box,
            self.swizzle,
        )


@lru_cache(maxsize=1024)
def _layout(
    shape: tuple, strides: tuple, itemsize: int, box: tuple[int, ...], swizzle: int
) -> tuple[int, ...]:
    """The strides in bytes, those of axes of length one as if the array were dense. Raises ValueError."""
    if not 1 <= len(shape) <= 5 or len(box) != len(shape):
        raise ValueError(f"a tensor map has 1 to 5 dimensions and a box of as many: {shape}, {box}")
    steps = list(strides)
    for axis in reversed(range(len(shape) - 1)):
        if shape[axis] == 1:
            steps[axis] = -(-max(16, steps[axis + 1] * shape[axis + 1]) // 16) * 16
    if (shape[-1] > 1 and strides[-1] != itemsize) or any(step % 16 or step < 0 for step in steps[:-1]):
        raise ValueError(
            f"the last dimension must be contiguous, other strides positive multiples of 16: {strides}"
        )
    if any(not 1 <= extent <= 256 for extent in box):
        raise ValueError(f"each extent of a box is 1 to 256: {box}")
    if swizzle not in (0, 32, 64, 128):
        raise ValueError(f"swizzle is 0, 32, 64 or 128, not {swizzle}")
    inner = box[-1] * itemsize
    if inner % 16 or (swizzle and inner > swizzle):
        raise ValueError(f"a row of the box is {inner} bytes: a multiple of 16, at most the swizzle")
    return tuple(steps)


@lru_cache(maxsize=1024)
def _encoded(
    address: int,
    shape: tuple,
    strides: tuple,
    dtype: str,
    itemsize: int,
    box: tuple[int, ...],
    swizzle: int,
) -> np.void:
    from cuda.bindings import driver

    steps = _layout(shape, strides, itemsize, box, swizzle)
    error, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}"),
        len(shape),
        address,
        [driver.cuuint64_t(extent) for extent in reversed(shape)],
        [driver.cuuint64_t(step) for step in reversed(steps[:-1])],
        [driver.cuuint32_t(extent) for extent in reversed(box)],
        [driver.cuuint32_t(1)] * len(shape),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(
            f"cuTensorMapEncodeTiled: {error.name} for shape {shape}, strides {strides} bytes, address "
            f"{address:#x}, box {box}, swizzle {swizzle}"
        )
    return np.array(made.opaque, np.uint64).view(np.dtype((np.void, 128)))[0]
