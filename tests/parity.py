"""How far apart two outputs are that should differ by rounding alone."""

import numpy as np

from flashcore_numba.core import oracle

__all__ = ["agree", "apart"]


def apart(out: np.ndarray, other: np.ndarray, q, k, v, causal: bool) -> np.ndarray:
    """The distance of two outputs [B, H, S_q, D], each element in fp16 ulps at the size of what it sums.

    An output is a sum of weights times v, and a weight beside a rounding boundary of fp16 falls on either
    side of it when it was computed in another order. That moves the sum by a part of an ulp of its terms,
    also where the terms cancel to almost nothing. So the ulp is that of attention(q, k, |v|), the same terms
    without their signs. A NaN is infinitely far from everything.
    """
    size, _ = oracle.attention(q, k, np.abs(v), causal)
    ulp = np.spacing(size.astype(np.float16)).astype(np.float64)
    distance = np.abs(out.astype(np.float64) - other.astype(np.float64)) / ulp
    return np.where(np.isnan(distance), np.inf, distance)


def agree(distance: np.ndarray) -> bool:
    """One ulp, from the rounding of the outputs themselves; a second one where, in a row of few keys, a
    weight has fallen on the other side: one element of a thousand at most.
    """
    return distance.max() <= 2 and (distance > 1).mean() <= 1e-3
