"""Operators of a kernel: computed with Numba's types, and counted where they are floating-point work."""

import operator

import numpy as np

from flashcore_numba.simulator.masks import LaneSet
from flashcore_numba.simulator.rules import (
    ARITHMETIC,
    BITS,
    DIVISION,
    FLOATING,
    INTEGERS,
    REMAINDER,
    UNSIGNED,
    char_of,
    convert,
    plain,
    strong,
)

ndarray = np.ndarray
MAX_EXPONENT = 0x10000  # above it Numba's integer power is a floating-point one


def _typed(symbol: str, table: dict[str, str], compute):
    """`compute` on two numbers, both converted to the type that Numba computes in."""

    def run(a, b):
        left = a.dtype.char if type(a) is ndarray else char_of(a)
        right = b.dtype.char if type(b) is ndarray else char_of(b)
        result = table.get(left + right)
        if result is None:
            raise _refused(symbol, a, b)
        if left != result:
            a = convert(a, result)
        if right != result:
            b = convert(b, result)
        value = compute(a, b)
        return value if type(value) is ndarray else plain(value)

    return run


def _refused(symbol: str, *values) -> TypeError:
    names = " and ".join(np.dtype(char_of(value)).name for value in values)
    return TypeError(f"Numba has no {symbol} for {names}")


_add = _typed("+", ARITHMETIC, operator.add)
_subtract = _typed("-", ARITHMETIC, operator.sub)
_multiply = _typed("*", ARITHMETIC, operator.mul)
_divide = _typed("/", DIVISION, operator.truediv)


def _remainder(a, b):
    """LLVM's frem as the GPU computes it: a - floor(a / b) * b of the absolute values, the quotient rounded.

    The product is fused with the difference, which is exact; it is less than 0, or b and more, where the
    quotient was rounded to a whole number that the exact one is not. The result has the sign of a.
    """
    dividend, divisor = np.abs(a), np.abs(b)
    whole = np.floor(dividend / divisor)
    if dividend.dtype.char == "f":
        rest = (dividend.astype(np.float64) - whole.astype(np.float64) * divisor).astype(np.float32)
    else:
        rest = _less_product(dividend, whole, divisor)
    return np.where(a < 0, -rest, rest)[()]


def _less_product(c, a, b):
    """c - a * b with one rounding, of float64: the product as the sum of two numbers."""
    (a, more), (b, other) = np.frexp(a), np.frexp(b)
    shift = more + other
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = a_low * b_low - (product - a_high * b_high - a_low * b_high - a_high * b_low)
    return c - np.ldexp(product, shift) - np.ldexp(error, shift)


def _halves(x):
    """A float64 as the sum of two of 26 bits each."""
    large = x * (2.0**27 + 1)
    high = large - (large - x)
    return high, x - high


@np.errstate(all="ignore")
def divide_with_rest(a, b):
    """`a // b` and `a % b` of two floats of one type, step by step as Numba's code."""
    rest = _remainder(a, b)
    quotient = (a - rest) / b
    other_side = (rest != 0) & ((b < 0) != (rest < 0))
    quotient = np.where(other_side, quotient - quotient.dtype.type(1), quotient)
    zero = np.copysign(np.zeros_like(b), b)
    rest = np.where(rest == 0, zero, np.where(other_side, rest + b, rest))
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + whole.dtype.type(1), whole)
    whole = np.where(np.isnan(quotient) | (quotient == 0), quotient * quotient * a / b, whole)
    by_zero = b == 0
    return np.where(by_zero, a / b, whole)[()], np.where(by_zero, np.nan, rest).astype(rest.dtype)[()]


def _quotient(a, b):
    return divide_with_rest(a, b)[0] if char_of(a) in FLOATING else operator.floordiv(a, b)


def _rest(a, b):
    return divide_with_rest(a, b)[1] if char_of(a) in FLOATING else operator.mod(a, b)


_floor_divide = _typed("//", REMAINDER, _quotient)
_modulo = _typed("%", REMAINDER, _rest)


def _shift(symbol: str, compute):
    """A shift: of 64 bits, signed as its left operand; a distance of 64 and more shifts everything out."""

    def run(a, b):
        left, right = char_of(a), char_of(b)
        if left not in INTEGERS or right not in INTEGERS:
            raise _refused(symbol, a, b)
        result = "L" if left in UNSIGNED else "l"
        value = compute(strong(convert(a, result)), strong(convert(b, result)))
        return value if type(value) is ndarray else plain(value)

    return run


def _unary(symbol: str, compute):
    """An operator with one operand: computed in its own type, then an integer becomes one of 64 bits."""

    def run(x):
        char = char_of(x)
        if char not in INTEGERS:
            if symbol == "~":
                raise _refused(symbol, x)
            value = compute(x)
            return value if type(value) is ndarray else plain(value)
        if char == "?":
            x = convert(x, "l")
        return convert(compute(strong(x)), "L" if char in UNSIGNED else "l")

    return run


_invert_integer = _unary("~", operator.invert)


def _invert(x):
    return ~strong(x) if char_of(x) == "?" else _invert_integer(x)


def _compare(compute):
    """A comparison; a uint64 and a signed integer are compared as float64."""

    def run(a, b):
        if type(a) is type(b) is int:
            return compute(a, b)
        if type(a) is ndarray:
            if a.dtype.char == "l" if type(b) is int else type(b) is ndarray and a.dtype == b.dtype:
                return compute(a, b)
        elif not (isinstance(a, ndarray | np.generic | int | float) or a is b is None):
            return compute(a, b)  # tuples, None, a data type
        left, right = char_of(a), char_of(b)
        if (left == "L" and right in "bhil") or (right == "L" and left in "bhil"):
            a, b = convert(a, "d"), convert(b, "d")
        return compute(strong(a), strong(b))

    return run


def _power_of_integers(a, b, result: str):
    """Numba's loop: it wraps as the product does; a negative exponent gives the quotient's whole part."""
    exponent = convert(b, "l") if char_of(b) == "?" else b
    base, exponent = np.broadcast_arrays(strong(convert(a, result)), strong(exponent))
    negative = exponent < 0
    left = np.where(negative, -exponent, exponent)
    power, square = np.ones_like(base), base.copy()
    for _ in range(int(left.max(initial=0)).bit_length()):
        power = np.where(left & 1 == 1, power * square, power)
        square, left = square * square, left >> 1
    if negative.any():
        inverse = convert(1.0 / power.astype(np.float64), result)
        power = np.where(negative, inverse, power)
    return power[()]


def power(a, b):
    """`a ** b`."""
    base, exponent = char_of(a), char_of(b)
    if exponent in INTEGERS and base in INTEGERS:
        value = _power_of_integers(a, b, ARITHMETIC[base + exponent])
    elif exponent in INTEGERS:
        a = convert(a, "f") if base == "e" else a
        value = _repeated(a, b) if type(b) is int else np.power(a, strong(convert(b, a.dtype.char)))
    else:
        result = REMAINDER.get(base + exponent) or ARITHMETIC[base + exponent]
        value = np.power(convert(a, result), convert(b, result))
    return value if type(value) is ndarray else plain(value)


def _repeated(a, exponent: int):
    """A float to a power that every lane shares, by multiplication, as Numba compiles a literal one."""
    if abs(exponent) > MAX_EXPONENT:
        return np.power(a, a.dtype.type(exponent))
    result, left = np.ones_like(a), abs(exponent)
    while left:
        if left & 1:
            result = result * a
        left >>= 1
        a = a * a
    return result if exponent >= 0 else result.dtype.type(1) / result


def _counted(kind: str, compute):
    """A method that computes, and counts one `kind` operation an active lane when the result is floating.

    Without a site nothing is counted: index arithmetic.
    """

    def run(self, a, b, site=None):
        value = compute(a, b)
        if site is not None and getattr(value, "dtype", BOOL).kind == "f":
            self.floating(kind, site, value, (a, b))
        return value

    return run


BOOL = np.dtype(bool)


class Arithmetic(LaneSet):
    """The arithmetic part of `Lanes`; the last argument of most methods is the site."""

    add = _counted("add", _add)
    subtract = _counted("add", _subtract)
    multiply = _counted("mul", _multiply)
    divide = _counted("div", _divide)
    power = staticmethod(power)
    bit_and = staticmethod(_typed("&", BITS, operator.and_))
    bit_or = staticmethod(_typed("|", BITS, operator.or_))
    bit_xor = staticmethod(_typed("^", BITS, operator.xor))
    left_shift = staticmethod(_shift("<<", operator.lshift))
    right_shift = staticmethod(_shift(">>", operator.rshift))
    negative = staticmethod(_unary("-", operator.neg))
    positive = staticmethod(_unary("+", operator.pos))
    invert = staticmethod(_invert)
    lt, le = staticmethod(_compare(operator.lt)), staticmethod(_compare(operator.le))
    gt, ge = staticmethod(_compare(operator.gt)), staticmethod(_compare(operator.ge))
    eq, ne = staticmethod(_compare(operator.eq)), staticmethod(_compare(operator.ne))

    # a * b + c and its relatives are one fused multiply-add on the GPU.

    def multiply_add(self, a, b, c, site: int):
        product = _multiply(a, b)
        return self._fused(product, _add(product, c), (a, b, c), site)

    def multiply_subtract(self, a, b, c, site: int):
        product = _multiply(a, b)
        return self._fused(product, _subtract(product, c), (a, b, c), site)

    def subtract_product(self, a, b, c, site: int):
        product = _multiply(a, b)
        return self._fused(product, _subtract(c, product), (a, b, c), site)

    def _fused(self, product, value, operands, site: int):
        """Count a product and a sum: one operation where both are of one type."""
        result = getattr(value, "dtype", BOOL)
        if result.kind != "f":
            return value
        inner = getattr(product, "dtype", BOOL)
        if inner == result:
            self.floating("fma", site, value, operands)
            return value
        if inner.kind == "f" and self.launch.counting:
            self.launch.counter.operation("mul", site, inner.itemsize, self)
        self.floating("add", site, value, operands)
        return value

    def floating(self, kind: str, site: int, value, operands):
        """Count an operation with a floating-point result, and note a NaN that it made."""
        if self.launch.counting:
            self.launch.counter.operation(kind, site, value.itemsize, self)
        squares = value.dot(value) if type(value) is ndarray else value
        if squares != squares:  # a NaN is among them; sooner known than by isnan
            self._note_nan(site, value, operands)

    def floor_divide(self, a, b, site: int | None = None):
        return _floor_divide(a, b if site is None else self._divisor(a, b, site))

    def modulo(self, a, b, site: int | None = None):
        return _modulo(a, b if site is None else self._divisor(a, b, site))

    def _divisor(self, a, b, site: int):
        """Report an integer zero; what a GPU makes of it is undefined, here it is 0."""
        if type(b) is ndarray:
            if b.dtype.kind in "iu" and not b.all() and char_of(a) in INTEGERS:
                bad = (b == 0) & self.active()
                if bad.any():
                    self.launch.problem("division by zero", site, None, self.whom(bad))
        elif not b and char_of(b) in INTEGERS and char_of(a) in INTEGERS:
            raise ZeroDivisionError("the divisor is 0 in every thread")
        return b

    def _note_nan(self, site: int, value, operands):
        """Remember where a lane first made a NaN out of numbers; a store to global memory reports it."""
        made = np.isnan(value) & self.active()
        if not made.any():  # inactive lanes hold what was never written
            return
        for operand in operands:
            made &= ~np.isnan(operand)
        made &= self.nan_sites < 0
        if made.any():
            lane = int(np.flatnonzero(made)[0])
            shown = (str(np.broadcast_to(operand, self.n)[lane]) for operand in operands)
            self.launch.nans.setdefault(site, " and ".join(shown))
            self.nan_sites = np.where(made, site, self.nan_sites)

    def count(self, kind: str, site: int, value):
        """Count one `kind` operation (exp, sqrt, ...) for a value already computed."""
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype.kind == "f" and self.launch.counting:
            self.launch.counter.operation(kind, site, value.itemsize, self)
        return value
