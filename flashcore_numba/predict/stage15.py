"""Stage 15, ping_pong: 128 or 192 rows share what 64 rows of stage 14 load.

Every piece of work, BLOCK_M rows of a head, moves the same in whichever block it is done; what blocks add are
the numbers of the pieces, which go through shared memory.
"""

from typing import Any

from flashcore_numba.predict.formula import Traffic, ceil_div
from flashcore_numba.predict.warpgroup_rows import ROWS, load_tiles, store_rows, tiles_seen
from flashcore_numba.stages.tuning.stage15_tiles import choose

WARPS = 4  # of a warpgroup


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """No tile is taken to be done twice, as in stage 12. The counter of pieces, an atomic, is not counted."""
    p, D = problem, problem.head_dim
    tile, _ = choose(p, variant, sm_count)
    block_rows, turns = ROWS * tile.consumers, tile.turns and tile.consumers > 1
    row_tiles = ceil_div(p.seq_q, block_rows)
    works = p.batch * p.heads * row_tiles
    blocks = min(works, sm_count)
    of_a_head = Traffic()
    # Where the rows fill no block, those that miss are before the first one.
    start = ceil_div(p.seq_q, ROWS) * ROWS - row_tiles * block_rows
    for first_row in range(start, p.seq_q, block_rows):
        tiles = max(1, tiles_seen(p, first_row, first_row + block_rows, tile.keys))
        of_a_head += load_tiles(tile.consumers, ROWS, D) + load_tiles(2 * tiles, tile.keys, D)
        for group_row in range(max(0, first_row), first_row + block_rows, ROWS):
            of_a_head += store_rows(p.seq_q - group_row, D)
        # A turn is waited for and handed on once a tile, by idle warpgroups too.
        of_a_head += Traffic(barriers=turns * 2 * tiles * WARPS * tile.consumers)
    # Of every piece, and of the end of every block, one thread writes the number and each warp reads it.
    numbers = works + blocks
    whole = p.batch * p.heads * of_a_head
    whole += Traffic(shared_store_wavefronts=numbers, shared_load_wavefronts=numbers * WARPS * tile.consumers)
    # Of a block: one barrier of all warps, and the first turn.
    return whole + Traffic(barriers=blocks * WARPS * (tile.consumers + 1 + turns))
