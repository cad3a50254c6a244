"""Attention with dropout and its gradients in NumPy: in float64, and as rounding P and dS makes them.

With M the mask times 1 / (1 - p), P = softmax(scores) and D = rowsum(dO * O) - dLSE:

    O = (P * M) V,  dV = (P * M)^T dO,  dP = (dO V^T) * M,  dS = P * (dP - D),  dQ, dK as without dropout

rowsum(P * dP) = rowsum(dO * O), so D needs no mask of its own.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.backward import oracle as backward
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.dropout.inputs import DropoutInputs
from flashcore_numba.core import oracle
from flashcore_numba.core.element import of
from flashcore_numba.core.features import OFF

Stored = Callable[[np.ndarray], np.ndarray]


class Weights(NamedTuple):
    """Of rows of a query head. p, factors: [rows, keys], the softmax and what dropout multiplies it by; lse:
    [rows], -inf where nothing is seen.
    """

    head: oracle.Head
    p: np.ndarray
    factors: np.ndarray
    lse: np.ndarray


def weights(x: DropoutInputs, number: Any = np.float64, stored: Stored = lambda x: x) -> Iterator[Weights]:
    """A head at a time, a large one in pieces; number: the type of the arithmetic; stored: what becomes of
    scores where they are stored.
    """
    for head in oracle.heads_of(x.q, x.k, x.v, x.causal, x.scale, None, OFF, number):
        yield _weights_of(x, head, stored)


def _weights_of(x: DropoutInputs, head: oracle.Head, stored: Stored) -> Weights:
    number = head.q.dtype.type
    scores = np.where(head.seen, head.scores(stored), -np.inf)
    row_max = scores.max(axis=1, initial=-np.inf, keepdims=True)
    p = np.exp(scores - np.where(np.isneginf(row_max), number(0), row_max))
    total = p.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (row_max + np.log(total))[:, 0]
    return Weights(head, p / np.where(total > 0, total, 1), factors(x, head).astype(number), lse)


def factors(x: Any, head: oracle.Head) -> np.ndarray:
    """0 for what is dropped and 1 / (1 - p) for what is kept, float64 [rows, keys]."""
    (batch, h, rows), keys = head.place, head.kv_place[2]
    at = x.first[0] + batch, x.first[1] + h
    kept = x.dropout.kept(*at, range(rows.start, rows.stop), range(keys.start, keys.stop))
    return np.where(kept, x.dropout.factor, 0.0)


def attention(x: DropoutInputs) -> tuple[np.ndarray, np.ndarray]:
    """The output and the LSE, of all scores, float64; heads side by side, in threads."""
    out, lse = np.zeros((*x.q.shape[:3], x.v.shape[3])), np.zeros(x.q.shape[:3])

    def fill(head: oracle.Head) -> None:
        each = _weights_of(x, head, lambda x: x)
        out[head.place] = (each.p * each.factors) @ head.v
        lse[head.place] = each.lse

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, oracle.heads_of(x.q, x.k, x.v, x.causal, x.scale, None, OFF, np.float64)))
    return out, lse


def standard_attention(x: DropoutInputs) -> np.ndarray:
    """The output of textbook attention that works in float32 and stores S and P in q's type."""
    element = of(x.q.dtype)
    out = np.zeros((*x.q.shape[:3], x.v.shape[3]), np.float32)

    def stored(values: np.ndarray) -> np.ndarray:
        return element.round(values).astype(np.float32)

    for each in weights(x, np.float32, stored):
        p = stored(each.p) * (each.factors > 0)
        out[each.head.place] = np.float32(x.dropout.factor) * (p @ each.head.v)
    return element.round(out).astype(np.float64)


def of_heads(
    x: BackwardInputs, number: Any = np.float64
) -> Iterator[tuple[backward.HeadGradients, np.ndarray]]:
    """What the backward pass has of each head, with dP and dS as dropout makes them, and the factors."""
    for each in backward.of_heads(x, number):
        times = factors(x.forward, each.head).astype(number)
        dp = each.dp * times
        yield each._replace(dp=dp, ds=each.p * (dp - each.delta[:, None])), times


def gradients(
    x: BackwardInputs, number: Any = np.float64, stored: Stored = lambda x: x
) -> backward.Gradients:
    """dQ, dK and dV; stored: what becomes of P and dS where they are stored."""
    f = x.forward
    found = backward.Gradients(*(np.zeros(array.shape) for array in (f.q, f.k, f.v)))
    for each, times in of_heads(x, number):
        head, p, ds = each.head, stored(each.p) * times, stored(each.ds)
        found.dq[head.place] += number(head.scale) * (ds @ head.k)
        found.dk[head.kv_place] += number(head.scale) * (ds.T @ head.q)
        found.dv[head.kv_place] += p.T @ each.dout
    return found


def standard_gradients(x: BackwardInputs) -> backward.Gradients:
    """What a kernel makes that works in float32 and rounds P, dS and the results to q's type."""
    element = of(x.forward.q.dtype)

    def stored(values: np.ndarray) -> np.ndarray:
        return element.round(values).astype(np.float32)

    found = gradients(x, np.float32, stored)
    return backward.Gradients(*(element.round(each).astype(np.float64) for each in found))


def backward_inputs(x: DropoutInputs, rng: np.random.Generator, dlse: bool = False) -> BackwardInputs:
    """The output and the LSE of `x`, right to float32's rounding at the least, and normal gradients."""
    element = of(x.q.dtype)
    out, lse = attention(x)
    dout = element.round(rng.standard_normal(out.shape, np.float32))
    grad = rng.standard_normal(lse.shape).astype(np.float32) if dlse else None
    return BackwardInputs(x, element.round(out), lse.astype(np.float32), dout, grad)
