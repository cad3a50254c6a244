"""Stage 02: what stage 01 moves, 16 bytes per lane, with the scores transposed and read only once."""

from typing import Any

from flashcore_numba.predict.common import score_columns
from flashcore_numba.predict.formula import HALF, Traffic, ceil_div, loads, stores
from flashcore_numba.stages.stage02_coalesced import ROWS

WIDTH = 16  # bytes of a load8 or a store8


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    heads = problem.batch * problem.heads
    chunks = problem.head_dim * HALF // WIDTH  # of a row
    # Scores [S_k, S_q]: the rows of a warp are neighbours, 4 sectors per request where stage 01 has 32.
    steps, score_sectors = score_columns(problem, ROWS, row_stride=1, key_stride=problem.seq_q)
    warps = heads * ceil_div(problem.seq_q, ROWS)

    # Once, into registers. Lanes have different rows, so the two halves of a sector are fetched one by one.
    q_loads = loads(chunks * warps, chunks * heads * problem.seq_q)
    # All lanes want the same 16 bytes: half of one sector.
    kv_loads = 2 * loads(chunks * steps, chunks * steps)
    score_stores, score_loads = stores(steps, score_sectors), loads(steps, score_sectors)
    out_stores = stores(chunks * warps, chunks * heads * problem.seq_q)
    return q_loads + kv_loads + score_stores + score_loads + out_stores
