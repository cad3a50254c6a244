"""Stage 11: each phase changes one term: the barriers, the width of loads, the copies, the fragments of Q."""

from typing import Any

from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    loads,
    requests_for,
    shared_loads,
    shared_stores,
)
from flashcore_numba.predict.wmma import (
    WARP_ROWS,
    copy_tile,
    float_fragment,
    for_each_block,
    half_fragment,
    kv_tiles,
    load_tile,
    multiply_qk,
    row_lines,
    shared_lines,
    store_pairs,
    store_rows,
)
from flashcore_numba.stages.stage11_warp_specialized import KEYS, ROWS, THREADS, memory_map

P_COLUMNS = 32  # that a row's 8 lanes write at once, as halves
LANE_ROWS = 2  # of a softmax lane, one after the other: its neighbours' rows are as many further


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    D, keys, warps, phase = problem.head_dim, KEYS[problem.head_dim], THREADS // LANES, int(variant)
    parts = memory_map(D, 0)  # one buffer of each
    pitch, p_pitch = parts["k"] // (keys * HALF), parts["p"] // (ROWS * HALF)
    s_pitch, factor_pitch = parts["s"] // (ROWS * FLOAT), parts["factor"] // (ROWS * FLOAT)
    o_pitch = D + s_pitch - keys
    multiplying = ROWS // 16 * 4  # warps, 2 x 4
    o_parts = D // 16 // 4  # of each of them, all beside the same P

    s_parts = ROWS // 16 * (keys // 16)
    qk = s_parts * multiply_qk(D, pitch if phase < 5 else None, pitch, s_pitch)
    s_loads = row_lines(shared_loads, ROWS, keys)
    factor_stores = store_pairs(ROWS, LANE_ROWS * factor_pitch * FLOAT)
    p_stores = keys // P_COLUMNS * store_pairs(ROWS, LANE_ROWS * p_pitch * HALF)
    # O stays in fragments. Its rows' factors come as one, and a fragment of P serves all parts of O.
    pv = float_fragment(shared_loads, factor_pitch)
    pv += keys // 16 * (half_fragment(p_pitch) + o_parts * half_fragment(pitch))
    tile = qk + s_loads + factor_stores + p_stores + multiplying * pv

    def kv_tile(inside: int) -> Traffic:
        if phase >= 4:
            return copy_tile(keys, inside, D, pitch)
        return _halves(keys, D) if phase < 3 else _vectors(keys, inside, D)

    def block(inside: int, tiles: int) -> Traffic:
        q_tile = load_tile(ROWS, inside, D)
        q_fragments = multiplying * (D // 16) * half_fragment(pitch) if phase >= 5 else Traffic()
        # Phase 0 has four per tile. Later one per step: the last tile's P V comes two steps after its Q K^T.
        # The first tile has one more, and so has O before it is written.
        waits = barriers(warps * (4 * tiles + 1 if phase == 0 else 1 + tiles + 2 + 1))
        o_through_shared = multiplying * o_parts * float_fragment(shared_stores, o_pitch)
        # 1 / l of 4 rows per wavefront, from the softmax warps to all that write rows.
        inv_l = shared_stores(ROWS // WARP_ROWS) + shared_loads(ceil_div(inside, WARP_ROWS))
        end = o_through_shared + inv_l + store_rows(inside, D)
        return q_tile + q_fragments + kv_tiles(problem, tiles, keys, kv_tile) + tiles * tile + waits + end

    return for_each_block(problem, ROWS, keys, block)


def _halves(rows: int, head_dim: int) -> Traffic:
    """A tile, one half per lane: two sectors per request, a wavefront per half line. A row past the end
    becomes zero only after row 0 has been read in its place: a branch would cost more.
    """
    requests = rows * head_dim // LANES
    return loads(requests, requests * LANES * HALF // SECTOR) + shared_stores(requests)


def _vectors(rows: int, inside: int, head_dim: int) -> Traffic:
    """The same, 8 halves per lane. A warp with rows past the end also reads row 0, unless it has it."""
    whole = inside * head_dim * HALF // (LANES * 16)  # requests of which every row exists
    requests = requests_for(rows, head_dim)
    row_0_again = requests - max(whole, 1)
    sectors = (inside + row_0_again) * head_dim * HALF // SECTOR
    return loads(requests, sectors) + shared_stores(shared_lines(rows, head_dim))
