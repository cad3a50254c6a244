"""Numba's types for numbers: what an operation on two of them yields, and how a value is converted.

A value that all lanes share is a Python int (int64), a Python bool or a NumPy scalar; a value of its own in
each lane is a NumPy vector. A type is written as NumPy's character for it: `?` bool, `bhil` and `BHIL` the
integers, `efd` the floats, `FD` complex. The tables are those of `numba.cuda`; the tests ask it.
"""

from typing import Any

import numpy as np

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UNSIGNED, SIGNED = "BHIL", "?bhil"
INTEGERS, FLOATING, COMPLEX = SIGNED + UNSIGNED, "efd", "FD"
_HALF, _SINGLE = "?be", "?bhBef"  # what one operation on a float16, or a float32, does not widen

ndarray = np.ndarray
Value = Any  # a number that all lanes share, or a vector with one per lane


def _float_result(a: str, b: str) -> str:
    for kind, known in (("e", _HALF), ("f", _SINGLE)):
        if a in known and b in known:
            return kind
    return "d"


def _arithmetic(a: str, b: str) -> str:
    if a in COMPLEX or b in COMPLEX:
        return "F" if a in "Ff" and b in "Ff" else "D"
    if a in INTEGERS and b in INTEGERS:
        return "L" if a in UNSIGNED and b in UNSIGNED else "l"
    return _float_result(a, b)


_ALL = INTEGERS + FLOATING + COMPLEX

ARITHMETIC = {a + b: _arithmetic(a, b) for a in _ALL for b in _ALL}
"""The result of +, -, *: Numba computes with integers of 64 bits, unsigned where both are unsigned."""

DIVISION = {pair: "d" if result in "lL" else result for pair, result in ARITHMETIC.items()}

REMAINDER = {
    pair: "f" if result == "e" else result for pair, result in ARITHMETIC.items() if result not in COMPLEX
}
"""The result of // and %."""

BITS = {pair: result for pair, result in ARITHMETIC.items() if result in "lL"} | {"??": "?"}
"""The result of &, | and ^."""


def char_of(x: Any) -> str:
    """The type of a value; TypeError for what is no number."""
    if type(x) is ndarray or isinstance(x, np.generic):
        return x.dtype.char
    if type(x) is int:
        return "l"
    if type(x) is bool:
        return "?"
    if type(x) is float:
        return "d"
    what = "an array" if hasattr(x, "ndim") else "a tuple" if type(x) is tuple else "something else"
    raise TypeError(f"{what} where a number is needed")


def plain(x: Any) -> Any:
    """A scalar as the simulator keeps it: an int64 is a Python int, all others have a NumPy type."""
    if type(x) is int:
        return x if INT64_MIN <= x <= INT64_MAX else (x - INT64_MIN) % 2**64 + INT64_MIN
    if type(x) is np.int64:
        return int(x)
    return np.float64(x) if type(x) is float else x


def strong(x: Any) -> Any:
    """A Python number as one with a NumPy type, which takes part in NumPy's promotion."""
    if type(x) is int:
        return np.int64(x)
    return np.bool_(x) if type(x) is bool else x


def convert(x: Any, char: str) -> Any:
    """The value converted to a type, as the machine does it: integers wrap, floats saturate."""
    if type(x) is int:
        if char in "lL":
            x %= 1 << 64
            return np.uint64(x) if char == "L" else x if x <= INT64_MAX else x - (1 << 64)
        x = strong(x)
    elif type(x) is bool:
        x = np.bool_(x)
    if x.dtype.char == char:
        return plain(x)
    if char in INTEGERS and char != "?" and x.dtype.kind == "f":
        x = _whole(x, char)
    elif x.dtype.kind == "c" and char not in COMPLEX:
        raise TypeError("a complex number where a real one is needed")
    x = x.astype(char)
    return x if type(x) is ndarray else plain(x)


def _whole(x: Any, char: str) -> Any:
    """A float as an integer of at least 16 bits, as PTX's cvt: what does not fit saturates.

    A float16 is rounded to the nearest, as Numba compiles it; others are rounded towards zero.
    """
    half = x.dtype.char == "e"
    wide = char if half else {"b": "h", "B": "H"}.get(char, char)
    limits = np.iinfo(wide)
    nan = 0 if x.dtype.char != "d" and char not in "lL" else limits.min or limits.max // 2 + 1
    x = (np.rint if half else np.trunc)(np.asarray(x, np.float64))
    out = np.where(np.isnan(x), 0.0, x)
    low, high = out <= limits.min, out >= float(limits.max)
    whole = np.where(low | high, 0.0, out).astype(wide)
    whole = np.where(high, limits.max, np.where(low, limits.min, whole))
    return np.where(np.isnan(x), nan, whole).astype(wide)[()]
