"""What attention is, in NumPy: the float64 answer, and what textbook arithmetic in q's type makes of it."""

import math
from collections.abc import Iterator

import numpy as np

from flashcore_numba.core.element import of
from flashcore_numba.core.mask import UNBOUNDED, Mask


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    seen: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scale * Q K^T) V and the log-sum-exp of the scaled scores (natural logarithm), in float64.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D] with H a multiple of H_kv, any float type. Returns out
    float64 [B, H, S_q, D] and LSE float64 [B, H, S_q]. A row that sees no key: out 0, LSE -inf.
    seen: any mask, bool [S_q, S_k], in place of that which `causal` chooses.
    """
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, q_head, k_head, v_head, mask in _heads(q, k, v, causal, seen, np.float64):
        scores = np.where(mask, _scale(q, scale) * (q_head @ k_head.T), -np.inf)
        row_max = scores.max(axis=1, initial=-np.inf, keepdims=True)
        p = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max))
        row_sum = p.sum(axis=1, keepdims=True)
        some = row_sum[:, 0] > 0
        out[b, h, some] = (p[some] / row_sum[some]) @ v_head
        lse[b, h, some] = row_max[some, 0] + np.log(row_sum[some, 0])
        _spread_nan(row_sum, out[b, h], lse[b, h])
    return out, lse


def standard_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    seen: np.ndarray | None = None,
) -> np.ndarray:
    """Textbook attention that stores S and P in the type of q; out [B, H, S_q, D] in that type.

    Products accumulate in float32; the scaled scores are rounded to q's type, the softmax runs in float32 and
    is rounded to it, and so is the output (the "standard attention" of Dao et al. 2022, FlashAttention,
    algorithm 0). Error bounds are set by it. Arguments as `attention`.
    """
    element = of(q.dtype)
    out = np.zeros(q.shape, element.dtype)
    for b, h, q_head, k_head, v_head, mask in _heads(q, k, v, causal, seen, np.float32):
        scores = element.round(np.float32(_scale(q, scale)) * (q_head @ k_head.T)).astype(np.float32)
        # A score beyond the type becomes infinite; its largest number keeps the softmax defined.
        scores = np.where(mask, np.clip(scores, -element.largest, element.largest), -np.inf)
        row_max = scores.max(axis=1, initial=-np.inf, keepdims=True)
        p = np.exp(scores - np.where(np.isneginf(row_max), np.float32(0), row_max))
        row_sum = p.sum(axis=1, keepdims=True)
        some = row_sum[:, 0] > 0
        weights = element.round(p[some] / row_sum[some]).astype(np.float32)
        out[b, h, some] = (weights @ v_head).astype(element.dtype)
        _spread_nan(row_sum, out[b, h])
    return out


def _heads(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, seen: np.ndarray | None, dtype: type
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """One head at a time, so that the scores of a large problem never exist all at once."""
    batch, heads, seq_q, _ = q.shape
    kv_heads, seq_k = k.shape[1:3]
    mask = Mask(seq_q, seq_k, right=0 if causal else UNBOUNDED).matrix() if seen is None else seen
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            yield b, h, q[b, h].astype(dtype), k[b, kv].astype(dtype), v[b, kv].astype(dtype), mask


def _scale(q: np.ndarray, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[3]) if scale is None else scale


def _spread_nan(row_sum: np.ndarray, *results: np.ndarray) -> None:
    """`row_sum > 0` is false for NaN: such rows must not pass for rows without keys."""
    for result in results:
        result[np.isnan(row_sum[:, 0])] = np.nan
