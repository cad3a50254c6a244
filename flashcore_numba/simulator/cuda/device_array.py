"""What a program does around a launch, where the GPU's memory is NumPy's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flashcore_numba.simulator.memory import ScratchArray, scratch


class DeviceArray(ScratchArray):
    """A NumPy array that copies as Numba's device arrays do; reads of unwritten elements are reported."""

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """The elements in an array of their own, or in `ary`, of the same shape."""
        if ary is None:
            return np.array(self, subok=False)
        ary[...] = self
        return ary

    def copy_to_device(self, ary: np.ndarray, stream: Any = 0) -> None:
        self[...] = ary


class Stream:
    """An order of launches; here every launch has ended when its call returns."""

    def synchronize(self) -> None:
        pass

    @contextmanager
    def auto_synchronize(self) -> Iterator["Stream"]:
        yield self


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """A copy of an array, with its strides; into `to` where that is given."""
    if to is not None:
        to.copy_to_device(obj)
        return to
    return np.array(obj, order="K").view(DeviceArray)


def device_array(
    shape: int | tuple[int, ...],
    dtype: Any = np.float64,
    strides: tuple[int, ...] | None = None,
    order: str = "C",
    stream: Any = 0,
) -> DeviceArray:
    """Uninitialised memory, as `scratch` has it. `order` is "C" or "F"; other `strides` raise ValueError."""
    if strides is not None:
        raise ValueError(f'strides is {strides}: the simulator has arrays of order="C" or "F"')
    if order == "F":
        return device_array(shape[::-1] if isinstance(shape, tuple) else shape, dtype).T
    return scratch(shape, dtype).view(DeviceArray)


def device_array_like(ary: np.ndarray, stream: Any = 0) -> DeviceArray:
    fortran = ary.flags.f_contiguous and not ary.flags.c_contiguous
    return device_array(ary.shape, ary.dtype, order="F" if fortran else "C")


def pinned_array(shape: int | tuple[int, ...], dtype: Any = np.float64, order: Any = "C") -> np.ndarray:
    """An array of the host."""
    return np.empty(shape, dtype, order)


def stream() -> Stream:
    return Stream()


def synchronize() -> None:
    """Returns at once: every launch has ended when its call returns."""


def is_available() -> bool:
    """Whether kernels can be launched: they can, in the simulator."""
    return True
