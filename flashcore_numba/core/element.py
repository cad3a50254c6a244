"""Element types: what q, k, v and the output hold, and everything that follows from the choice."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from cuda_reference.extras import explained
from cuda_reference.files import fork_safe


@fork_safe
@dataclass(frozen=True)
class Element:
    """One element type, IEEE 754 or like it, with a NumPy type of the same layout.

    name: NumPy's, by which `cuda_reference/include/element.cuh` chooses it too. cuda: its name in CUDA C.
    unit_roundoff: the largest relative error of rounding to nearest. least: the smallest positive number,
    subnormal. largest: the greatest finite one. unwritten and guard: bits of two NaNs that no arithmetic
    gives, with which the checks fill outputs and the memory beside arrays. package: what has the NumPy type,
    and is imported when it is asked for.
    """

    name: str
    size: int  # bytes
    cuda: str
    unit_roundoff: float
    least: float
    largest: float
    unwritten: int
    guard: int
    package: str = "numpy"

    @cached_property
    def dtype(self) -> np.dtype:
        """Its NumPy type. Raises MissingPackageError where `package` is not installed."""
        with explained():
            return np.dtype(getattr(import_module(self.package), self.name))

    def round(self, values: np.ndarray) -> np.ndarray:
        """The values in this type, rounded to nearest even; an infinity where one is beyond `largest`, of
        e4m3 a NaN.
        """
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(self.dtype)


FLOAT16 = Element("float16", 2, "half", 2.0**-11, 2.0**-24, 65504.0, 0x7E5A, 0xFE3C)
BFLOAT16 = Element(
    "bfloat16", 2, "__nv_bfloat16", 2.0**-8, 2.0**-133, 2.0**128 - 2.0**120, 0x7FDA, 0xFFFC, "ml_dtypes"
)
FLOAT32 = Element(
    "float32", 4, "float", 2.0**-24, 2.0**-149, float(np.finfo(np.float32).max), 0x7FC05A5A, 0xFFC03C3C
)
# It has no infinity; NaN is beyond the largest number, and of two NaNs the checks take both.
E4M3 = Element("float8_e4m3fn", 1, "__nv_fp8_e4m3", 2.0**-4, 2.0**-9, 448.0, 0x7F, 0xFF, "ml_dtypes")

LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)  # normal: what is smaller kernels may take for 0

ACCEPTED = (FLOAT16, BFLOAT16)  # of q, k, v and the output
ACCEPTED_NAMES = " and ".join(each.name for each in ACCEPTED)
_BY_NAME = {each.name: each for each in (*ACCEPTED, FLOAT32, E4M3)}


def named(name: str) -> Element | None:
    """The element type with this name, if there is one."""
    return _BY_NAME.get(name)


@lru_cache(maxsize=64)  # NumPy makes a dtype's name in Python, anew each time
def of(dtype: Any) -> Element:
    """The element type with this NumPy type. Raises KeyError where there is none."""
    dtype = np.dtype(dtype)
    element = _BY_NAME[dtype.name]  # so that no package is imported for a type that is not its own
    if element.dtype != dtype:  # the other byte order
        raise KeyError(dtype)
    return element


def accepted(dtype: np.dtype) -> bool:
    """Whether q, k and v may have this NumPy type."""
    try:
        return of(dtype) in ACCEPTED
    except KeyError:
        return False
