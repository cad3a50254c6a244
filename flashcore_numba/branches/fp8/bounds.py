"""How wrong an answer in 8 bits may be: what quantising costs, and then what P and the sums may.

Quantising is the same for every right kernel, to the bit (`twin`). So an output may be as far from the answer
as float64 attention of the quantised numbers is, and farther by the following, times 2.5:

- P is rounded to e4m3, by a relative 2^-4 at most and 0.42 of that in the root mean square. Errors of weights
  are independent: 2.5 * 2^-4 |w v|_2 are 6 standard deviations.
- The largest weight is 2^5 or more when it is stored. Steps below 2^-6 are 2^-9, so a small weight is off by
  up to 2^-10; one below that may vanish, and all that vanish pull one way, so their sum counts whole.
- Sums of e4m3 products lose what is below 2^-13 of the highest bit of their largest addend. In P V of a tile
  of 128 keys whose addends have one sign that is at most 128 / 2 such steps of the tile's sum.
- In Q K^T it is 8 steps of the largest addend, 8 * 2^-13 (largest score + 4 |q| |k| scale / sqrt(D)). A
  weight is off by twice that, relatively; from 1/4 on nothing is known of it: the bound is the largest |v|.

Rounding to q's type comes on top. Over all outputs the RMSE is at most 1.25 times what quantising and half of
these make of it: it tells of small errors everywhere, which the bound of one element hides. The log-sum-exp
knows nothing of P's rounding: it is that of the quantised scores, to float32.
"""

import math
from dataclasses import dataclass

import numpy as np

from flashcore_numba.branches.fp8.quantise import TILE
from flashcore_numba.branches.fp8.twin import Dequantised, dequantised, quantised
from flashcore_numba.checks.bounds import U, compare
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.element import E4M3, of
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import OUT, Output

OFFSET = 5  # the largest weight is 2^OFFSET when m is set
KEPT = 2.0**-13  # of the largest addend: where sums of e4m3 products are cut off
WORST, MOST_RMSE = 2.5, 1.25
UNKNOWN = 0.25  # an error of scores from which the weights are anything


@dataclass(frozen=True)
class Reference:
    """out, allowed: float64 [B, H, S_q, D]; lse, lse_allowed: [B, H, S_q]; rmse: the most over all of out."""

    out: np.ndarray
    allowed: np.ndarray
    rmse: float
    lse: np.ndarray
    lse_allowed: np.ndarray


def reference(x: Inputs) -> Reference:
    """The float64 answer and the bounds."""
    scale = 1 / math.sqrt(x.q.shape[3]) if x.scale is None else x.scale
    element, keys = of(x.q.dtype), x.k.shape[2]
    out, lse = oracle.attention(x.q, x.k, x.v, x.causal, scale)
    stored = dequantised(quantised(x.q, x.k, x.v, float(np.sign(scale))), keys, scale)
    ends = x.mask.interval(np.arange(x.q.shape[2]))[1]
    quantising, lost = np.empty(out.shape), np.empty(out.shape)
    lse_allowed = np.empty(lse.shape)
    for b, h in np.ndindex(*out.shape[:2]):
        head = _Head(stored, b, h, h // (x.q.shape[1] // x.k.shape[1]), ends)
        quantising[b, h], lost[b, h] = np.abs(head.out - out[b, h]), head.lost(out[b, h])
        right = np.where(ends > 0, lse[b, h], 0)
        moved = np.abs(np.where(ends > 0, head.lse, 0) - right)
        lse_allowed[b, h] = moved + 2 * (head.score_error + U * (2 * keys + 8 + 4 * np.abs(right)))
    rounding = element.unit_roundoff * np.abs(out) + element.least / 2
    rmse = MOST_RMSE * float(np.sqrt((quantising**2 + (lost / 2) ** 2 + rounding**2).mean()))
    return Reference(out, quantising + WORST * lost + 2 * rounding, rmse, lse, lse_allowed)


class _Head:
    """Float64 attention of one query head's quantised rows, and what a kernel may lose of it."""

    def __init__(self, x: Dequantised, b: int, h: int, h_kv: int, ends: np.ndarray) -> None:
        """ends: of each row, how many keys it sees, from the first one on."""
        q, k, exponents = x.q[b, h], x.k[b, h_kv], x.exponents[b, h_kv]
        self.v, self.ends = x.v[b, h_kv], ends
        seen = np.arange(k.shape[0]) < ends[:, None]
        scores = np.where(seen, q @ k.T, -np.inf)
        largest = np.where(ends > 0, scores.max(axis=1), 0)[:, None]
        p = np.exp(scores - largest)
        total = p.sum(axis=1, keepdims=True)
        self.weights = p / np.where(total > 0, total, 1)
        self.out = self.weights @ self.v
        with np.errstate(divide="ignore"):
            self.lse = largest[:, 0] + np.log(total[:, 0])
            powers = np.log2(self.weights) + exponents  # P carries the scale of V
        # Zeros carry nothing, whatever exponent their tile has: the range of P must not follow them.
        zeros = np.concatenate([np.full(len(each), not each.any()) for each in self._tiles(self.v)])
        powers[:, zeros] = -np.inf
        most = powers.max(axis=1, keepdims=True)
        self.powers = np.where(zeros, 0, powers - np.where(np.isfinite(most), most, 0) + OFFSET)
        size = np.abs(np.where(seen, scores, 0)).max(axis=1)
        norms = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1).max()
        self.score_error = 8 * KEPT * (size + 4 * norms / math.sqrt(q.shape[1]))

    @staticmethod
    def _tiles(rows: np.ndarray) -> list[np.ndarray]:
        """Rows of keys, those of each tile."""
        return [rows[first : first + TILE] for first in range(0, len(rows), TILE)]

    def lost(self, right: np.ndarray) -> np.ndarray:
        """What P and the sums may lose of each output, [S_q, D]."""
        w, v, squares = self.weights, self.v, self.v**2
        least = np.where(w > 0, w * np.exp2(-10 - np.where(w > 0, self.powers, 0)), 0)  # 2^-10, as a weight
        rounded = np.where(self.powers >= -6, E4M3.unit_roundoff * w, np.minimum(least, w))
        found = np.sqrt(rounded**2 @ squares) + np.where(self.powers < -10, w, 0) @ np.abs(v)
        for of_tile, values in zip(self._tiles(w.T), self._tiles(v), strict=True):
            found += TILE / 2 * KEPT * np.abs(of_tile.T @ values)
        alone = (w**2).sum(axis=1)[:, None]
        around = np.sqrt(np.maximum(w**2 @ squares - 2 * right * (w**2 @ v) + right**2 * alone, 0))
        most = np.maximum.accumulate(np.abs(v), axis=0)[np.maximum(self.ends, 1) - 1]
        error = self.score_error[:, None]
        return found + np.where(
            error < UNKNOWN, 2 * error * around, np.where(self.ends[:, None] > 0, most, 0)
        )


def judge(output: Output, value: np.ndarray, ref: Reference, gate: None) -> Verdict:
    """Compare every element with its bound, and of out also the RMSE."""
    value = np.asarray(value, np.float64)
    if output is not OUT:
        return compare(value, ref.lse, ref.lse_allowed)
    found = compare(value, ref.out, ref.allowed)
    rmse = float(np.sqrt(((value - ref.out) ** 2).mean())) if found.passed else 0.0
    if rmse <= ref.rmse:
        return found
    reason = f"the RMSE of all outputs is {rmse:.3g}: at most {ref.rmse:.3g} is accepted"
    everywhere = np.ones(value.shape, bool)
    return Verdict(False, rmse, ref.rmse, ref.rmse / rmse, found.where, reason, everywhere)


def expected(output: Output, ref: Reference) -> np.ndarray:
    """The right value of an output, float64."""
    return ref.out if output is OUT else ref.lse
