"""Floating-point operations of a kernel: computed with Numba's types, and counted.

Numba computes `float32 * int` in float64, where NumPy keeps float32: a scalar integer operand widens the
result here too, so the count shows the fp64 instructions that the GPU would execute.
"""

import operator

import numpy as np

from .masks import LaneSet
from .vecmath import BOOL

__all__ = ["Arithmetic"]


def _widen(x):
    return x if type(x) is int else x.astype(np.float64)


def _number(x):
    """A truth value as the integer that arithmetic takes it for."""
    if type(x) is bool or getattr(x, "dtype", None) == BOOL:
        return x.astype(np.int64) if isinstance(x, np.ndarray) else int(x)
    return x


def _counted(kind: str, compute):
    """A method that computes, and counts one `kind` operation an active lane when the result is floating."""

    def run(self, *operands):
        *values, site = operands
        try:
            value = compute(*values)
        except TypeError:  # NumPy knows no minus for booleans
            value = compute(*map(_number, values))
        if type(value) is float:
            value = np.float64(value)
        dtype = getattr(value, "dtype", None)
        if dtype is None or dtype.kind != "f":
            return value if dtype != BOOL else compute(*map(_number, values))
        if dtype.itemsize < 8 and int in map(type, values):
            value = compute(*map(_widen, values))
        if self.launch.counting:
            self.launch.counter.operation(kind, site, value.itemsize, self)
        squares = value.dot(value) if type(value) is np.ndarray else value
        if squares != squares:  # a NaN is among them; sooner known than by isnan
            self._note_nan(site, value, values)
        return value

    return run


class Arithmetic(LaneSet):
    """The arithmetic part of `Lanes`; the last argument of each method is the site."""

    number = staticmethod(_number)
    negative = staticmethod(lambda x: -_number(x))
    add = _counted("add", operator.add)
    subtract = _counted("add", operator.sub)
    multiply = _counted("mul", operator.mul)
    divide = _counted("div", lambda a, b: np.true_divide(a, b) if type(a) is type(b) is int else a / b)
    # a * b + c and its relatives are one fused multiply-add on the GPU.
    multiply_add = _counted("fma", lambda a, b, c: a * b + c)
    multiply_subtract = _counted("fma", lambda a, b, c: a * b - c)
    subtract_product = _counted("fma", lambda a, b, c: c - a * b)

    def floor_divide(self, a, b, site: int):
        return a // self._divisor(b, site)

    def modulo(self, a, b, site: int):
        return a % self._divisor(b, site)

    def _divisor(self, b, site: int):
        """Report an integer zero; what a GPU makes of it is undefined, here it is 0."""
        if type(b) is np.ndarray and b.dtype.kind in "iu" and not b.all():
            bad = (b == 0) & self.active()
            if bad.any():
                self.launch.problem("division by zero", site, None, self.whom(bad))
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
