"""What attention is, in NumPy: the float64 answer, and what textbook float16 arithmetic makes of it."""

import math

import numpy as np


def visible(seq_q: int, seq_k: int) -> np.ndarray:
    """The causal mask, bool [S_q, S_k], aligned bottom-right: row i sees key j when j <= i + S_k - S_q."""
    return np.arange(seq_k) <= np.arange(seq_q)[:, None] + (seq_k - seq_q)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scale * Q K^T) V and the log-sum-exp of the scaled scores (natural logarithm), in float64.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D] with H a multiple of H_kv, any float type. Returns out
    float64 [B, H, S_q, D] and LSE float64 [B, H, S_q]. A row that sees no key: out 0, LSE -inf.
    """
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, q_head, k_head, v_head, mask in _heads(q, k, v, causal, np.float64):
        scores = np.where(mask, _scale(q, scale) * (q_head @ k_head.T), -np.inf)
        row_max = scores.max(axis=1, initial=-np.inf, keepdims=True)
        p = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max))
        row_sum = p.sum(axis=1, keepdims=True)
        some = row_sum[:, 0] > 0
        out[b, h, some] = (p[some] / row_sum[some]) @ v_head
        lse[b, h, some] = row_max[some, 0] + np.log(row_sum[some, 0])
        _spread_nan(row_sum, out[b, h], lse[b, h])
    return out, lse


def standard_fp16_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False, scale: float | None = None
) -> np.ndarray:
    """Textbook attention that stores S and P in float16; float16 [B, H, S_q, D].

    Products accumulate in float32; the scaled scores are rounded to float16, the softmax runs in float32 and
    is rounded to float16, and so is the output (the "standard attention" of Dao et al. 2022, FlashAttention,
    algorithm 0). Error bounds are set by it. Arguments as `attention`.
    """
    out = np.zeros(q.shape, np.float16)
    for b, h, q_head, k_head, v_head, mask in _heads(q, k, v, causal, np.float32):
        with np.errstate(over="ignore"):
            scores = (
                (np.float32(_scale(q, scale)) * (q_head @ k_head.T)).astype(np.float16).astype(np.float32)
            )
        # A score beyond float16 becomes infinite; the largest float16 keeps the softmax defined.
        limit = float(np.finfo(np.float16).max)
        scores = np.where(mask, np.clip(scores, -limit, limit), -np.inf)
        row_max = scores.max(axis=1, initial=-np.inf, keepdims=True)
        p = np.exp(scores - np.where(np.isneginf(row_max), np.float32(0), row_max))
        row_sum = p.sum(axis=1, keepdims=True)
        some = row_sum[:, 0] > 0
        p16 = (p[some] / row_sum[some]).astype(np.float16).astype(np.float32)
        out[b, h, some] = (p16 @ v_head).astype(np.float16)
        _spread_nan(row_sum, out[b, h])
    return out


def _heads(q, k, v, causal, dtype):
    """One head at a time, so that the scores of a large problem never exist all at once."""
    batch, heads, seq_q, _ = q.shape
    kv_heads, seq_k = k.shape[1:3]
    mask = visible(seq_q, seq_k) if causal else np.ones((seq_q, seq_k), bool)
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            yield b, h, q[b, h].astype(dtype), k[b, kv].astype(dtype), v[b, kv].astype(dtype), mask


def _scale(q, scale):
    return 1 / math.sqrt(q.shape[3]) if scale is None else scale


def _spread_nan(row_sum, *results):
    """`row_sum > 0` is false for NaN: such rows must not pass for rows without keys."""
    for result in results:
        result[np.isnan(row_sum[:, 0])] = np.nan
