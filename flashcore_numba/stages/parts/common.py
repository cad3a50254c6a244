"""Device functions that several stages share."""

from numba import cuda, float32

from flashcore_numba.wide import load8, store4, store8

ALL_LANES = 0xFFFFFFFF
PAD = 4  # floats after each row of a tile: rows stay 16-byte aligned and start in different banks


@cuda.jit(device=True)
def load_row(row, rmem, factor):
    """`rmem[:] = factor * row`: a float16 row of global memory into float32 registers, 16 bytes per load."""
    for c in range(0, rmem.shape[0], 8):
        part = load8(row, c)
        for e in range(8):
            rmem[c + e] = factor * part[e]


@cuda.jit(device=True)
def store_row(row, rmem, factor):
    """`row[:] = factor * rmem`, rounded to float16, 16 bytes per store."""
    for c in range(0, rmem.shape[0], 8):
        x0, x1, x2, x3 = rmem[c] * factor, rmem[c + 1] * factor, rmem[c + 2] * factor, rmem[c + 3] * factor
        x4, x5, x6, x7 = (
            rmem[c + 4] * factor,
            rmem[c + 5] * factor,
            rmem[c + 6] * factor,
            rmem[c + 7] * factor,
        )
        store8(row, c, x0, x1, x2, x3, x4, x5, x6, x7)


@cuda.jit(device=True)
def load_tile(source, first, tile, thread, threads):
    """Rows `first`, `first + 1`, ... of `source` [S, D] float16 into the shared `tile` [rows, D + PAD]
    float32.

    All `threads` threads of a block take part. Rows past the end become zeros: whatever shared memory held
    before could be NaN, and 0 * NaN would poison a sum that a zero weight should leave alone.
    """
    chunks = (tile.shape[1] - PAD) // 8
    total = tile.shape[0] * chunks
    whole = first + tile.shape[0] <= source.shape[0]
    zero = float32(0)
    for turn in range(-(-total // threads)):
        n = turn * threads + thread
        # Four lanes take one row and four the next, so that eight stores of 16 bytes meet in no bank.
        row, c = n // (2 * chunks) * 2 + n // 4 % 2, (n % 4 + n // 8 * 4 % chunks) * 8
        if total % threads == 0 or n < total:
            if whole or first + row < source.shape[0]:
                x0, x1, x2, x3, x4, x5, x6, x7 = load8(source, (first + row, c))
                store4(tile, (row, c), x0, x1, x2, x3)
                store4(tile, (row, c + 4), x4, x5, x6, x7)
            else:
                store4(tile, (row, c), zero, zero, zero, zero)
                store4(tile, (row, c + 4), zero, zero, zero, zero)


@cuda.jit(device=True)
def fma4(total, a, b):
    """`total + a . b` for four components each, as four fused multiply-adds."""
    total += a[0] * b[0]
    total += a[1] * b[1]
    total += a[2] * b[2]
    total += a[3] * b[3]
    return total


@cuda.jit(device=True)
def warp_sum(value):
    """The sum of `value` over the 32 lanes, in every lane: a butterfly of five shuffles."""
    offset = 16
    while offset > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, offset)
        offset //= 2
    return value


@cuda.jit(device=True)
def warp_max(value):
    """The maximum of `value` over the 32 lanes, in every lane."""
    offset = 16
    while offset > 0:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, offset))
        offset //= 2
    return value
