"""Stage 03: a warp reads one row as a whole, but nothing is shared: each query row fetches all of K and V."""

from typing import Any

from flashcore_numba.predict.common import score_rows
from flashcore_numba.predict.formula import HALF, SECTOR, Traffic, loads, requests_for, stores

WIDTH = 4  # bytes of a load2


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    rows = heads * problem.seq_q
    pairs = heads * problem.mask.pairs
    requests, sectors = requests_for(1, D, WIDTH), D * HALF // SECTOR  # of one row of Q, K or V

    q_loads = loads(requests * rows, sectors * rows)
    # Every byte of every sector is used, once for each query row that sees the key.
    kv_loads = 2 * loads(requests * pairs, sectors * pairs)
    score_stores, score_loads = stores(*score_rows(problem)), loads(*score_rows(problem))
    # The two components of a lane go out one by one, so each sector is written twice, half of it at a time.
    out_stores = 2 * stores(requests * rows, sectors * rows)
    return q_loads + kv_loads + score_stores + score_loads + out_stores
