"""What attention is, in NumPy: the float64 answer, and what textbook arithmetic in q's type makes of it."""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.core.element import of
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.mask import Mask

# (query row, key) pairs of a head that are worked on at once: a matrix of more than 32 MiB leaves the caches
MOST_PAIRS = 2**22


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    seen: np.ndarray | None = None,
    features: Features = OFF,
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scale * Q K^T) V and the log-sum-exp of the scaled scores (natural logarithm), in float64.

    q: [B, H, S_q, D], k: [B, H_kv, S_k, D], v: [B, H_kv, S_k, D_v] with H a multiple of H_kv, any float type.
    Returns out float64 [B, H, S_q, D_v] and LSE float64 [B, H, S_q]. A row that sees no key: out 0, LSE -inf,
    or the sink. seen: any mask, bool [S_q, S_k], in place of that which `causal` and `features` choose.
    What comes after attention, norm and gate, is in out.
    """
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)

    def fill(head: Head) -> None:
        scores = np.where(head.seen, head.scores(lambda x: x), -np.inf)
        row_max = scores.max(axis=1, initial=head.sink, keepdims=True)
        reference = np.where(np.isneginf(row_max), 0, row_max)
        p = np.exp(scores - reference)
        row_sum = p.sum(axis=1, keepdims=True) + np.exp(head.sink - reference)
        some = row_sum[:, 0] > 0
        out_head, lse_head = out[head.place], lse[head.place]  # views
        out_head[some] = (p[some] / row_sum[some]) @ head.v
        lse_head[some] = row_max[some, 0] + np.log(row_sum[some, 0])
        _spread_nan(row_sum, out_head, lse_head)

    _side_by_side(fill, heads_of(q, k, v, causal, scale, seen, features, np.float64))
    out, lse = merged_with_prior(out, lse, features)
    return gated(normed(out, features), features), lse


def normed(out: np.ndarray, features: Features) -> np.ndarray:
    """out [B, H, S_q, D_v] with the norm of `features`, in float64; without one as it is."""
    if features.norm_weight is None:
        return out
    weight = features.norm_weight.astype(np.float64)
    weight = weight if weight.ndim == 1 else weight[None, :, None, :]
    return (
        out / np.sqrt((out.astype(np.float64) ** 2).mean(axis=3, keepdims=True) + features.norm_eps) * weight
    )


def gated(out: np.ndarray, features: Features) -> np.ndarray:
    """out [B, H, S_q, D_v] times the sigmoid of the gate of `features`; without one as it is."""
    return out if features.gate is None else out * sigmoid(features.gate)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), float64, right to a few roundings also where it is next to 0."""
    return np.exp(-np.logaddexp(0, -x.astype(np.float64)))


def merged_with_prior(out: np.ndarray, lse: np.ndarray, features: Features) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse) and what `features` says was computed before, over other keys, as one, in float64; without
    that as they are.
    """
    if features.prior_out is None or features.prior_lse is None:
        return out, lse
    now, before = weights(lse, features.prior_lse)
    seen = before[..., None] > 0
    prior = before[..., None] * np.where(seen, features.prior_out.astype(np.float64), 0)
    with np.errstate(divide="ignore"):
        return now[..., None] * out + prior, np.logaddexp(lse, features.prior_lse.astype(np.float64))


def weights(lse: np.ndarray, prior_lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shares of two results over different keys by their LSE, float64; both 0 where no key was seen."""
    both = np.stack([lse, prior_lse]).astype(np.float64)
    greatest = both.max(axis=0)
    powers = np.exp(both - np.where(np.isneginf(greatest), 0, greatest))
    total = powers.sum(axis=0)
    now, before = powers / np.where(total == 0, 1, total)
    return now, before


def standard_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    seen: np.ndarray | None = None,
    features: Features = OFF,
) -> np.ndarray:
    """Textbook attention that stores S and P in the type of q; out [B, H, S_q, D_v] in that type, or float32
    where the output is.

    Products accumulate in float32; the scaled scores are rounded to q's type, and again after a softcap and
    after ALiBi; the softmax runs in float32 and is rounded to it, and so is the output (the "standard
    attention" of Dao et al. 2022, FlashAttention, algorithm 0). What was computed before is merged with it in
    float64, before that rounding, and norm and gate follow in float64. Error bounds are set by it. Arguments
    as `attention`.
    """
    element = of(q.dtype)
    # Nothing is rounded before the last step.
    exact = features.float32_out or features.prior_out is not None or bool(features.epilogue)
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32 if exact else element.dtype)
    lse = np.full(q.shape[:3], -np.inf, np.float32)

    def stored(scores: np.ndarray) -> np.ndarray:
        """A score beyond the type becomes infinite; its largest number keeps the softmax defined."""
        rounded = element.round(scores).astype(np.float32)
        return np.clip(rounded, -element.largest, element.largest)

    def fill(head: Head) -> None:
        scores = np.where(head.seen, head.scores(stored), -np.inf)
        row_max = scores.max(axis=1, initial=head.sink, keepdims=True)
        reference = np.where(np.isneginf(row_max), np.float32(0), row_max)
        p = np.exp(scores - reference)
        row_sum = p.sum(axis=1, keepdims=True) + np.exp(head.sink - reference)
        some = row_sum[:, 0] > 0
        p_stored = element.round(p[some] / row_sum[some]).astype(np.float32)
        out_head, lse_head = out[head.place], lse[head.place]
        out_head[some] = (p_stored @ head.v).astype(out.dtype)
        lse_head[some] = row_max[some, 0] + np.log(row_sum[some, 0])
        _spread_nan(row_sum, out_head)

    _side_by_side(fill, heads_of(q, k, v, causal, scale, seen, features, np.float32))
    out = gated(normed(merged_with_prior(out, lse, features)[0], features), features)
    return out.astype(np.float32) if features.float32_out else element.round(out)


def _side_by_side(fill: Callable[["Head"], None], heads: Iterator["Head"]) -> None:
    """`fill` for each: heads in turn, pieces of a head in threads, as NumPy works without Python's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        begun = []
        for head in heads:
            if head.whole:
                fill(head)
            else:
                begun.append(pool.submit(fill, head))
        for each in begun:
            each.result()


class Head(NamedTuple):
    """Rows of a query head of one sequence and all keys that they see, in the type of the arithmetic: the
    whole head, or some rows where it is large.

    place: of the rows in q; kv_place: of the keys in k and v. distances: as `Mask` has them, where there is a
    slope. mask: of the whole head.
    """

    place: tuple
    kv_place: tuple
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    seen: np.ndarray
    scale: float
    softcap: float
    slope: float
    sink: float
    distances: np.ndarray | None
    mask: Mask

    @property
    def whole(self) -> bool:
        return len(self.q) == self.mask.seq_q

    def capped(self, scores: np.ndarray) -> np.ndarray:
        """tanh(x / c) of scaled scores x, where a softcap c is on."""
        return np.tanh(scores / scores.dtype.type(self.softcap))

    def scores(self, stored: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The scores before the mask; `stored`: what becomes of them wherever they are stored."""
        number = self.q.dtype.type
        scores = stored(number(self.scale) * (self.q @ self.k.T))
        if self.softcap:
            scores = stored(number(self.softcap) * self.capped(scores))
        if self.distances is not None:
            scores = stored(scores - number(self.slope) * self.distances.astype(number))
        return scores


def heads_of(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool,
    scale: float | None,
    seen: np.ndarray | None,
    features: Features,
    dtype: Any,
) -> Iterator[Head]:
    """A piece of a head at a time, so that the scores of a large problem never exist all at once."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    sinks = np.full(heads, -np.inf) if features.sinks is None else features.sinks
    for each in features.sequences(q, k, causal):
        slopes = features.slopes(each.number, heads)
        pieces = [
            (rows, keys, each.mask.matrix(rows, keys) if seen is None else seen)
            for rows, keys in _pieces(each.mask, whole=seen is not None)
        ]
        for h in range(heads):
            at, kv_at = (each.batch, h, each.rows), (each.batch, h // group, each.keys)
            q_head, k_head, v_head = q[at].astype(dtype), k[kv_at].astype(dtype), v[kv_at].astype(dtype)
            slope, sink = dtype(slopes[h]), dtype(sinks[h])
            for rows, keys, shown in pieces:
                some, some_keys = slice(rows.start, rows.stop), slice(keys.start, keys.stop)
                yield Head(
                    place=(*at[:2], _within(each.rows, rows)),
                    kv_place=(*kv_at[:2], _within(each.keys, keys)),
                    q=q_head[some],
                    k=k_head[some_keys],
                    v=v_head[some_keys],
                    seen=shown,
                    scale=1 / math.sqrt(q.shape[3]) if scale is None else scale,
                    softcap=features.softcap,
                    slope=slope,
                    sink=sink,
                    distances=each.mask.distances(rows, keys) if slope else None,
                    mask=each.mask,
                )


def _pieces(mask: Mask, whole: bool) -> Iterator[tuple[range, range]]:
    """(rows, keys): all at once, or some rows at a time and the keys from the first to the last they see."""
    step = max(1, mask.seq_q if whole else min(mask.seq_q, MOST_PAIRS // max(1, mask.seq_k)))
    for first in range(0, max(1, mask.seq_q), step):
        rows = range(first, min(first + step, mask.seq_q))
        if step >= mask.seq_q:
            yield rows, range(mask.seq_k)
        else:
            begin = mask.interval(rows[0])[0]
            yield rows, range(begin, max(begin, mask.interval(rows[-1])[1]))


def _within(place: slice, some: range) -> slice:
    return slice(place.start + some.start, place.start + some.stop)


def _spread_nan(row_sum: np.ndarray, *results: np.ndarray) -> None:
    """`row_sum > 0` is false for NaN: such rows must not pass for rows without keys."""
    for result in results:
        result[np.isnan(row_sum[:, 0])] = np.nan
