"""What the gradients of attention are, in NumPy: the float64 answer, and what rounding P and dS makes of it.

With P = exp(scores - LSE) and D = rowsum(dO * O) - dLSE:

    dV = P^T dO,  dP = dO V^T,  dS = P * (dP - D),  dQ = scale * dS K,  dK = scale * dS^T Q

(Dao et al. 2022, FlashAttention, appendix B.2). P comes from the LSE, not from a softmax made again, and D
from O, because the rows of P * dP sum to it. A softcap's derivative is a factor of dS.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.core import oracle
from flashcore_numba.core.element import of

Stored = Callable[[np.ndarray], np.ndarray]


class Gradients(NamedTuple):
    """dq, dk, dv: float64, of the shapes of q, k and v; 0 where nothing is seen."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


class HeadGradients(NamedTuple):
    """What `head` has of a query head. p, dp, ds: [rows, keys]; delta: [rows]. ds is without the scale."""

    head: oracle.Head
    dout: np.ndarray
    p: np.ndarray
    dp: np.ndarray
    delta: np.ndarray
    ds: np.ndarray
    scores: np.ndarray


def of_heads(x: BackwardInputs, number: Any = np.float64) -> Iterator[HeadGradients]:
    """A head at a time, a large one in pieces; number: the type of the arithmetic."""
    f = x.forward
    for head in oracle.heads_of(f.q, f.k, f.v, f.causal, f.scale, None, f.features, number):
        out, dout, lse = (array[head.place].astype(number) for array in (x.out, x.dout, x.lse))
        delta = (dout * out).sum(axis=1)
        if x.dlse is not None:
            delta -= x.dlse[head.place].astype(number)
        scores = head.scores(lambda x: x)
        some = head.seen & np.isfinite(lse)[:, None]
        p = np.zeros_like(scores)
        p[some] = np.exp((scores - np.where(np.isfinite(lse), lse, 0)[:, None])[some])
        dp = dout @ head.v.T
        ds = p * (dp - delta[:, None])
        if head.softcap:
            ds *= 1 - head.capped(number(head.scale) * (head.q @ head.k.T)) ** 2
        yield HeadGradients(head, dout, p, dp, delta, ds, scores)


def gradients(x: BackwardInputs, number: Any = np.float64, stored: Stored = lambda x: x) -> Gradients:
    """dQ, dK and dV; stored: what becomes of P and dS where they are stored."""
    f = x.forward
    found = Gradients(*(np.zeros(array.shape) for array in (f.q, f.k, f.v)))
    for each in of_heads(x, number):
        head, p, ds = each.head, stored(each.p), stored(each.ds)
        found.dq[head.place] += number(head.scale) * (ds @ head.k)
        found.dk[head.kv_place] += number(head.scale) * (ds.T @ head.q)
        found.dv[head.kv_place] += p.T @ each.dout
    return found


def standard_gradients(x: BackwardInputs) -> Gradients:
    """What a kernel makes that works in float32 and rounds P, dS and the results to q's type."""
    element = of(x.forward.q.dtype)

    def stored(values: np.ndarray) -> np.ndarray:
        return element.round(values).astype(np.float32)

    return Gradients(*(element.round(each).astype(np.float64) for each in gradients(x, np.float32, stored)))
