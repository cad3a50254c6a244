"""Scalar functions and types of a kernel, as functions of whole vectors of lanes."""

import builtins
import functools
import math
from collections.abc import Callable

import numpy as np
from numba.cuda import libdevice

__all__ = ["BOOL", "INT64_MIN", "UINT64_MAX", "Cast", "as_dtype", "function", "operation", "wrap_int64"]

BOOL = np.dtype(bool)
INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1


def wrap_int64(value: int) -> int:
    """A Python integer as 64 bits keep it."""
    return (value - INT64_MIN) % 2**64 + INT64_MIN


class Cast:
    """A Numba or NumPy number type called as a function.

    Integers of 32 bits and less are wrapped to their width and then held in 64 bits: Numba widens them in
    every operation, and NumPy would let them overflow.
    """

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype
        self.held = np.dtype(np.int64) if dtype.kind in "iu" and dtype != np.uint64 else dtype

    def __call__(self, x):
        if isinstance(x, np.ndarray):
            if self.dtype.kind in "iu":
                x = x.astype(self.dtype, copy=False)
            return x.astype(self.held, copy=False)
        if self.dtype.kind not in "iu":
            return self.dtype.type(x)
        bits = 8 * self.dtype.itemsize
        value = int(x) % (1 << bits)
        signed = self.dtype.kind == "i" and value >> (bits - 1)
        return value - (1 << bits) if signed else value


def as_dtype(kind) -> np.dtype:
    """The NumPy type of a number type as a kernel writes it (`float32`, `np.float32`, "float32")."""
    return kind.dtype if isinstance(kind, Cast) else np.dtype(kind)


def _cast(obj) -> Cast | None:
    """The cast that a Numba or NumPy number type stands for, if it is one."""
    if isinstance(obj, type) and issubclass(obj, np.generic):
        return Cast(np.dtype(obj))
    if type(obj).__module__.startswith("numba") and isinstance(name := getattr(obj, "name", None), str):
        try:
            return Cast(np.dtype("bool" if name.startswith("bool") else name))
        except TypeError:
            return None
    return None


def _is_int(x) -> bool:
    return type(x) is int


def _extreme(of_integers, of_vectors):
    """min or max of two or more values.

    On floats Numba's `max` becomes PTX `max.f32`, which returns the other operand when one is NaN, as
    np.fmax does.
    """

    def pair(a, b):
        return of_integers(a, b) if _is_int(a) and _is_int(b) else of_vectors(a, b)

    return lambda *values: functools.reduce(pair, values)


def _to_int(x):
    return x.astype(np.int64) if isinstance(x, np.ndarray) else int(x)


def _to_float(x):
    return x.astype(np.float64) if isinstance(x, np.ndarray) else np.float64(x)


def _elementwise(scalar: Callable, kind: str | None = None):
    """A function of Python floats, applied to each lane; the result keeps a float32 input's type."""

    def run(x):
        values = np.asarray(x)
        out = np.array([scalar(float(value)) for value in values.ravel()]).reshape(values.shape)
        return out.astype(values.dtype)[()] if values.dtype.kind == "f" else out[()]

    return run


def _reciprocal_sqrt(x):
    return type(x)(1) / np.sqrt(x) if not isinstance(x, np.ndarray) else x.dtype.type(1) / np.sqrt(x)


def fused(a, b, c):
    """a * b + c with one rounding: float32 products are exact in float64."""
    kind = np.result_type(a, b, c)
    if kind != np.float32:
        return a * b + c
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


_exp, _log, _sqrt = ("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt)
_exp2, _log2 = ("exp", np.exp2), ("log", np.log2)
_sin, _cos, _tanh = ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh)
_pow, _div = ("pow", np.power), ("div", np.true_divide)
_erf = ("erf", _elementwise(math.erf))

_FUNCTIONS: dict = {
    **{function: ("exp", getattr(np, function.__name__)) for function in (math.sinh, math.cosh)},
    **{getattr(math, f"a{name}"): (None, getattr(np, f"arc{name}")) for name in ("sin", "cos", "tan")},
    **{getattr(math, f"a{name}h"): (None, getattr(np, f"arc{name}h")) for name in ("sin", "cos", "tan")},
    **{function: (None, _elementwise(function)) for function in (math.erfc, math.gamma, math.lgamma)},
    math.degrees: (None, np.degrees),
    math.radians: (None, np.radians),
    builtins.divmod: (None, lambda a, b: (a // b, a % b)),
    builtins.complex: (None, lambda real, imaginary=0: real + np.complex128(1j) * imaginary),
    math.exp: _exp,
    math.exp2: _exp2,
    math.expm1: ("exp", np.expm1),
    math.log: _log,
    math.log2: _log2,
    math.log1p: ("log", np.log1p),
    math.log10: ("log", np.log10),
    math.sqrt: _sqrt,
    math.sin: _sin,
    math.cos: _cos,
    math.tan: ("tan", np.tan),
    math.tanh: _tanh,
    math.pow: _pow,
    math.erf: _erf,
    math.atan2: (None, np.arctan2),
    math.hypot: (None, np.hypot),
    math.copysign: (None, np.copysign),
    math.fmod: (None, np.fmod),
    math.fabs: (None, np.fabs),
    math.isinf: (None, np.isinf),
    math.isnan: (None, np.isnan),
    math.isfinite: (None, np.isfinite),
    math.floor: (None, lambda x: _to_int(np.floor(x))),
    math.ceil: (None, lambda x: _to_int(np.ceil(x))),
    math.trunc: (None, _to_int),
    builtins.min: (None, _extreme(min, np.fmin)),
    builtins.max: (None, _extreme(max, np.fmax)),
    builtins.abs: (None, abs),
    builtins.int: (None, _to_int),
    builtins.float: (None, _to_float),
    builtins.bool: (None, lambda x: x.astype(bool) if isinstance(x, np.ndarray) else bool(x)),
    builtins.len: (None, len),
    builtins.pow: _pow,
    builtins.round: (None, lambda x: _to_int(np.rint(x))),
    **{function: (function.__name__, function) for function in (np.exp, np.log, np.sqrt, np.sin, np.cos)},
    **{function: (function.__name__, function) for function in (np.tan, np.tanh)},
    **dict.fromkeys((np.exp2,), _exp2),
    **dict.fromkeys((np.log2,), _log2),
    **dict.fromkeys((np.power,), _pow),
    **{f: (None, f) for f in (np.fabs, np.floor, np.ceil, np.isnan, np.isinf, np.isfinite, np.sign)},
    **{f: (None, f) for f in (np.maximum, np.minimum, np.fmax, np.fmin, np.arctan, np.arctan2, np.hypot)},
    np.abs: (None, abs),
}

_LIBDEVICE: dict = {
    **dict.fromkeys(("exp", "expf", "fast_expf"), _exp),
    **dict.fromkeys(("exp2", "exp2f"), _exp2),
    **dict.fromkeys(("log", "logf", "fast_logf"), _log),
    **dict.fromkeys(("log2", "log2f", "fast_log2f"), _log2),
    **dict.fromkeys(("sqrt", "sqrtf", "fsqrt_rn"), _sqrt),
    **dict.fromkeys(("rsqrt", "rsqrtf", "frsqrt_rn"), ("sqrt", _reciprocal_sqrt)),
    **dict.fromkeys(("sin", "sinf", "fast_sinf"), _sin),
    **dict.fromkeys(("cos", "cosf", "fast_cosf"), _cos),
    **dict.fromkeys(("tanh", "tanhf"), _tanh),
    **dict.fromkeys(("pow", "powf", "fast_powf"), _pow),
    **dict.fromkeys(("fast_fdividef", "fdiv_rn", "ddiv_rn"), _div),
    **dict.fromkeys(("frcp_rn", "drcp_rn"), ("div", np.reciprocal)),
    **dict.fromkeys(("fma", "fmaf", "fma_rn", "fmaf_rn"), ("fma", fused)),
    **dict.fromkeys(("fmul_rn", "dmul_rn"), ("mul", np.multiply)),
    **dict.fromkeys(("fadd_rn", "dadd_rn"), ("add", np.add)),
    **dict.fromkeys(("fsub_rn",), ("add", np.subtract)),
    **dict.fromkeys(("fmax", "fmaxf"), (None, np.fmax)),
    **dict.fromkeys(("fmin", "fminf"), (None, np.fmin)),
    **dict.fromkeys(("fabs", "fabsf"), (None, np.fabs)),
    **dict.fromkeys(("erf", "erff"), _erf),
    **dict.fromkeys(("floor", "floorf"), (None, np.floor)),
    **dict.fromkeys(("ceil", "ceilf"), (None, np.ceil)),
    **dict.fromkeys(("rint", "rintf"), (None, np.rint)),
}

for _name, _entry in _LIBDEVICE.items():
    _FUNCTIONS[getattr(libdevice, _name)] = _entry


def _entry_of(obj):
    try:
        return _FUNCTIONS.get(obj)
    except TypeError:  # unhashable, so not a function
        return None


def operation(obj) -> str | None:
    """The counter that one call of the function `obj` adds to ("exp", "sqrt", ...), if any."""
    entry = _entry_of(obj)
    return entry[0] if entry else None


def function(obj) -> Callable | None:
    """The vector twin of a function or number type that a kernel calls; None when there is none."""
    entry = _entry_of(obj)
    return entry[1] if entry else _cast(obj)
