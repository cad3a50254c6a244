"""How wrong a gradient may be, as `checks.bounds` has it for the forward pass.

    |grad - ref| <= 2 * (max over the row of |standard - ref| + floor)

`ref` is float64, of the O and the LSE that are given; `standard` works in float32 and rounds P, dS and the
results to q's type; `floor` is what a correct kernel may lose in float32 and by one rounding of the result,
with u = 2^-24:

- p_ij is right to a relative e_i = u ((D + 8) A + 4 + 4 |LSE_i|), with A >= |scale| |q_i| |k_j| as there, and
  to 2^-126: GPUs' exponentials give 0 for what is subnormal in float32. So may dS_ij be.
- dP_ij and D_i are sums of D_v products: off by at most d_ij = u (D_v + 4) (|dO_i| |v_j| + sum |dO_i O_i| +
  |dLSE_i|).
- So dS_ij is off by (p_ij e_i + 2^-126) |dP_ij - D_i| + p_ij d_ij, and a sum over n keys or rows by 2 n u of
  its terms.

Another library goes back from an output of its own forward pass, in which it has rounded P and O to q's type,
with its unit roundoff v. Its O differs from the one given by at most o_ic = 2 v |O_ic| + (v + e_i) sum_j p_ij
|v_jc|, and with it D_i by sum_c |dO_ic| o_ic: p_ij times that is added to the error of dS_ij. Where few keys
are seen and one has most of the weight, dP - D is small, and this is most of what there is.
"""

import math
from dataclasses import dataclass

import numpy as np

from flashcore_numba.branches.backward import oracle
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.checks.bounds import TANH, U, compare, weight_error
from flashcore_numba.core.element import of
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import Output

FLUSHED = 2.0**-126  # the smallest normal number of float32


@dataclass(frozen=True)
class Reference:
    """The right gradients, and how far from them each element may be: both by the output's name.

    of_peers: the same for what goes back from an output of its own.
    """

    right: oracle.Gradients
    allowed: oracle.Gradients
    of_peers: "Reference | None" = None

    def of(self, output: Output) -> tuple[np.ndarray, np.ndarray]:
        """(right, allowed) of one output."""
        return getattr(self.right, output.name), getattr(self.allowed, output.name)


def reference(x: BackwardInputs) -> Reference:
    """The float64 gradients and the bounds."""
    right, standard = oracle.gradients(x), oracle.standard_gradients(x)
    element = of(x.forward.q.dtype)
    allowed, of_peers = [], []
    for exact, rounded, work, own in zip(right, standard, *_float32_work(x), strict=True):
        row_error = np.abs(rounded - exact).max(axis=3, keepdims=True)
        floor = element.unit_roundoff * np.abs(exact) + element.least / 2 + work
        allowed.append(2 * (row_error + floor))
        of_peers.append(2 * (row_error + floor + own))
    peers = Reference(right, oracle.Gradients(*of_peers))
    return Reference(right, oracle.Gradients(*allowed), peers)


def _float32_work(x: BackwardInputs) -> tuple[oracle.Gradients, oracle.Gradients]:
    """What float32 arithmetic may lose of each gradient, and what an output of a peer's own may change."""
    f, element = x.forward, of(x.forward.q.dtype)
    work, own = (oracle.Gradients(*(np.zeros(array.shape) for array in (f.q, f.k, f.v))) for _ in range(2))
    scale = 1 / math.sqrt(f.q.shape[3]) if f.scale is None else f.scale
    relative = weight_error(f.q, f.k, f.causal, scale, f.features)
    finite = np.where(np.isfinite(x.lse), np.abs(x.lse), 0).astype(np.float64)
    relative += 4 * U * finite
    for each in oracle.of_heads(x):
        head, rows, keys = each.head, each.head.mask.seq_q, each.head.mask.seq_k
        out = x.out[head.place].astype(np.float64)
        by_row = np.abs(each.dout * out).sum(axis=1)
        if x.dlse is not None:
            by_row += np.abs(x.dlse[head.place])
        lengths = np.linalg.norm(each.dout, axis=1)[:, None] * np.linalg.norm(head.v, axis=1)
        difference = np.abs(each.dp - each.delta[:, None])
        e = relative[head.place][:, None]
        ds = each.p * (e * difference + U * (head.v.shape[1] + 4) * (lengths + by_row[:, None]))
        ds += FLUSHED * (1 + difference) * (each.p > 0)
        if head.softcap:
            ds += 2 * TANH * each.p * difference
        size = np.abs(each.ds)
        work.dq[head.place] += abs(scale) * ((ds + 2 * keys * U * size) @ np.abs(head.k))
        work.dk[head.kv_place] += abs(scale) * ((ds + 2 * rows * U * size).T @ np.abs(head.q))
        work.dv[head.kv_place] += (each.p * (e + 2 * rows * U) + FLUSHED * (each.p > 0)).T @ np.abs(each.dout)
        rounding = element.unit_roundoff
        change = 2 * rounding * np.abs(out) + (rounding + e) * (each.p @ np.abs(head.v))
        ds = each.p * (np.abs(each.dout) * change).sum(axis=1)[:, None]
        own.dq[head.place] += abs(scale) * (ds @ np.abs(head.k))
        own.dk[head.kv_place] += abs(scale) * (ds.T @ np.abs(head.q))
    return work, own


def judge(output: Output, value: np.ndarray, ref: Reference, gate: None) -> Verdict:
    """Compare one gradient with its reference; a NaN or an infinity never passes."""
    return compare(np.asarray(value, np.float64), *ref.of(output))


def expected(output: Output, ref: Reference) -> np.ndarray:
    """The right value of an output, float64."""
    return ref.of(output)[0]
