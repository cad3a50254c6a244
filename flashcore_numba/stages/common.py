"""Device functions that several stages share."""

from numba import cuda

__all__ = ["visible_keys"]


@cuda.jit(device=True)
def visible_keys(row, seq_q, seq_k, causal):
    """How many keys query row `row` sees: the first `visible_keys` of them.

    The causal mask is aligned bottom-right: the last query row sees every key. With more rows than keys the first
    rows see none.
    """
    return max(0, min(seq_k, row + 1 + seq_k - seq_q)) if causal else seq_k
