"""How wrong an answer may be: derived from the arithmetic, not from what the kernels happen to reach.

The relative bound of one query row is

    |out - ref| <= 2 * (max over the row of |standard - ref| + floor)

where `ref` is attention in float64, `standard` is textbook attention that stores S and P in q's type, and
`floor` is what a correct kernel may lose when it works in float32 and rounds once, to that type. The form is
that of FlashAttention's own tests (Dao et al. 2022); the floor is the usual rounding analysis with u = 2^-24
(Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 4.2):

- A score is a scaled dot product of D terms. Its error is at most (D + 2) u A where A >= scale * sum |q_c
  k_c|; Cauchy-Schwarz gives A = |scale| |q_i| max_j |k_j|. Subtracting the row maximum and changing to base 2
  lose at most 6 u A more, the exponential itself 4 u. So each p_j is right to a relative (D + 8) u A + 4 u.
- A softcap's tanh is right to a relative 2^-10.987, so a score that it leaves at most c is off by that of
  min(A, c). ALiBi adds a bias, at most |slope| max(S_q, S_k), with an error of 4 u of it.
- Numerator and denominator each sum S_k terms and are rescaled at most S_k times: 4 S_k u together. The
  division costs 2 u.
- Both enter the result multiplied by sum_j p_j |v_j| <= attention(q, k, |v|), the p_j by at most twice that.
- Rounding the result to float16 loses 2^-11 |ref|, and never less than half the smallest subnormal, 2^-25;
  to another type, what `core.element` says.

Hence floor = 2^-11 |ref| + 2^-25 + u * (2 (D + 8) A + 4 S_k + 10) * attention(q, k, |v|).

A float32 output is not rounded at the end, but its P were, to q's type: its floor has 2^-11 attention(q, k,
|v|) and u |ref| for 2^-11 |ref| and 2^-25. Merging with what was computed before gives the parts their
shares w and w' = 1 - w, by their LSE. The error of the new part counts by w. A relative error e of one
weight moves the result by at most e w w' (attention(q, k, |v|) + |prior out|); that of the prior weight is
u (2 |prior LSE| + 4), as the LSE is changed to base 2 and the maximum is subtracted. The products and the sum
of both lose 8 u of each share.

Norm and gate come after attention that is not rounded, whose error is at most e. With r = sqrt(mean(x^2) +
eps) and y = x / r, the triangle inequality bounds how far r may be off by rho = sqrt(mean e^2), and the sum
of D_v squares in float32 adds (D_v + 8) u r. So y is off by (e + |y| rho) / max(r - rho, sqrt(eps)), and
never by more than sqrt(D_v) + |y|, since no column of a normed row is larger. The weight multiplies it; that
product loses 4 u. A sigmoid s of g is right to u (2 |g| + 8) s + 2^-126: its argument changes base, and what
is below the least float counts as 0. Then the result is rounded.

Attention is a mean of V, so an infinity made of finite V is wrong. What a norm multiplies may be beyond the
type: an infinity stands for any number that rounds to it then, and is judged as the nearest to the right one.

The plan's absolute gates apply as well: 1e-3 on its five shapes; on extreme inputs a mean error of 0.02 and
at most 1 % of the elements off by more than 0.1. The factor 2 leaves a correct float32 kernel a margin of at
least 2.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashcore_numba.core import oracle
from flashcore_numba.core.element import FLOAT32, Element, of
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import OUT, Output

U = FLOAT32.unit_roundoff
TANH = 2.0**-10.987  # relative, of tanh.approx.f32 (PTX ISA, "tanh")


@dataclass(frozen=True)
class Gate:
    """An absolute limit beside the relative bound; infinite means no limit."""

    largest: float = math.inf
    mean: float = math.inf
    outlier: float = math.inf  # an element off by more than this is an outlier
    outlier_share: float = math.inf


NO_GATE = Gate()
PLAN = Gate(largest=1e-3)
EXTREME = Gate(mean=0.02, outlier=0.1, outlier_share=0.01)


@dataclass(frozen=True)
class Reference:
    """The right answer of one input and how far from it an answer may be.

    out, allowed: float64 [B, H, S_q, D]. lse, lse_allowed: float64 [B, H, S_q]. least_infinite: from which
    number on the output may be infinite; math.inf where it may not.
    """

    out: np.ndarray
    allowed: np.ndarray
    lse: np.ndarray
    lse_allowed: np.ndarray
    least_infinite: float = field(default=math.inf, kw_only=True)


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    features: Features = OFF,
) -> Reference:
    """The float64 answer and the bound; arguments as `flashcore_numba.core.oracle.attention`."""
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if features.epilogue:
        unrounded = replace(features, norm_weight=None, gate=None, float32_out=True)
        return _after(reference(q, k, v, causal, scale, unrounded), of(q.dtype), features)
    alone = replace(features, prior_out=None, prior_lse=None)
    both, lse = oracle.attention(q, k, np.concatenate([v, np.abs(v)], axis=3), causal, scale, features=alone)
    out, magnitude = np.split(both, 2, axis=3)
    standard = oracle.standard_attention(q, k, v, causal, scale, features=features).astype(np.float64)
    seq_k, element = k.shape[2], of(q.dtype)
    p_error = weight_error(q, k, causal, scale, features)

    float32_work = (2 * p_error + U * (4 * seq_k + 2))[..., None] * magnitude
    p_stored = element.unit_roundoff * magnitude
    # LSE = max + log(sum): the error of the scores, of the sum, and of rounding the result to float32.
    lse_error = p_error + U * (2 * seq_k + 4)
    if features.prior_out is not None:
        now, before = oracle.weights(lse, features.prior_lse)
        prior = np.where(before[..., None] > 0, np.abs(features.prior_out.astype(np.float64)), 0)
        prior_error = U * (2 * np.abs(np.where(before > 0, features.prior_lse, 0)) + 4)
        moved = now * before * (p_error + prior_error + U * (4 * seq_k + 4))
        shares = now[..., None] * magnitude + before[..., None] * prior
        float32_work = now[..., None] * float32_work + moved[..., None] * (magnitude + prior) + 8 * U * shares
        p_stored = now[..., None] * p_stored
        lse_error = now * lse_error + before * prior_error + 4 * U
        out, lse = oracle.merged_with_prior(out, lse, features)
    if features.float32_out:
        floor = p_stored + U * np.abs(out) + FLOAT32.least / 2 + float32_work
    else:
        floor = element.unit_roundoff * np.abs(out) + element.least / 2 + float32_work
    row_error = np.abs(standard - out).max(axis=3, keepdims=True)
    lse_floor = lse_error + U * np.abs(np.where(np.isfinite(lse), lse, 0))
    return Reference(out, 2 * (row_error + floor), lse, 2 * lse_floor)


def _after(before: Reference, element: Element, features: Features) -> Reference:
    """Norm and gate of an answer that is not rounded."""
    x, lost = before.out, before.allowed
    last, least_infinite = FLOAT32 if features.float32_out else element, math.inf
    if features.norm_weight is not None:
        least_infinite = rounds_to_infinity(last)
        columns = x.shape[3]
        root = np.sqrt((x**2).mean(axis=3, keepdims=True) + features.norm_eps)
        moved = np.sqrt((lost**2).mean(axis=3, keepdims=True)) + (columns + 8) * U * root
        y = x / root
        lost = (lost + np.abs(y) * moved) / np.maximum(root - moved, math.sqrt(features.norm_eps))
        lost = np.minimum(lost, math.sqrt(columns) + np.abs(y))
        x = oracle.normed(x, features)
        weight = np.abs(features.norm_weight.astype(np.float64))
        lost = lost * (weight if weight.ndim == 1 else weight[None, :, None, :]) + 4 * U * np.abs(x)
    if features.gate is not None:
        share = oracle.sigmoid(features.gate)
        off = 2 * (U * (2 * np.abs(features.gate.astype(np.float64)) + 8) * share + 2.0**-126)
        lost = lost * (share + off) + np.abs(x) * off
        x = x * share
    allowed = lost + 2 * (last.unit_roundoff * np.abs(x) + last.least / 2)
    return replace(before, out=x, allowed=allowed, least_infinite=least_infinite)


def rounds_to_infinity(element: Element) -> float:
    """The least number that the type rounds to its infinity: as far from its largest as the next would be."""
    return element.largest * (1 - element.unit_roundoff / 2) / (1 - element.unit_roundoff)


def weight_error(q: np.ndarray, k: np.ndarray, causal: bool, scale: float, features: Features) -> np.ndarray:
    """How far each p_j of a row may be off, relatively: [B, H, S_q]."""
    found = np.zeros(q.shape[:3])
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    for each in features.sequences(q, k, causal):
        q_norm = np.linalg.norm(q[each.batch, :, each.rows].astype(np.float64), axis=2)  # [H, rows]
        k_norm = np.linalg.norm(k[each.batch, :, each.keys].astype(np.float64), axis=2)  # [H_kv, keys]
        largest = np.repeat(k_norm.max(axis=1, initial=0), group)
        score = abs(scale) * q_norm * largest[:, None]
        error = U * ((q.shape[3] + 8) * score + 4)
        if features.softcap:
            error += TANH * np.minimum(score, features.softcap)
        farthest = max(each.mask.seq_q, each.mask.seq_k)
        error += 4 * U * farthest * np.abs(features.slopes(each.number, heads))[:, None]
        found[each.batch, :, each.rows] = error
    return found


def judge(out: np.ndarray, ref: Reference, gate: Gate = NO_GATE) -> Verdict:
    """Compare `out` [B, H, S_q, D] with the reference. A NaN never passes, an infinity only where the right
    answer is one, or beyond the type.
    """
    out = _infinities_meant(np.asarray(out, np.float64), ref)
    verdict = compare(out, ref.out, ref.allowed)
    if not verdict.passed:
        return verdict
    error = np.abs(out - ref.out)
    worst = np.unravel_index(error.argmax(), error.shape)
    largest, mean, outliers = float(error[worst]), float(error.mean()), float((error > gate.outlier).mean())
    for value, limit, what in (
        (largest, gate.largest, "the largest error"),
        (mean, gate.mean, "the mean error"),
        (outliers, gate.outlier_share, f"the share of elements off by more than {gate.outlier}"),
    ):
        if value > limit:
            reason = f"{what} is {value:.3g}, the absolute gate {limit:.3g}"
            return Verdict(False, value, limit, limit / value, _index(worst), reason, error >= largest)
        if value > 0 and limit / value < verdict.margin:
            verdict = Verdict(True, value, limit, limit / value, _index(worst))
    return verdict


def _infinities_meant(out: np.ndarray, ref: Reference) -> np.ndarray:
    """`out`, with the nearest number to the right one that an infinity may stand for in its place."""
    least = ref.least_infinite
    meant = np.where(out > 0, np.maximum(ref.out, least), np.minimum(ref.out, -least))
    return np.where(np.isinf(out), meant, out)


def judge_lse(lse: np.ndarray, ref: Reference) -> Verdict:
    """Compare LSE [B, H, S_q]; a row that sees no key must have exactly -inf."""
    return compare(np.asarray(lse, np.float64), ref.lse, ref.lse_allowed)


def verdict(output: Output, value: np.ndarray, ref: Reference, gate: Gate | None) -> Verdict:
    """`judge` or `judge_lse`, by the output."""
    return judge(value, ref, gate or NO_GATE) if output is OUT else judge_lse(value, ref)


def expected(output: Output, ref: Reference) -> np.ndarray:
    """The right value of an output, float64."""
    return ref.out if output is OUT else ref.lse


def compare(value: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Compare arrays of one shape, float64; `allowed` is positive. A NaN passes nowhere, an infinity only
    where it is expected.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(value == expected, 0.0, np.abs(value - expected))
        error = np.where(np.isnan(error), np.inf, error)
        share = error / allowed  # allowed is positive everywhere
    where = np.unravel_index(share.argmax(), share.shape)
    wrong = ~(error <= allowed)
    margin = math.inf if share[where] == 0 else float(1 / share[where])
    return Verdict(
        passed=not wrong.any(),
        error=float(error[where]),
        bound=float(allowed[where]),
        margin=margin,
        where=_index(where),
        reason="" if not wrong.any() else _why(value, wrong),
        wrong=wrong,
    )


def _why(value: np.ndarray, wrong: np.ndarray) -> str:
    nans = int(np.isnan(value).sum())
    if nans:
        return f"{nans} of {value.size} elements are NaN"
    return f"{int(wrong.sum())} of {value.size} elements are beyond the bound"


def _index(where: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(i) for i in where)
