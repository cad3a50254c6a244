"""What `fp8_quantise.cu` computes, in NumPy and to the bit: no float32 is rounded in another place."""

from typing import NamedTuple

import numpy as np

from flashcore_numba.branches.fp8.quantise import TILE, Quantised, tiles_of
from flashcore_numba.core.element import E4M3

LEAST = np.float32(2.0**-100)  # of a scale's largest number
LEAST_EXPONENT = -100  # of V
OF_ZEROS = -64  # the exponent of a tile of V without another number
COLUMNS = 16  # whose signs are the high half of one product
ORDER = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)  # of each 16 keys of V
_LARGEST = np.float32(E4M3.largest)


def quantised(q: np.ndarray, k: np.ndarray, v: np.ndarray, sign: float = 1.0) -> Quantised:
    """Of q [B, H, S_q, D] and k, v [B, H_kv, S_k, D]; sign: of the softmax's scale, 0 if that is 0."""
    q_rows, k_rows = transformed(q), transformed(k)
    q_largest = np.maximum(np.abs(q_rows).max(axis=3), LEAST)
    k_largest = np.maximum(np.abs(_tiles(k_rows)).max(axis=(3, 4)), LEAST)
    of_key = np.repeat(k_largest, TILE, axis=2)[:, :, : k.shape[2]]
    values = _tiles(v.astype(np.float32))
    largest = np.abs(values).max(axis=(3, 4))
    exponents = exponents_for(largest)
    whole = np.where(np.isinf(largest), np.float32(np.nan), np.float32(1))  # no byte is infinite
    scaled = values * (whole * np.float32(2) ** -exponents)[..., None, None]
    batch, heads, _, _, d = scaled.shape
    # [.., tile, 16 at a time, key, D] to [.., D, key]
    in_order = scaled.reshape(batch, heads, -1, len(ORDER), d)[:, :, :, ORDER]
    return Quantised(
        e4m3(q_rows * (np.float32(sign) * (_LARGEST / q_largest))[..., None]),
        e4m3(k_rows * (_LARGEST / of_key)[..., None]),
        e4m3(in_order.reshape(batch, heads, -1, d).swapaxes(2, 3)),
        q_largest / _LARGEST,
        k_largest / _LARGEST,
        exponents.astype(np.float32),
    )


class Dequantised(NamedTuple):
    """What the bytes stand for, float64: q [B, H, S_q, D] after its transform, times the softmax's scale, k
    [B, H_kv, S_k, D] after it, v as it was given; exponents: of each key's tile of V, [B, H_kv, S_k].
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    exponents: np.ndarray


def dequantised(x: Quantised, keys: int, scale: float) -> Dequantised:
    """keys: S_k. scale: of the softmax, whose sign the bytes of Q have."""
    d, tile = x.q.shape[3], np.arange(keys) // TILE
    q = x.q.astype(np.float64) * x.q_scales[..., None] * ((abs(scale) or 1.0) / d)
    k = x.k.astype(np.float64) * x.k_scales.astype(np.float64)[:, :, tile, None]
    exponents = x.v_exponents.astype(np.float64)[:, :, tile]
    stored = x.v.astype(np.float64).reshape(*x.v.shape[:3], -1, len(ORDER))
    in_order = np.empty_like(stored)
    in_order[..., ORDER] = stored
    v = in_order.reshape(x.v.shape).swapaxes(2, 3)[:, :, :keys]
    return Dequantised(q, k, v * np.exp2(exponents)[..., None], exponents)


def transformed(x: np.ndarray) -> np.ndarray:
    """Rows [.., D] times random-looking signs and a Hadamard matrix, not divided by sqrt(D); float32."""
    d = x.shape[-1]
    rows = x.astype(np.float32) * signs(d)
    bit = 1
    while bit < d:
        pairs = rows.reshape(*x.shape[:-1], d // (2 * bit), 2, bit)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([low + high, low - high], axis=-2).reshape(x.shape)
        bit *= 2
    return rows


def signs(d: int) -> np.ndarray:
    """1 or -1 for each column, float32 [D]."""
    part, i = np.divmod(np.arange(d, dtype=np.uint64), COLUMNS)
    bits = (0x9E3779B9 * (2 * part + 1) & 0xFFFFFFFF) >> 16
    return np.where(bits >> i & 1, np.float32(-1), np.float32(1))


def exponents_for(largest: np.ndarray) -> np.ndarray:
    """The least exponents e from -100 on with largest <= 448 * 2^e; `OF_ZEROS` where it is 0."""
    mantissa, exponent = np.frexp(largest)  # mantissa in [1/2, 1): 448 is 7/8 of 2^9
    found = np.where(np.isinf(largest), 120, exponent - 9 + (mantissa > np.float32(7 / 8)))
    return np.where(largest == 0, OF_ZEROS, np.maximum(found, LEAST_EXPONENT)).astype(np.float32)


def e4m3(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, 448 where it is beyond."""
    return E4M3.round(np.clip(x, -_LARGEST, _LARGEST))


def _tiles(rows: np.ndarray) -> np.ndarray:
    """Rows [B, H, S, D] as [B, H, tiles, TILE, D], zeros past S."""
    batch, heads, length, d = rows.shape
    found = np.zeros((batch, heads, tiles_of(length) * TILE, d), rows.dtype)
    found[:, :, :length] = rows
    return found.reshape(batch, heads, -1, TILE, d)
