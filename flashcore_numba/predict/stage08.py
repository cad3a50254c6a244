"""Stage 08: as stage 07, but P becomes halves and O a tile of its own, both in shared memory."""

from typing import Any

from flashcore_numba.predict.formula import HALF, LANES, Traffic, barriers, shared_loads, shared_stores
from flashcore_numba.predict.wmma import (
    accumulate_pv,
    for_each_block,
    kv_tiles,
    load_tile,
    multiply_qk,
    row_lines,
    store_pairs,
    store_rows,
)
from flashcore_numba.stages.stage08_wmma_full import KEYS, ROWS, THREADS

PAD = 8  # elements after each row in shared memory


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    D, warps = problem.head_dim, THREADS // LANES
    pitch, s_pitch, p_pitch, o_pitch = D + PAD, KEYS + PAD, KEYS + PAD, D + PAD
    qk = ROWS // 16 * (KEYS // 16) * multiply_qk(D, pitch, pitch, s_pitch)
    s_loads = row_lines(shared_loads, ROWS, KEYS)
    # A row of P is 64 bytes, so two rows could pass at once, but the padding makes them meet.
    p_stores = store_pairs(ROWS, p_pitch * HALF)
    # What a fragment holds of a row nobody knows: O shrinks in shared memory.
    rescale = row_lines(shared_loads, ROWS, D) + row_lines(shared_stores, ROWS, D)
    pv = ROWS // 16 * (D // 16) * accumulate_pv(KEYS, p_pitch, pitch, o_pitch)
    # Before Q K^T, the softmax, P V, and the next tile: each has other warps at the same rows.
    waits = 4 * barriers(warps)
    tile = qk + s_loads + p_stores + rescale + pv + waits

    def block(inside: int, tiles: int) -> Traffic:
        q_tile = load_tile(ROWS, inside, D)
        kv = kv_tiles(problem, tiles, KEYS, lambda rows: load_tile(KEYS, rows, D))
        o_zeros = row_lines(shared_stores, ROWS, D)
        return q_tile + o_zeros + kv + tiles * tile + store_rows(inside, D)

    return for_each_block(problem, ROWS, KEYS, block)
