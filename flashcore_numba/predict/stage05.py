"""Stage 05: stage 04 without the scores in global memory, and with half of its barriers."""

from typing import Any

from flashcore_numba.predict.common import all_tiles
from flashcore_numba.predict.formula import Traffic, barriers, ceil_div, shared_stores, stores
from flashcore_numba.predict.stage04 import accumulate_pv, dot, out_rows
from flashcore_numba.stages.stage04_shared_tiles import KEYS, ROWS


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    rows, blocks = heads * problem.seq_q, heads * ceil_div(problem.seq_q, ROWS)
    turns = blocks * ROWS * ceil_div(problem.seq_k, KEYS)  # of a warp, one a tile

    q_tiles = heads * all_tiles(problem.seq_q, ROWS, D)
    # All tiles, also those that the causal mask hides.
    kv_tiles = 2 * blocks * all_tiles(problem.seq_k, KEYS, D)
    qk, pv = turns * dot(D), turns * accumulate_pv(D)
    p_stores = turns * shared_stores(1)
    # K and V of a tile come together: one barrier when they are whole, one when they have been read.
    waits = 2 * barriers(turns)
    lse_stores = stores(rows, rows)  # one lane of a row's warp
    return q_tiles + kv_tiles + qk + p_stores + pv + waits + out_rows(rows, D) + lse_stores
