"""Stage 14, tma_wgmma: global memory gives what it gave stage 12, in a few requests of whole tiles.

No warp reads shared memory any more: wgmma does.
"""

from typing import Any

from flashcore_numba.predict.formula import Traffic
from flashcore_numba.predict.warpgroup_rows import ROWS, load_tiles, store_rows, tiles_seen
from flashcore_numba.stages.stage14_tma_wgmma import TILES

WARPS = 4


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    p, D = problem, problem.head_dim
    keys = TILES[D].keys
    of_a_head = Traffic()
    for first_row in range(0, p.seq_q, ROWS):
        tiles = tiles_seen(p.mask, first_row, first_row + ROWS, keys)
        of_a_head += load_tiles(1, ROWS, D) + load_tiles(2 * tiles, keys, D)
        of_a_head += Traffic(barriers=WARPS * (1 + tiles)) + store_rows(p.seq_q - first_row, D)
    return p.batch * p.heads * of_a_head
