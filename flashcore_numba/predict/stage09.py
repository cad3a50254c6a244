"""Stage 09: cp.async moves what stage 08 moved; what is new is the price of each pitch in shared memory."""

from typing import Any

from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    Traffic,
    barriers,
    ceil_div,
    shared_loads,
    shared_stores,
)
from flashcore_numba.predict.wmma import (
    WARP_ROWS,
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
from flashcore_numba.stages.stage09_async_copy import BUFFERS, KEYS, ROWS, THREADS, memory_map


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    D, warps = problem.head_dim, THREADS // LANES
    parts = memory_map(D)
    q_pitch, p_pitch = parts["q"] // (ROWS * HALF), parts["p"] // (ROWS * HALF)
    kv_pitch = parts["k"] // (BUFFERS * KEYS * HALF)
    s_pitch, o_pitch = parts["s"] // (ROWS * FLOAT), parts["o"] // (ROWS * FLOAT)

    # Q is not padded, so each of its fragments costs 32 wavefronts, but only once: then it is in registers.
    s_parts = ROWS // 16 * (KEYS // 16)  # one per warp; half of the warps wait
    q_fragments = s_parts * (D // 16) * half_fragment(q_pitch)
    qk = s_parts * multiply_qk(D, None, kv_pitch, s_pitch)
    s_loads = row_lines(shared_loads, ROWS, KEYS)
    p_stores = store_pairs(ROWS, p_pitch * HALF)
    rescale = row_lines(shared_loads, ROWS, D) + row_lines(shared_stores, ROWS, D)
    # The floats m and l of a warp's 4 rows lie side by side: a wavefront each, to read and to write.
    m_and_l_loads, m_and_l_stores = shared_loads(2), shared_stores(2)
    # P and O have no padding either, and pay in every iteration.
    pv = ROWS // 16 * (D // 16) * accumulate_pv(KEYS, p_pitch, kv_pitch, o_pitch)
    waits = 4 * barriers(warps)
    tile = qk + s_loads + warps * (m_and_l_loads + m_and_l_stores) + p_stores + rescale + pv + waits

    def block(inside: int, tiles: int) -> Traffic:
        q_tile = copy_tile(ROWS, inside, D, q_pitch)
        kv = kv_tiles(problem, tiles, KEYS, lambda rows: copy_tile(KEYS, rows, D, kv_pitch))
        start = row_lines(shared_stores, ROWS, D) + warps * m_and_l_stores + barriers(warps) + q_fragments
        end = ceil_div(inside, WARP_ROWS) * m_and_l_loads + store_rows(inside, D)
        return q_tile + start + kv + tiles * tile + end

    return for_each_block(problem, ROWS, KEYS, block)
