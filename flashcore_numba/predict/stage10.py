"""Stage 10: the number of stages changes when a tile is copied, not what: all variants move the same."""

from typing import Any

from flashcore_numba.predict.formula import FLOAT, HALF, LANES, Traffic, barriers, shared_loads, shared_stores
from flashcore_numba.predict.wmma import (
    accumulate_pv,
    copy_tile,
    for_each_block,
    half_fragment,
    kv_tiles,
    multiply_qk,
    row_lines,
    store_pairs,
    store_rows,
)
from flashcore_numba.stages.stage10_pipeline import KEYS, ROWS, THREADS, memory_map

P_COLUMNS = 32  # that a row's 8 lanes write at once, as halves


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    D, warps = problem.head_dim, THREADS // LANES
    parts = memory_map(D, stages=1)
    pitch, p_pitch = parts["k"] // (KEYS * HALF), parts["p"] // (ROWS * HALF)
    s_pitch, o_pitch = parts["s"] // (ROWS * FLOAT), parts["o"] // (ROWS * FLOAT)

    s_parts = ROWS // 16 * (KEYS // 16)  # one for each warp
    q_fragments = s_parts * (D // 16) * half_fragment(pitch)
    qk = s_parts * multiply_qk(D, None, pitch, s_pitch)
    s_loads = row_lines(shared_loads, ROWS, KEYS)
    p_stores = KEYS // P_COLUMNS * store_pairs(ROWS, p_pitch * HALF)
    rescale = row_lines(shared_loads, ROWS, D) + row_lines(shared_stores, ROWS, D)
    pv = ROWS // 16 * (D // 16) * accumulate_pv(KEYS, p_pitch, pitch, o_pitch)
    waits = 4 * barriers(warps)
    tile = qk + s_loads + p_stores + rescale + pv + waits

    def block(inside: int, tiles: int) -> Traffic:
        # Padded rows, good for fragments, begin in the middle of sectors: bad for copies.
        q_tile = copy_tile(ROWS, inside, D, pitch)
        kv = kv_tiles(problem, tiles, KEYS, lambda rows: copy_tile(KEYS, rows, D, pitch))
        start = row_lines(shared_stores, ROWS, D) + barriers(warps) + q_fragments
        return q_tile + start + kv + tiles * tile + store_rows(inside, D)

    return for_each_block(problem, ROWS, KEYS, block)
