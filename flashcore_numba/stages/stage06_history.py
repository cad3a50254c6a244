"""The variants that led to stage 06: the same arithmetic with its loops and its state in other places.

A block of 4 warps owns 32 query rows, 8 per warp, and runs the online softmax of stage 05 on tiles of 32
keys. Two questions are open. Which loop is outside, the rows or the K/V tiles? And where are m, l and O of 8
rows kept while another row is computed? Registers have no index, so a local array that a loop indexes is in
local memory.
"""

import functools
import math

from numba import cuda, float32

from flashcore_numba.stages.parts.common import PAD, fma4, load_tile, warp_max, warp_sum
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage04_shared_tiles import KEYS, dot
from flashcore_numba.wide import load4

HISTORY = {
    "q_outer": "rows outside, K/V tiles inside: a row's state in registers, every tile fetched once per row",
    "kv_outer_local": "K/V tiles outside, rows inside: the state of 8 rows in a local array",
    "kv_outer_shared": "K/V tiles outside, rows inside: the state of all rows in shared memory",
}

WARPS = 4
THREADS = WARPS * KEYS
NOTHING = float32(-math.inf)
ROWS_A_WARP = {64: 8, 128: 2}  # by head dimension: as many as 48 KB of shared memory hold


@cuda.jit(device=True)
def online_update(score, m, l, o, i, first, step, p_smem, warp, v_smem, lane):
    """Add one tile to a row whose components a lane owns are `o[i, first + step * part]`; gives the new m and
    l.
    """
    m_new = max(m, warp_max(score))
    # While no key has been seen m_new is -inf, and -inf - -inf would be NaN.
    m_ref = m_new if m_new > NOTHING else float32(0)
    rescale, p = math.exp(m - m_ref), math.exp(score - m_ref)
    p_smem[warp, lane] = p
    cuda.syncwarp()  # the warp's row of P is whole before its lanes read all of it
    for part in range((v_smem.shape[1] - PAD) // KEYS):
        c = lane + KEYS * part
        total = o[i, first + step * part] * rescale
        for j in range(0, KEYS, 4):
            v = v_smem[j, c], v_smem[j + 1, c], v_smem[j + 2, c], v_smem[j + 3, c]
            total = fma4(total, load4(p_smem, (warp, j)), v)
        o[i, first + step * part] = total
    cuda.syncwarp()  # every lane has read P before the next row's P overwrites it
    return m_new, l * rescale + warp_sum(p)


@functools.cache
def history_kernel(D, variant):
    """The kernel, the query rows of a block, and its threads."""
    PARTS, STRIDE = D // KEYS, D + PAD
    SHARED = variant == "kv_outer_shared"
    MINE, ROWS = ROWS_A_WARP[D], WARPS * ROWS_A_WARP[D]
    # `q_outer` walks over all tiles once for each row; the others walk once and hold the state of all rows.
    WALKS, HELD = (MINE, 1) if variant == "q_outer" else (1, MINE)
    SLOTS, STEP = (ROWS, KEYS) if SHARED else (HELD, 1)
    WIDTHS = (SLOTS, D) if SHARED else (SLOTS, PARTS)

    @cuda.jit
    def history(q, k, v, out, lse, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H_kv, S_k, D] float16   lse: [B, H, S_q] float32
        q_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        k_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        v_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        p_smem = cuda.shared.array((WARPS, KEYS), float32, alignment=16)
        m = cuda.shared.array(SLOTS, float32) if SHARED else cuda.local.array(SLOTS, float32)
        l = cuda.shared.array(SLOTS, float32) if SHARED else cuda.local.array(SLOTS, float32)
        o = cuda.shared.array(WIDTHS, float32) if SHARED else cuda.local.array(WIDTHS, float32)
        lane, warp, first_row = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.x * ROWS
        thread, first = warp * KEYS + lane, lane if SHARED else 0
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        h_kv = h // (q.shape[1] // k.shape[1])
        seq_q, seq_k = q.shape[2], k.shape[2]
        load_tile(q[b, h], first_row, q_smem, thread, THREADS)

        for walk in range(WALKS):
            my_row = warp * MINE + walk
            for i in range(HELD):
                slot = my_row + i if SHARED else i
                if lane == 0 or not SHARED:
                    m[slot], l[slot] = NOTHING, float32(0)
                for part in range(PARTS):
                    o[slot, first + STEP * part] = 0

            for first_key in range(0, seq_k, KEYS):
                load_tile(k[b, h_kv], first_key, k_smem, thread, THREADS)
                load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)
                cuda.syncthreads()  # Q and the tiles are whole before a lane reads a row that others wrote
                for i in range(HELD):
                    row, slot = first_row + my_row + i, my_row + i if SHARED else i
                    seen = interval(row, seq_q, seq_k, causal)[1] - first_key
                    score = dot(q_smem, my_row + i, k_smem, lane) * scale if lane < seen else NOTHING
                    m_new, l_new = online_update(
                        score, m[slot], l[slot], o, slot, first, STEP, p_smem, warp, v_smem, lane
                    )
                    if lane == 0 or not SHARED:
                        m[slot], l[slot] = m_new, l_new
                cuda.syncthreads()  # every warp has read K and V before the next tile overwrites them

            for i in range(HELD):
                row, slot = first_row + my_row + i, my_row + i if SHARED else i
                if row < seq_q:
                    # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
                    inv_l = float32(1) / l[slot] if l[slot] != 0 else float32(0)
                    for part in range(PARTS):
                        out[b, h, row, lane + KEYS * part] = o[slot, first + STEP * part] * inv_l
                    if lane == 0:
                        lse[b, h, row] = m[slot] + math.log(l[slot]) if l[slot] != 0 else NOTHING

    return history, ROWS, (KEYS, WARPS)
