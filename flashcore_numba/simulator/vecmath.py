"""Scalar functions and types of a kernel, as functions of whole vectors of lanes."""

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.simulator.arithmetic import divide_with_rest, power
from flashcore_numba.simulator.memory import ARRAYS
from flashcore_numba.simulator.rules import (
    ARITHMETIC,
    FLOATING,
    INTEGERS,
    REMAINDER,
    UNSIGNED,
    Value,
    char_of,
    convert,
    plain,
    strong,
)
from flashcore_numba.simulator.stub import KernelName
from flashcore_numba.simulator.types import Number

BOOL = np.dtype(bool)


class Cast:
    """A Numba or NumPy number type called as a function."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def __call__(self, x: Value) -> Value:
        return convert(x, self.dtype.char)


def as_dtype(kind: Any) -> np.dtype:
    """The NumPy type of a number type as a kernel writes it (`float32`, `np.float32`, "float32")."""
    if isinstance(kind, Cast):
        return kind.dtype
    if isinstance(kind, np.ndarray | np.generic):  # their own type is not meant
        raise TypeError("a value where a type is needed, such as float32")
    return np.dtype(kind)


def _cast(obj: Any) -> Cast | None:
    """The cast that a Numba or NumPy number type stands for, if it is one."""
    if isinstance(obj, Number) or (isinstance(obj, type) and issubclass(obj, np.generic)):
        return Cast(np.dtype(obj))
    if type(obj).__module__.startswith("numba") and isinstance(name := getattr(obj, "name", None), str):
        try:
            return Cast(np.dtype("bool" if name.startswith("bool") else name))
        except TypeError:
            return None
    return None


def _extreme(of_vectors: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    """min or max of two or more values, in the type that all of them fit.

    On floats Numba's `max` becomes PTX `max.f32`, which returns the other operand when one is NaN, as
    np.fmax does.
    """

    def extreme(*values: Value) -> Value:
        if len(values) < 2:
            raise TypeError("min and max take two numbers or more")
        return plain(functools.reduce(of_vectors, map(strong, values)))

    return extreme


def _unary(compute: Callable, half: bool = True) -> Callable[[Value], Value]:
    """A function of one float: integers become float64; a float16 becomes float32 where `half` is False."""

    def run(x: Value) -> Value:
        char = char_of(x)
        if char in INTEGERS:
            x = convert(x, "d")
        elif char == "e" and not half:
            x = convert(x, "f")
        return compute(x)

    return run


def _binary(compute: Callable, of_integers: str = "") -> Callable[[Value, Value], Value]:
    """A function of two floats; `of_integers` is the type for two integers where it is always the same."""

    def run(a: Value, b: Value) -> Value:
        chars = char_of(a) + char_of(b)
        single = all(char in "?bhBef" for char in chars)
        kind = of_integers if of_integers and all(c in INTEGERS for c in chars) else "f" if single else "d"
        return compute(convert(a, kind), convert(b, kind))

    return run


def _universal(compute: Callable, keeps_integers: bool = False) -> Callable[..., Value]:
    """A NumPy function as Numba compiles it: small integers and float16 become float32, others float64."""

    def run(*values: Value) -> Value:
        chars = [char_of(value) for value in values]
        if all(char in INTEGERS for char in chars):
            kind = "f" if all(char in "?bhBH" for char in chars) else "d"
            if keeps_integers:
                return plain(compute(*map(strong, values)))
        else:
            kind = "d" if "d" in chars else "f"
        return compute(*(convert(value, kind) for value in values))

    return run


def _library(compute: Callable, kind: str) -> Callable[..., Value]:
    """A function of libdevice: its arguments have fixed types."""
    return lambda *values: compute(*(convert(value, kind) for value in values))


def _pow(a: Value, b: Value) -> Value:
    """math.pow, which takes a small integer for an exponent as it is."""
    base, exponent = char_of(a), char_of(b)
    single = base in "?bhBef" and exponent in ("?bhiBHef" if base == "f" else "?bhiBef")
    kind = "f" if single else "d"
    return np.power(convert(a, kind), convert(b, kind))


def _divmod(a: Value, b: Value) -> tuple[Value, Value]:
    chars = char_of(a) + char_of(b)
    kind = REMAINDER[chars]
    if (chars[0] == "?" and chars[1] in UNSIGNED) or (chars[1] == "?" and chars[0] in UNSIGNED):
        kind = "L"
    elif kind == "l" and "L" in chars:
        kind = "d"
    divide = divide_with_rest if kind in FLOATING else divmod
    quotient, rest = divide(convert(a, kind), convert(b, kind))
    return plain(quotient), plain(rest)


def _to_int(x: Value) -> Value:
    return x if type(x) is int or char_of(x) in INTEGERS.replace("?", "") else convert(x, "l")


def _to_float(x: Value) -> Value:
    char = char_of(x)
    if char == "?":
        raise TypeError("Numba has no float() of a truth value")
    return convert(x, "d") if char in INTEGERS else x


def _length(x: Value) -> int:
    if isinstance(x, np.ndarray):
        raise TypeError("len() of a number")
    return x.shape[0] if isinstance(x, ARRAYS) else len(x)


def _absolute(x: Value) -> Value:
    return plain(abs(convert(x, "b") if char_of(x) == "?" else strong(x)))


def _round(x: Value, digits: int | None = None) -> Value:
    char = char_of(x)
    kind = "f" if char in "?bhBef" else "d"
    if digits is None:
        return convert(np.rint(convert(x, kind)), "l")
    if type(digits) is not int:
        raise TypeError("round takes a number of digits that all threads share")
    return np.round(convert(x, kind), digits)


def _elementwise(scalar: Callable, kind: str | None = None) -> Callable[[Value], Value]:
    """A function of Python floats, applied to each lane; the result keeps a float32 input's type."""

    def run(x: Value) -> Value:
        values = np.asarray(x)
        out = np.array([scalar(float(value)) for value in values.ravel()]).reshape(values.shape)
        return out.astype(values.dtype)[()] if values.dtype.kind == "f" else out[()]

    return run


def _reciprocal_sqrt(x: Value) -> Value:
    return x.dtype.type(1) / np.sqrt(x)


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c with one rounding: float32 products are exact in float64."""
    chars = "".join(map(char_of, (a, b, c)))
    kind = functools.reduce(lambda one, other: ARITHMETIC[one + other], chars)
    if kind in "lL":
        raise TypeError("Numba has no fma of integers")
    a, b, c = (convert(value, kind) for value in (a, b, c))
    if kind != "f":
        return a * b + c
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


_HALF = {  # what keeps a float16, and the counter that it adds to
    **dict.fromkeys(("exp", "exp2"), "exp"),
    **dict.fromkeys(("log", "log2", "log10"), "log"),
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "fabs": None,
    "floor": None,
    "ceil": None,
    "trunc": None,
}
_SINGLE = {
    "sinh": "exp",
    "cosh": "exp",
    "expm1": "exp",
    "log1p": "log",
    "tan": "tan",
    "tanh": "tanh",
    **dict.fromkeys(("degrees", "radians", "isinf", "isnan", "isfinite")),
    **dict.fromkeys(("asin", "acos", "atan", "asinh", "acosh", "atanh")),
}


def _of_numpy(name: str) -> Callable:
    return getattr(np, name.replace("a", "arc", 1) if name.startswith("a") else name)


_FUNCTIONS: dict = {
    **{getattr(math, name): (kind, _unary(_of_numpy(name))) for name, kind in _HALF.items()},
    **{getattr(math, name): (kind, _unary(_of_numpy(name), half=False)) for name, kind in _SINGLE.items()},
    **{f: (None, _unary(_elementwise(f), half=False)) for f in (math.erfc, math.gamma, math.lgamma)},
    math.erf: ("erf", _unary(_elementwise(math.erf), half=False)),
    math.pow: ("pow", _pow),
    math.atan2: (None, _binary(np.arctan2, "d")),
    math.hypot: (None, _binary(np.hypot, "d")),
    math.copysign: (None, _binary(np.copysign)),
    math.fmod: (None, _binary(np.fmod)),
    builtins.divmod: (None, _divmod),
    builtins.complex: (None, lambda real, imaginary=0: real + np.complex128(1j) * imaginary),
    builtins.min: (None, _extreme(np.fmin)),
    builtins.max: (None, _extreme(np.fmax)),
    builtins.abs: (None, _absolute),
    builtins.int: (None, _to_int),
    builtins.float: (None, _to_float),
    builtins.bool: (None, Cast(BOOL)),
    builtins.len: (None, _length),
    builtins.pow: ("pow", power),
    builtins.round: (None, _round),
    **{f: (f.__name__, _universal(f)) for f in (np.exp, np.log, np.sqrt, np.sin, np.cos, np.tan, np.tanh)},
    np.exp2: ("exp", _universal(np.exp2)),
    np.log2: ("log", _universal(np.log2)),
    np.power: ("pow", _universal(np.power, keeps_integers=True)),
    **{f: (None, _universal(f)) for f in (np.fabs, np.arctan, np.arctan2, np.hypot)},
    **{f: (None, _universal(f, True)) for f in (np.floor, np.ceil, np.isnan, np.isinf, np.isfinite)},
    **{f: (None, _universal(f, True)) for f in (np.maximum, np.minimum, np.fmax, np.fmin, np.sign, np.abs)},
}

_exp, _log, _sqrt = ("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt)
_exp2, _log2 = ("exp", np.exp2), ("log", np.log2)
_sin, _cos, _tanh = ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh)
_erf = ("erf", _elementwise(math.erf))

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
    **dict.fromkeys(("pow", "powf", "fast_powf"), ("pow", np.power)),
    **dict.fromkeys(("fast_fdividef", "fdiv_rn", "ddiv_rn"), ("div", np.true_divide)),
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
_DOUBLE = {
    *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "pow", "fma", "fma_rn"),
    *("fmax", "fmin", "fabs", "erf", "floor", "ceil", "rint", "ddiv_rn", "drcp_rn", "dmul_rn", "dadd_rn"),
}

LIBDEVICE = {
    name: (kind, _library(compute, "d" if name in _DOUBLE else "f"))
    for name, (kind, compute) in _LIBDEVICE.items()
}
"""The functions of libdevice by name: the counter that a call adds to, and the vector twin."""


def _entry_of(obj: Any) -> tuple[str | None, Callable] | None:
    if isinstance(obj, KernelName):
        return LIBDEVICE.get(obj.path.removeprefix("libdevice."))
    if getattr(obj, "__module__", None) == "numba.cuda.libdevice":
        return LIBDEVICE.get(obj.__name__)
    try:
        return _FUNCTIONS.get(obj)
    except TypeError:  # unhashable, so not a function
        return None


def operation(obj: Any) -> str | None:
    """The counter that one call of the function `obj` adds to ("exp", "sqrt", ...), if any."""
    entry = _entry_of(obj)
    return entry[0] if entry else None


def function(obj: Any) -> Callable | None:
    """The vector twin of a function or number type that a kernel calls; None when there is none."""
    entry = _entry_of(obj)
    return entry[1] if entry else _cast(obj)
