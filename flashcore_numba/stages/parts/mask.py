"""What a query row sees, for the kernels in Numba: `core.mask` on the device."""

from numba import cuda


@cuda.jit(device=True)
def interval(row, seq_q, seq_k, causal):
    """(begin, end): query row `row` sees the keys from `begin` on and before `end`.

    The causal mask is aligned bottom-right: the last query row sees every key. With more rows than keys the
    first rows see none.
    """
    return 0, max(0, min(seq_k, row + 1 + seq_k - seq_q)) if causal else seq_k
