"""What a query row sees, for the kernels in Numba: `core.mask` on the device."""

from numba import cuda


@cuda.jit(device=True)
def interval(row, seq_q, seq_k, causal):
    """(begin, end): query row `row` sees the keys from `begin` on and before `end`.

    The causal mask is aligned bottom-right: the last query row sees every key. With more rows than keys the
    first rows see none.
    """
    return 0, max(0, min(seq_k, row + 1 + seq_k - seq_q)) if causal else seq_k


@cuda.jit(device=True)
def diagonal(row, seq_q, seq_k):
    """The key at a row's place on the diagonal, which ends at the last row and key; negative before key 0."""
    return row + seq_k - seq_q


@cuda.jit(device=True)
def window_end(row, seq_q, seq_k, right):
    """The end of a window with `right` keys after the row's place on the diagonal; -1 is unbounded."""
    return max(0, min(seq_k, diagonal(row, seq_q, seq_k) + right + 1)) if right >= 0 else seq_k


@cuda.jit(device=True)
def before_window(distance, left):
    """Whether a key is hidden that lies `distance` before the row's place on the diagonal; -1 hides none."""
    return 0 <= left < distance


@cuda.jit(device=True)
def band(row, seq_q, seq_k, left, right):
    """(begin, end): what query row `row` sees of the keys where `core.mask.Mask` has these bounds.

    Rows and keys exchanged, `band(key, seq_k, seq_q, right, left)` are the query rows that see a key.
    """
    place = diagonal(row, seq_q, seq_k)
    begin = max(0, min(seq_k, place - left)) if left >= 0 else 0
    return begin, window_end(row, seq_q, seq_k, right)
