"""Stage 07: K and V once per row tile; S and P through shared memory; P V reads V once for every 4 rows."""

from typing import Any

from flashcore_numba.predict.formula import (
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.wmma import (
    WARP_ROWS,
    for_each_block,
    kv_tiles,
    load_tile,
    multiply_qk,
    row_lines,
)
from flashcore_numba.stages.stage07_wmma_qk import KEYS, ROWS, THREADS

PAD = 8  # elements after each row in shared memory


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    D, warps = problem.head_dim, THREADS // LANES
    pitch, s_pitch = D + PAD, KEYS + PAD
    parts = ROWS // 16 * (KEYS // 16)  # of S, one per warp
    qk = parts * multiply_qk(D, pitch, pitch, s_pitch)
    # Each lane reads 4 scores of its row, and writes P in their place.
    softmax = row_lines(shared_loads, ROWS, KEYS) + row_lines(shared_stores, ROWS, KEYS)
    # All 8 lanes of a row read the same 4 weights, so that two rows pass at once. A key's 8 components are
    # not the same for those lanes, but are for the warp's 4 rows: each row has them read again.
    weights = shared_loads(KEYS // 4 * WARP_ROWS // 2)
    values = shared_loads(KEYS * WARP_ROWS)
    # Before Q K^T, between it and the softmax, and before the next tile.
    waits = 3 * barriers(warps)
    tile = qk + softmax + warps * (weights + values) + waits

    def block(inside: int, tiles: int) -> Traffic:
        q_tile = load_tile(ROWS, inside, D)
        kv = kv_tiles(problem, tiles, KEYS, lambda rows: load_tile(KEYS, rows, D))
        # O is in registers: the lanes of a row write it without another way through shared memory.
        out = stores(ceil_div(inside, WARP_ROWS), inside * D * HALF // SECTOR)
        return q_tile + kv + tiles * tile + out

    return for_each_block(problem, ROWS, KEYS, block)
