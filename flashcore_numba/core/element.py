"""Element types: what q, k, v and the output hold, and everything that follows from the choice."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Element:
    """One element type, IEEE 754 or like it, with a NumPy type of the same layout.

    name: NumPy's, by which `cuda_reference/include/element.cuh` chooses it too. cuda: its name in CUDA C.
    unit_roundoff: the largest relative error of rounding to nearest. least: the smallest positive number,
    subnormal. largest: the greatest finite one. unwritten and guard: bits of two NaNs that no arithmetic
    gives, with which the checks fill outputs and the memory beside arrays.
    """

    name: str
    dtype: np.dtype
    cuda: str
    unit_roundoff: float
    least: float
    largest: float
    unwritten: int
    guard: int

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def round(self, values: np.ndarray) -> np.ndarray:
        """The values in this type, rounded to nearest even; an infinity where one is beyond `largest`."""
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(self.dtype)


FLOAT16 = Element("float16", np.dtype(np.float16), "half", 2.0**-11, 2.0**-24, 65504.0, 0x7E5A, 0xFE3C)
FLOAT32 = Element(
    "float32", np.dtype(np.float32), "float", 2.0**-24, 2.0**-149, float(np.finfo(np.float32).max),
    0x7FC05A5A, 0xFFC03C3C,
)  # fmt: skip

ACCEPTED = (FLOAT16,)  # of q, k, v and the output
ACCEPTED_NAMES = " and ".join(each.name for each in ACCEPTED)
_BY_DTYPE = {each.dtype: each for each in (*ACCEPTED, FLOAT32)}


def of(dtype: np.dtype) -> Element:
    """The element type with this NumPy type. Raises KeyError where there is none."""
    return _BY_DTYPE[np.dtype(dtype)]
