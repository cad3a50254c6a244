"""What is right, in float64, and how far from it an answer may be.

A row of Q or K is x / sqrt(mean(x^2) + norm_eps) * weight (Zhang and Sennrich 2019, RMSNorm), then each pair
(a, b) of its first R columns (a cos - b sin, b cos + a sin) (Su et al. 2021, RoFormer). A row of V stays as
it is, and so does one of Q or K without norm and RoPE. The bound of an element is

    |value - right| <= 2 (v |right| + least / 2 + u (D + 12) size)

with v the unit roundoff of the element type, `least` its smallest number, u = 2^-24, and `size` the sum of
the absolute values that the element is a sum of: one rounding to the element type, and in float32 at most
D + 12 for the sum of squares, the reciprocal root, the products and their sum. What stays as it is keeps its
bits.

Pools of e4m3 hold right / scale, at most 448, rounded to the nearest: within half of the distance between two
neighbours there, so that no other neighbour will do, and what float32 loses before, 2 u (D + 14) size.
"""

from typing import NamedTuple

import numpy as np

from flashcore_numba.branches.prepare.inputs import PrepareInputs
from flashcore_numba.branches.prepare.outputs import tokens_written
from flashcore_numba.checks.bounds import U, compare
from flashcore_numba.core.element import E4M3, of
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import Output
from flashcore_numba.core.scaled import by_head

EXACT = 1e-200  # below every difference of two elements


class Rows(NamedTuple):
    """right: float64 of the shape of an output, NaN where nothing is written; allowed: its bounds."""

    right: np.ndarray
    allowed: np.ndarray


Reference = dict[str, Rows]


def reference(x: PrepareInputs) -> Reference:
    """By the output's name."""
    written = tokens_written(x)
    (q, _), (k, k_size) = _turned(x, x.q, x.q_weight), _turned(x, x.k, x.k_weight)
    v = Rows(x.v.astype(np.float64), np.full(x.v.shape, EXACT))
    if x.stored is E4M3:
        k = _stored(k.right, k_size, x.k_scale)
        v = _stored(v.right, np.abs(v.right), x.v_scale)
    for each in q:
        each[:, :, ~written] = np.nan
    return {"out": q, "k_pool": _placed(x, k), "v_pool": _placed(x, v)}


def _stored(rows: np.ndarray, size: np.ndarray, scale: object) -> Rows:
    """Rows [1, heads, tokens, D] as pools of e4m3 hold them."""
    scales = by_head(scale, rows.shape[1])[None, :, None, None]
    right = np.clip(rows / scales, -E4M3.largest, E4M3.largest)
    exponent = np.floor(np.log2(np.maximum(np.abs(right), 2.0**-6)))  # of the least normal number, or more
    apart = 2 * E4M3.unit_roundoff * 2.0**exponent
    return Rows(right, apart / 2 + 2 * U * (rows.shape[3] + 14) * size / scales)


def _turned(x: PrepareInputs, rows: np.ndarray, weight: np.ndarray | None) -> tuple[Rows, np.ndarray]:
    """Rows of Q or K, [1, heads, tokens, D], after norm and rotation, and the size of each element."""
    y, element = rows.astype(np.float64), of(rows.dtype)
    exact = np.full(y.shape, x.norm_eps is None)
    if x.norm_eps is not None:
        y /= np.sqrt((y**2).mean(axis=-1, keepdims=True) + x.norm_eps)
        y *= 1 if weight is None else weight
    size = np.abs(y)
    if x.cos is not None and x.sin is not None and x.positions is not None:
        at = np.where(tokens_written(x), x.positions, 0)
        cos, sin = x.cos[at].astype(np.float64), x.sin[at].astype(np.float64)
        half = cos.shape[1]
        first, second = slice(0, half), slice(half, 2 * half)
        if x.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
        size[..., first] = np.abs(a * cos) + np.abs(b * sin)
        size[..., second] = np.abs(b * cos) + np.abs(a * sin)
        exact[..., : 2 * half] = False
    work = U * (y.shape[-1] + 12) * size
    allowed = 2 * (element.unit_roundoff * np.abs(y) + element.least / 2 + work)
    return Rows(y, np.where(exact, EXACT, allowed)), size


def _placed(x: PrepareInputs, rows: Rows) -> Rows:
    """Rows [1, heads, tokens, D] in the slots of a pool."""
    written = tokens_written(x)

    def pool(values: np.ndarray) -> np.ndarray:
        found = np.full((x.pages * x.page, values.shape[1], values.shape[3]), np.nan)
        found[x.slot_mapping[written]] = values[0].swapaxes(0, 1)[written]
        return found.reshape(x.pages, x.page, *found.shape[1:])

    return Rows(*map(pool, rows))


def judge(output: Output, value: np.ndarray, ref: Reference, gate: None) -> Verdict:
    """Compare what is written of one output; what is not written must keep its bits, which a trial sees."""
    right, allowed = ref[output.name]
    unwritten = np.isnan(allowed)
    found = np.where(unwritten, 0, np.asarray(value, np.float64))
    return compare(found, np.where(unwritten, 0, right), np.where(unwritten, 1, allowed))


def expected(output: Output, ref: Reference) -> np.ndarray:
    """The right value of an output, float64; NaN where nothing is written."""
    return ref[output.name].right
