"""The mask of a call, read out of what it returns."""

import math

import numpy as np

from flashcore_numba import attention_dropout
from flashcore_numba.branches.dropout.properties import D, options


def seen_by_a_call(shape, dropout, make=np.asarray, to_host=np.asarray):
    """bool [B, H, S_q, S_k]: equal scores, and a V of unit vectors for 64 keys at a time."""
    batch, heads, rows, keys = shape
    q, k = (make(np.zeros((batch, heads, n, D), np.float16)) for n in (rows, keys))
    found = []
    for first in range(0, keys, D):
        v = np.zeros((batch, heads, keys, D), np.float16)
        here = np.arange(first, min(first + D, keys))
        v[:, :, here, here - first] = 1
        out, lse = attention_dropout(q, k, make(v), **options(dropout))
        assert np.allclose(to_host(lse), math.log(keys), atol=1e-5)
        found.append(to_host(out)[..., : len(here)].astype(np.float64) * keys / dropout.factor)
    share = np.concatenate(found, axis=3)
    assert np.all((share == 0) | (np.abs(share - 1) < 0.01))
    return share > 0.5
