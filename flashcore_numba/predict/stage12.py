"""Stage 12, mma_sync: global memory gives Q once and K, V once a row tile; shared memory feeds the warps.

S and P never leave the registers, so what remains in shared memory is K and V on their way to the fragments.
"""

from typing import Any

from flashcore_numba.predict.formula import Traffic
from flashcore_numba.predict.warp_rows import (
    copy_rows,
    query_fragments,
    store_rows,
    tile_fragments,
)
from flashcore_numba.stages.stage12_mma_sync import TILES, choose


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """`in_order` changes only which block starts first. No tile is taken to be done twice, see below.

    A warp repeats Q K^T of a tile whose weights grow beyond what its old reference allows. That needs a score
    8 above the greatest of the first tile, which no inputs near a standard normal have.
    """
    p, D = problem, problem.head_dim
    name = variant if variant in TILES[D] else choose(p, sm_count)
    row_tiles, warps, keys, *_ = TILES[D][name]
    warp_rows = 16 * row_tiles
    block_rows = warp_rows * warps
    of_a_head = Traffic()
    for first_row in range(0, p.seq_q, block_rows):
        rows = min(block_rows, p.seq_q - first_row)
        first, end = p.mask.tiles(first_row, first_row + rows - 1, keys)
        tiles = end - first
        q_copy = copy_rows(block_rows, rows, D)
        k_copies = sum((copy_rows(keys, p.seq_k - t * keys, D) for t in range(first, end)), Traffic())
        # A warp skips a tile that its rows do not see.
        multiplied = 0
        for row in range(first_row, first_row + block_rows, warp_rows):
            begin, behind = p.mask.tiles(row, row + warp_rows - 1, keys)
            multiplied += max(0, min(end, behind) - max(first, begin))
        fragments = Traffic(
            shared_load_wavefronts=warps * query_fragments(row_tiles, D)
            + multiplied * tile_fragments(row_tiles, keys, D)
        )
        one_barrier_a_tile = Traffic(barriers=tiles * warps)
        # O takes the place of Q as pairs of halves, 8 rows of 16 bytes a store; then it is read by rows.
        o_through_shared = Traffic(
            shared_store_wavefronts=block_rows // 8 * D // 8, shared_load_wavefronts=rows * D // 64
        )
        of_a_head += q_copy + 2 * k_copies + fragments + one_barrier_a_tile
        of_a_head += o_through_shared + store_rows(rows, D)
    return p.batch * p.heads * of_a_head
