"""Stage 06: a value loaded from shared memory is multiplied several times, and hidden tiles are skipped."""

from typing import Any

import numpy as np

from flashcore_numba.predict.common import all_tiles, load_tile
from flashcore_numba.predict.formula import (
    BANKS,
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    head_starts,
    row_tiles,
    sectors_apart,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.stage04 import HALVES, QUAD, out_rows
from flashcore_numba.stages.parts.common import PAD
from flashcore_numba.stages.stage04_shared_tiles import KEYS as HISTORY_KEYS
from flashcore_numba.stages.stage06_fragments import COLS, TM
from flashcore_numba.stages.stage06_history import HISTORY, ROWS_A_WARP, WARPS
from flashcore_numba.stages.stage06_register_tiles import SHAPE


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    return _history(problem, variant) if variant in HISTORY else _register_tiles(problem)


def _register_tiles(problem: Any) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    warps, keys = SHAPE[D]
    rows = warps * LANES // COLS * TM
    first, count = row_tiles(problem.seq_q, rows)
    # A block stops after the last tile that its last row sees.
    begin, end = problem.mask.tiles(first, first + count - 1, keys)
    tiles = end - begin
    # What a tile holds of K: all that exists of its rows, whatever the mask says.
    exist = row_tiles(problem.seq_k, keys)[1]
    turns = heads * int(tiles.sum()) * warps  # of a warp, one per tile

    q_tiles = heads * load_tile(count, rows, D)
    kv_tiles = 2 * heads * sum((load_tile(exist[:n], keys, D) for n in tiles), Traffic())
    # Each turn loads TM rows of Q and keys / COLS of K. Pairs of lanes agree, so half a warp passes at once.
    qk = D // QUAD * shared_loads(HALVES * (TM + keys // COLS))
    # A warp writes 16 columns of two rows whose banks overlap, TM rows apart: two wavefronts for 32 words.
    apart = TM * (D + PAD) % BANKS
    collide = int(min(apart, BANKS - apart) < COLS)
    p_stores = TM * keys // COLS * shared_stores(1 + collide, collide)
    # P is loaded again for each 64 components, four keys at a time.
    pv = keys // QUAD * (D // (QUAD * COLS)) * shared_loads(HALVES * (QUAD + TM))
    # The tiles are whole; K has been read and gives way to P; V and P have been read.
    waits = barriers(3)
    return q_tiles + kv_tiles + turns * (qk + p_stores + pv + waits) + heads * _out(problem) + _lse(problem)


def _out(problem: Any) -> Traffic:
    """One head's output: a request takes 2 bytes per lane, 8 apart, of one row from even lanes and of another
    one, TM further on, from odd lanes.
    """
    requests = len(_rows_of_even_lanes(problem)) * problem.head_dim // COLS
    spread = COLS * QUAD * HALF // SECTOR  # sectors of one row that 16 lanes touch, for 2 of the 8 bytes
    return stores(requests, problem.seq_q * problem.head_dim // COLS * spread)


def _lse(problem: Any) -> Traffic:
    """Column 0 of each warp writes its two rows' LSE, in one sector or in two."""
    rows = _rows_of_even_lanes(problem)
    lanes = np.where(rows + TM < problem.seq_q, 2, 1)
    sectors = sum(
        times * sectors_apart(start + FLOAT * rows, lanes, FLOAT * TM).sum()
        for start, times in head_starts(problem, FLOAT * problem.seq_q)
    )
    return stores(problem.batch * problem.heads * len(rows), sectors)


def _rows_of_even_lanes(problem: Any) -> np.ndarray:
    """A warp has 2 TM rows: the first TM are its even lanes', and where they exist the warp has a store."""
    rows = np.arange(problem.seq_q)
    return rows[rows % (2 * TM) < TM]


def _history(problem: Any, variant: str) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    parts, mine = D // LANES, ROWS_A_WARP[D]
    rows = WARPS * mine
    blocks, tiles = ceil_div(problem.seq_q, rows), ceil_div(problem.seq_k, HISTORY_KEYS)
    # `q_outer` fetches K and V anew for each row of a warp.
    walks = mine if variant == "q_outer" else 1

    q_tiles = heads * all_tiles(problem.seq_q, rows, D)
    kv_tiles = 2 * heads * blocks * walks * all_tiles(problem.seq_k, HISTORY_KEYS, D)
    waits = 2 * barriers(heads * blocks * walks * tiles * WARPS)

    # Only lanes whose key is visible load for the product; rows past the end see every key.
    begin, end = problem.mask.interval(np.arange(blocks * rows))
    seen = end - begin
    q_passes = seen // LANES * 2 + ceil_div(seen % LANES, 16)
    k_passes = seen // LANES * 4 + ceil_div(seen % LANES, 8)
    qk = heads * D // QUAD * shared_loads((q_passes + k_passes).sum())
    # P is loaded again for each 32 components.
    turns = heads * blocks * rows * tiles  # of a warp, one per row and tile
    p_stores = turns * shared_stores(1)
    pv = turns * parts * (HISTORY_KEYS // QUAD) * shared_loads(HALVES + QUAD)
    held = variant == "kv_outer_shared"
    state = _shared_state(problem, heads * blocks * rows, turns) if held else Traffic()

    done = heads * problem.seq_q
    lse_stores = stores(done, done)
    return q_tiles + kv_tiles + waits + qk + p_stores + pv + state + out_rows(done, D) + lse_stores


def _shared_state(problem: Any, rows: int, turns: int) -> Traffic:
    """m, l and O of each row in shared memory: out and back for every tile, a wavefront for each access."""
    parts = problem.head_dim // LANES
    start = rows * shared_stores(2 + parts)
    update = turns * (shared_loads(2 + parts) + shared_stores(2 + parts))
    heads = problem.batch * problem.heads
    begin, end = problem.mask.interval(np.arange(problem.seq_q))
    seeing = heads * np.count_nonzero(end - begin)
    # l is compared with 0 for the output and for the LSE; a row that saw keys then loads l, m and l.
    finish = shared_loads(heads * problem.seq_q * (2 + parts) + 3 * seeing)
    return start + update + finish
