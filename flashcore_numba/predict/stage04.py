"""Stage 04: K and V come from global memory once for 16 query rows; what is read most is shared memory."""

from typing import Any

from flashcore_numba.predict.common import all_tiles, score_rows
from flashcore_numba.predict.formula import (
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    loads,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.stages.stage04_shared_tiles import KEYS, ROWS

QUAD = 4  # floats of a load4
HALVES, QUARTERS = 2, 4  # passes of 16 bytes per lane: where pairs of lanes read the same, and where not


def dot(head_dim: int) -> Traffic:
    """`dot` by one warp: a row of Q, the same for all lanes, and a row of K for each.

    The rows of K start 4 banks apart, so the 8 lanes of a quarter meet in none.
    """
    return head_dim // QUAD * (shared_loads(HALVES) + shared_loads(QUARTERS))


def accumulate_pv(head_dim: int) -> Traffic:
    """`accumulate_pv` by one warp: four weights at a time, and a float of each of four rows of V."""
    p_loads = shared_loads(HALVES)
    v_loads = head_dim // LANES * QUAD * shared_loads(1)
    return KEYS // QUAD * (p_loads + v_loads)


def out_rows(rows: int, head_dim: int) -> Traffic:
    """Rows of the output, a warp each, 2 bytes per lane: 64 bytes per request."""
    return stores(rows * head_dim // LANES, rows * head_dim * HALF // SECTOR)


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    blocks = heads * ceil_div(problem.seq_q, ROWS)
    warps, tiles = ROWS * blocks, ceil_div(problem.seq_k, KEYS)

    q_tiles = heads * all_tiles(problem.seq_q, ROWS, D)
    # All tiles, also those that the causal mask hides.
    kv_tiles = 2 * blocks * all_tiles(problem.seq_k, KEYS, D)
    score_stores, score_loads = stores(*score_rows(problem)), loads(*score_rows(problem))
    # Warps past the last row compute along; only their results are dropped.
    qk = warps * tiles * dot(D)
    p_stores = warps * tiles * shared_stores(1)
    pv = warps * tiles * accumulate_pv(D)
    # One before and one after each tile of K, and of V.
    waits = 2 * 2 * barriers(warps * tiles)
    return (
        q_tiles
        + kv_tiles
        + score_stores
        + score_loads
        + qk
        + p_stores
        + pv
        + waits
        + out_rows(heads * problem.seq_q, D)
    )
