"""What is right, in float64 from Q, K and V to the norm, and how far from it an answer may be.

Let x = residual + O of one row, N numbers, of which a kernel has x + d with |d| <= e: what attention may
lose (`checks.bounds`) and 4 u (|x| + |residual|), u = 2^-24. s = sqrt(variance + eps) obeys the triangle
inequality, so that it is off by r = sqrt(mean e^2) at most: s' >= max(s - r, sqrt(eps)). With
y = (x - mean) / s

    |y' - y| <= (e + mean e + |y| r) / s'

and never more than sqrt(N) + |y|, since no column of a normed row is larger than sqrt(N). RMSNorm has no
mean: there e stands alone. Float32 sums of means and squares add 64 u of the mean of |x| to e, since no chain
of additions is longer, and 128 u of s to r. The weight multiplies all of it; the last product and sum lose
4 u of what they are made of, and rounding to the element type loses its unit roundoff, twice for a margin.
The sum before the norm may be off by e and that rounding.
"""

import math
from typing import NamedTuple

import numpy as np

from flashcore_numba.branches.epilogue.inputs import EpilogueInputs
from flashcore_numba.checks import bounds
from flashcore_numba.checks.bounds import U, compare
from flashcore_numba.core.element import Element, of
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import Output


class Rows(NamedTuple):
    """right, allowed: float64 [B, 1, S_q, N]."""

    right: np.ndarray
    allowed: np.ndarray


Reference = dict[str, Rows]


def _of_all_heads(x: np.ndarray) -> np.ndarray:
    """[B, H, S, D] as [B, 1, S, H * D]."""
    batch, heads, rows, d = x.shape
    return x.swapaxes(1, 2).reshape(batch, 1, rows, heads * d)


def _rounding(element: Element, right: np.ndarray) -> np.ndarray:
    return 2 * (element.unit_roundoff * np.abs(right) + element.least / 2)


def reference(x: EpilogueInputs) -> Reference:
    """The float64 answers and their bounds, by the output's name."""
    assert x.weight is not None  # or it is no problem
    element, attended = of(x.q.dtype), bounds.reference(x.q, x.k, x.v, x.causal, x.scale)
    o, error = _of_all_heads(attended.out), _of_all_heads(attended.allowed)
    residual = np.zeros_like(o) if x.residual is None else x.residual.astype(np.float64)
    total = residual + o
    error = error + 4 * U * (np.abs(total) + np.abs(residual))
    summed = Rows(total, error + _rounding(element, total))

    def mean(of_rows: np.ndarray) -> np.ndarray:
        return of_rows.mean(axis=3, keepdims=True)

    centred, off = total, error
    if x.norm == "layer":
        centred = total - mean(total)
        off = error + mean(error) + 64 * U * mean(np.abs(total))
    s = np.sqrt(mean(centred**2) + x.eps)
    moved = np.sqrt(mean(off**2)) + 128 * U * s
    y = centred / s
    lost = (off + np.abs(y) * moved) / np.maximum(s - moved, math.sqrt(x.eps))
    lost = np.minimum(lost, math.sqrt(total.shape[3]) + np.abs(y))
    weight = x.weight.astype(np.float64)
    bias = np.zeros_like(weight) if x.bias is None else x.bias.astype(np.float64)
    right = y * weight + bias
    work = np.abs(weight) * lost + 4 * U * (np.abs(y * weight) + np.abs(bias))
    return {"out": Rows(right, work + _rounding(element, right)), "summed": summed}


def judge(output: Output, value: np.ndarray, ref: Reference, gate: None) -> Verdict:
    """Compare every element with its bound."""
    return compare(np.asarray(value, np.float64), *ref[output.name])


def expected(output: Output, ref: Reference) -> np.ndarray:
    """The right value of an output, float64."""
    return ref[output.name].right
