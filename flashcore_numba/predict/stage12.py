"""Stage 12, mma_sync: global memory gives Q once and K, V once per row tile; shared memory feeds the warps.

S and P never leave the registers, so what remains in shared memory is K and V on their way to the fragments.
"""

from typing import Any

from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import Traffic, masks
from flashcore_numba.predict.merging import merging
from flashcore_numba.predict.warp_rows import (
    copy_rows,
    find_sequences,
    query_fragments,
    read_sinks,
    store_rows,
    tile_fragments,
)
from flashcore_numba.stages.tuning.stage12_tiles import tile_for


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """`in_order` changes only which block starts first. No tile is taken to be done twice, see below.

    A warp repeats Q K^T of a tile whose weights grow beyond what its old reference allows. That needs a score
    8 above the greatest of the first tile, which no inputs near a standard normal have.
    """
    p = problem
    row_tiles, warps, keys, *_ = tile_for(p, variant, sm_count)
    dims = p.head_dim, p.value_dim
    in_type = not p.features.float32_out
    block_rows = 16 * row_tiles * warps
    of_a_head = warps * find_sequences(p, block_rows)
    for mask, times in masks(p).items():
        for first_row in range(0, mask.seq_q, block_rows):
            of_a_head += times * _block(mask, first_row, row_tiles, warps, keys, *dims, in_type)
            of_a_head += times * read_sinks(p, warps * 2 * row_tiles)  # a lane has two rows of each row tile
    return p.heads * of_a_head + merging(p)


def _block(
    mask: Mask, first_row: int, row_tiles: int, warps: int, keys: int, D: int, D_v: int, in_type: bool
) -> Traffic:
    """in_type: whether the output is stored in q's type, which is what takes it through shared memory."""
    warp_rows = 16 * row_tiles
    block_rows = warp_rows * warps
    rows = min(block_rows, mask.seq_q - first_row)
    first, end = mask.tiles(first_row, first_row + rows - 1, keys)
    tiles = end - first
    q_copy = copy_rows(block_rows, rows, D)
    inside = [mask.seq_k - tile * keys for tile in range(first, end)]
    copies = sum((copy_rows(keys, rows, dim) for rows in inside for dim in (D, D_v)), Traffic())
    # A warp skips a tile that its rows do not see.
    multiplied = 0
    for row in range(first_row, first_row + block_rows, warp_rows):
        begin, behind = mask.tiles(row, row + warp_rows - 1, keys)
        multiplied += max(0, min(end, behind) - max(first, begin))
    fragments = Traffic(
        shared_load_wavefronts=warps * query_fragments(row_tiles, D)
        + multiplied * tile_fragments(row_tiles, keys, D, D_v)
    )
    one_barrier_a_tile = Traffic(barriers=tiles * warps)
    # O takes the place of Q as pairs of halves, 8 rows of 16 bytes per store; then it is read by rows.
    o_through_shared = Traffic(
        shared_store_wavefronts=block_rows // 8 * D_v // 8, shared_load_wavefronts=rows * D_v // 64
    )
    moved = q_copy + copies + fragments + one_barrier_a_tile
    return moved + in_type * (o_through_shared + store_rows(rows, D_v))
