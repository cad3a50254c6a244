"""What stages 12 and 13 move alike, as `warp_rows.cuh` holds what their kernels do alike.

Nothing here meets a bank twice: the chunks of a row in shared memory are permuted for that. The formulas hold
for rows that are whole lines of 128 bytes; others begin anywhere in a line, and a copy takes passes for both.
"""

from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    ceil_div,
    loads,
    masks,
    sectors_apart,
)
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most

BANKS_WIDTH = 128  # bytes
CHUNKS_A_REQUEST = 32  # a lane moves a chunk of 16 bytes
LDMATRIX_WAVEFRONTS = 4  # 32 rows of 16 bytes, 8 at a time
Q_IN_REGISTERS = 128  # the greatest ROW_TILES * D for which the kernel keeps Q there


def rows_a_request(head_dim: int) -> int:
    """Rows of `head_dim` halves of which the 32 lanes of a warp move chunks at once."""
    return CHUNKS_A_REQUEST // _lanes_a_row(head_dim)


def requests_for_rows(rows: int, head_dim: int) -> int:
    """Requests that move so many whole rows."""
    passes = HALF * head_dim // 16 // _lanes_a_row(head_dim)
    return ceil_div(rows, rows_a_request(head_dim)) * passes


def _lanes_a_row(head_dim: int) -> int:
    """Lanes with a chunk each of the same row: all its chunks where they are a power of two, else 8.

    Raises ArgumentError for rows that are no whole lines.
    """
    if HALF * head_dim % BANKS_WIDTH:
        raise ArgumentError(f"no formula predicts the traffic of head dimension {head_dim}: count it")
    chunks = HALF * head_dim // 16
    return chunks if chunks & (chunks - 1) == 0 else 8


def copy_rows(rows: int, inside: int, head_dim: int) -> Traffic:
    """A tile of `rows` rows by cp.async, of which the first `inside` exist; the others become zeros."""
    inside = max(0, min(rows, inside))
    sectors = inside * HALF * head_dim // SECTOR
    return Traffic(
        global_load_requests=requests_for_rows(inside, head_dim),
        global_load_sectors=sectors,
        shared_store_wavefronts=rows * HALF * head_dim // BANKS_WIDTH,
        async_sectors=sectors,
    )


def store_rows(rows: int, head_dim: int) -> Traffic:
    """`rows` rows of the output, 16 bytes per lane; from where is the caller's business."""
    return Traffic(
        global_store_requests=requests_for_rows(rows, head_dim),
        global_store_sectors=rows * HALF * head_dim // SECTOR,
    )


def find_sequences(problem: Any, block_rows: int) -> Traffic:
    """What one warp of each block of a head reads to know its sequence: lengths, and ALiBi's slope. All lanes
    read the same 4 bytes, but for the search among packed sequences.
    """
    features = problem.features
    numbers = 4 * features.ragged + sum(x is not None for x in (features.seqused_k, features.alibi_slopes))
    blocks = sum(times * ceil_div(mask.seq_q, block_rows) for mask, times in masks(problem).items())
    found = loads(numbers * blocks, numbers * blocks)
    if features.ragged:
        lengths = [each.mask.seq_q for each in problem.sequences]
        found += search(lengths, block_rows, row_tiles_at_most(problem, block_rows))
    return found


def search(lengths: list[int], block_rows: int, blocks: int) -> Traffic:
    """What one warp of each of so many blocks reads to find the sequence of its tile of `block_rows` rows, or
    keys, among packed ones of these lengths: each lane has one.
    """
    found = Traffic()
    for first in range(0, len(lengths), LANES):  # those of the first sequences find theirs first
        here = lengths[first : first + LANES]
        sectors = sum(sectors_apart(FLOAT * (first + end), len(here), FLOAT) for end in (0, 1))
        found += blocks * loads(2, sectors)
        blocks -= sum(ceil_div(length, block_rows) for length in here)
    return found


def read_sinks(problem: Any, requests: int) -> Traffic:
    """So many loads of a head's sink by a whole warp; none where there are no sinks."""
    return loads(requests, requests) if problem.features.sinks is not None else Traffic()


def query_fragments(row_tiles: int, head_dim: int) -> int:
    """Wavefronts of a warp that reads its Q once, before the first tile; 0 if it reads it with every tile."""
    return _all_of_q(row_tiles, head_dim) if row_tiles * head_dim <= Q_IN_REGISTERS else 0


def tile_fragments(row_tiles: int, keys: int, head_dim: int, value_dim: int) -> int:
    """Wavefronts of a warp that multiplies its rows with a K and a V tile of `keys` keys.

    Each 16 x 16 of K and of V is one ldmatrix, whatever the number of row tiles: the more rows a warp has,
    the less it reads for each. A Q too large for the registers is read anew for every K tile.
    """
    k_and_v = LDMATRIX_WAVEFRONTS * (keys // 16) * ((head_dim + value_dim) // 16)
    q_again = _all_of_q(row_tiles, head_dim) if row_tiles * head_dim > Q_IN_REGISTERS else 0
    return k_and_v + q_again


def _all_of_q(row_tiles: int, head_dim: int) -> int:
    return LDMATRIX_WAVEFRONTS * row_tiles * (head_dim // 16)
