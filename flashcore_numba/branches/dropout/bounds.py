"""How wrong an answer with dropout may be: as `checks.bounds` and `branches.backward.bounds` have it.

The mask is part of the question, so it is the same in every right answer, to the bit. Both bounds keep their
form, with M the mask times 1 / (1 - p), and `standard` takes the same mask:

- O: sums over keys of p_j |v_j| become sums of p_j M_j |v_j|, and the factor 1 / (1 - p) costs two more u.
- Where few keys are kept, chance may have `standard` round their P to nearly what they are, and all of them
  may be subnormal in q's type. So the floor has what rounding P loses: the root of the sum over j of
  (e_j v_jc)^2, as errors of the p_j are independent. e_j is (r p_j + min(p_j, s / 2)) M_j, where r is the
  type's roundoff and s its least number. dV has the same, over rows.
- The factor may take O beyond the type, where an infinity is right. Those of `standard` are no error.
- dS = P * (dP * M - D): what dP loses counts times M, what D and P lose does not, and dV has P * M for P.
"""

import math

import numpy as np

from flashcore_numba.branches.backward import bounds as backward
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.backward.oracle import Gradients
from flashcore_numba.branches.dropout import oracle
from flashcore_numba.branches.dropout.inputs import DropoutInputs
from flashcore_numba.checks.bounds import Reference, U, rounds_to_infinity, weight_error
from flashcore_numba.core.element import Element, of
from flashcore_numba.core.features import OFF


def reference(x: DropoutInputs) -> Reference:
    """The float64 output and LSE and the bounds."""
    scale = 1 / math.sqrt(x.q.shape[3]) if x.scale is None else x.scale
    element, keys = of(x.q.dtype), x.k.shape[2]
    out, lse = np.zeros((*x.q.shape[:3], x.v.shape[3])), np.zeros(x.q.shape[:3])
    magnitude, lost = np.zeros_like(out), np.zeros_like(out)
    for each in oracle.weights(x):
        dropped = each.p * each.factors
        out[each.head.place] = dropped @ each.head.v
        magnitude[each.head.place] = dropped @ np.abs(each.head.v)
        lost[each.head.place] = np.sqrt(_rounded(each.p, each.factors, element) ** 2 @ each.head.v**2)
        lse[each.head.place] = each.lse
    p_error = weight_error(x.q, x.k, x.causal, scale, OFF)
    work = (2 * p_error + U * (4 * keys + 4))[..., None] * magnitude
    floor = element.unit_roundoff * np.abs(out) + element.least / 2 + work + lost
    standard = oracle.standard_attention(x)
    row_error = np.abs(np.where(np.isinf(standard), out, standard) - out).max(axis=3, keepdims=True)
    lse_floor = p_error + U * (2 * keys + 4) + U * np.abs(np.where(np.isfinite(lse), lse, 0))
    least_infinite = rounds_to_infinity(element) if x.dropout.on else math.inf
    return Reference(out, 2 * (row_error + floor), lse, 2 * lse_floor, least_infinite=least_infinite)


def _rounded(p: np.ndarray, factors: np.ndarray, element: Element) -> np.ndarray:
    """What rounding P to q's type may change of each p M."""
    return (element.unit_roundoff * p + np.minimum(p, element.least / 2)) * factors


def gradient_reference(x: BackwardInputs) -> backward.Reference:
    """The float64 gradients and the bounds."""
    right, standard = oracle.gradients(x), oracle.standard_gradients(x)
    element = of(x.forward.q.dtype)
    allowed = []
    for exact, rounded, work in zip(right, standard, _float32_work(x), strict=True):
        row_error = np.abs(rounded - exact).max(axis=3, keepdims=True)
        floor = element.unit_roundoff * np.abs(exact) + element.least / 2 + work
        allowed.append(2 * (row_error + floor))
    return backward.Reference(right, Gradients(*allowed))


def _float32_work(x: BackwardInputs) -> Gradients:
    """What float32 arithmetic may lose of each gradient."""
    f = x.forward
    work = Gradients(*(np.zeros(array.shape) for array in (f.q, f.k, f.v)))
    dv_lost = np.zeros_like(work.dv)
    scale = 1 / math.sqrt(f.q.shape[3]) if f.scale is None else f.scale
    relative = weight_error(f.q, f.k, f.causal, scale, OFF)
    relative += 4 * U * np.where(np.isfinite(x.lse), np.abs(x.lse), 0)
    for each, times in oracle.of_heads(x):
        head, rows, keys = each.head, each.head.mask.seq_q, each.head.mask.seq_k
        by_row = np.abs(each.dout * x.out[head.place].astype(np.float64)).sum(axis=1)
        if x.dlse is not None:
            by_row += np.abs(x.dlse[head.place])
        lengths = np.linalg.norm(each.dout, axis=1)[:, None] * np.linalg.norm(head.v, axis=1) * times
        difference = np.abs(each.dp - each.delta[:, None])
        e = relative[head.place][:, None]
        ds = each.p * (e * difference + U * (head.v.shape[1] + 5) * (lengths + by_row[:, None]))
        ds += backward.FLUSHED * (1 + difference) * (each.p > 0)
        size = np.abs(each.ds)
        work.dq[head.place] += abs(scale) * ((ds + 2 * keys * U * size) @ np.abs(head.k))
        work.dk[head.kv_place] += abs(scale) * ((ds + 2 * rows * U * size).T @ np.abs(head.q))
        p = (each.p * (e + U * (2 * rows + 2)) + backward.FLUSHED * (each.p > 0)) * times
        work.dv[head.kv_place] += p.T @ np.abs(each.dout)
        dv_lost[head.kv_place] += (_rounded(each.p, times, of(f.q.dtype)) ** 2).T @ each.dout**2
    work.dv[...] += np.sqrt(dv_lost)
    return work
