"""K and V of a cache in e4m3: bytes, and a scale of each pool that makes them what they stand for."""

import numbers
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import E4M3, FLOAT32, LEAST_FLOAT32
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import as_float
from flashcore_numba.core.problem import check_kind, check_place, check_starts

SCALES = ("k_scale", "v_scale")
_BYTE = np.dtype(np.uint8)


def is_e4m3(dtype: Any) -> bool:
    """Whether an array of this type holds e4m3: float8_e4m3fn, or its bytes as uint8, as CuPy has them."""
    return dtype == _BYTE or getattr(dtype, "name", "") == E4M3.name


def is_number(scale: Any) -> bool:
    """Whether a scale is one number for all heads, not an array with one of each."""
    return type(scale) is float or isinstance(scale, numbers.Real)


def arrays_of(scales: dict[str, Any]) -> dict[str, Any]:
    """Those of the scales that are arrays, by name."""
    return {name: scale for name, scale in scales.items() if not is_number(scale)}


def checked_scale_of(name: str, scale: Any, dtype: Any, heads: int, q: Any) -> Any:
    """The scale of a pool of this type with so many heads: a float, or the array float32 [H_kv] that was
    given.

    Real numbers are the stored ones times it. Raises ArgumentError, also for one of a pool that is not e4m3.
    """
    if not is_e4m3(dtype):
        if as_float(scale) == 1:
            return 1.0
        raise ArgumentError(
            f"{name} is given for pools of {str(dtype)[:100]}: only pools of {E4M3.name} have scales"
        )
    if is_number(scale):
        value = as_float(scale)
        if not LEAST_FLOAT32 <= value <= FLOAT32.largest:
            raise ArgumentError(
                f"{name} is {shown(scale)}: it must be a number above 0, as float32 has from "
                f"{LEAST_FLOAT32:.3g} to {FLOAT32.largest:.3g}, or float32 [H_kv]"
            )
        return value
    check_kind(name, scale)
    check_place(name, scale, q)
    if scale.dtype != FLOAT32.dtype:
        raise ArgumentError(f"{name} has dtype {str(scale.dtype)[:100]}: only float32 is accepted")
    if tuple(scale.shape) != (heads,):
        raise ArgumentError(
            f"{name} has shape {tuple(scale.shape)}: it must be ({heads},), a number for each K/V head, or "
            "one number"
        )
    if scale.strides[0] < 0:
        raise ArgumentError(f"{name} has strides {scale.strides} bytes: strides must be >= 0")
    check_starts(name, scale)
    return scale


def scale_arguments(k_scale: Any, v_scale: Any) -> tuple:
    """The arguments for `SCALES_PARAMS` of features.cuh: numbers, then arrays and their steps."""
    both = (k_scale, v_scale)
    one = (np.float32(each if is_number(each) else 1) for each in both)
    many = (None if is_number(each) else each for each in both)
    steps = (np.int32(0 if is_number(each) else each.strides[0] // FLOAT32.size) for each in both)
    return *one, *many, *steps


def by_head(scale: Any, heads: int) -> np.ndarray:
    """The scales of all heads, float64 [heads], of one on the host."""
    return np.broadcast_to(np.asarray(scale, np.float32).astype(np.float64), (heads,))
