"""Stage 01: every float16 of Q, K and V is a request of its own, and each score crosses memory four times."""

from typing import Any

from flashcore_numba.predict.common import score_columns
from flashcore_numba.predict.formula import Traffic, ceil_div, loads, stores
from flashcore_numba.stages.stage01_scalar import ROWS


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    pairs = heads * problem.mask.pairs
    # Requests for one score of each row of a warp; scores [S_q, S_k]: the rows lie S_k floats apart.
    steps, score_sectors = score_columns(problem, ROWS, row_stride=problem.seq_k, key_stride=1)
    warps = heads * ceil_div(problem.seq_q, ROWS)

    # Lanes have different rows, so each drags in a sector for the 2 bytes it wants, again for every key.
    q_loads = loads(D * steps, D * pairs)
    # All lanes want the same element: one sector, of which 2 bytes are used.
    kv_loads = 2 * loads(D * steps, D * steps)
    # Written as scores, read and written as weights, read again beside V: a sector for each, mostly.
    score_stores, score_loads = 2 * stores(steps, score_sectors), 2 * loads(steps, score_sectors)
    out_stores = stores(D * warps, D * heads * problem.seq_q)
    return q_loads + kv_loads + score_stores + score_loads + out_stores
