"""A chunk of the keys of one query row: a warp, and the block table that says where keys are."""

import functools
import math

from numba import cuda, float32

from flashcore_numba.stages.parts.common import ALL_LANES, warp_max, warp_sum
from flashcore_numba.stages.parts.mask import band
from flashcore_numba.wide import load2

LANES = 32
WARPS = 4  # chunks per block
FEWEST_KEYS = 64  # of a chunk that is not the last
MOST_CHUNKS = LANES  # of a row: the merge has a lane for each
NOTHING = float32(-math.inf)


@cuda.jit(device=True)
def chunk_keys(length):
    """Keys of each chunk of a request: whole tiles."""
    return max(FEWEST_KEYS, -(-length // (MOST_CHUNKS * LANES)) * LANES)


@functools.cache
def chunk_kernel(D, D_V, softcapped):
    PAIRS, V_PAIRS = D // 64, D_V // 64  # pairs of components that a lane owns

    @cuda.jit
    def attend_chunk(q, k_pool, v_pool, table, lengths, part_out, part_lse, scale, softcap, left, right):
        # q: [B, H, S_q, D] float16   k_pool: [pages, page, H_kv, D]   v_pool: [pages, page, H_kv, D_v]
        # part_out: [B, H, S_q, chunks, D_v] float32   part_lse: [B, H, S_q, chunks]
        lane, tokens, page = cuda.threadIdx.x, q.shape[2], k_pool.shape[1]
        token, chunk = cuda.blockIdx.x % tokens, cuda.blockIdx.x // tokens * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        h_kv = h // (q.shape[1] // k_pool.shape[2])
        length = min(max(lengths[b], 0), table.shape[1] * page)  # the table has no pages for more
        begin, end = band(token, tokens, length, left, right)
        size = chunk_keys(length)
        begin, end = max(begin, chunk * size), min(end, (chunk + 1) * size)
        if begin >= end:
            return  # the row sees no key of this chunk, and the merge knows

        q_rmem = cuda.local.array((PAIRS, 2), float32)
        for i in range(PAIRS):
            x, y = load2(q, (b, h, token, 64 * i + 2 * lane))
            q_rmem[i, 0], q_rmem[i, 1] = x * scale, y * scale
        m, l = NOTHING, float32(0)
        o_rmem = cuda.local.array((V_PAIRS, 2), float32)
        for i in range(V_PAIRS):
            o_rmem[i, 0], o_rmem[i, 1] = float32(0), float32(0)
        for first in range(begin, end, LANES):
            # <exercise>
            keys = min(LANES, end - first)
            # Past the last key the table may hold anything: nobody looks.
            my_page = table[b, (first + lane) // page] if lane < keys else 0
            score = NOTHING
            for j in range(keys):
                key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), (first + j) % page
                partial = float32(0)
                for i in range(PAIRS):
                    x, y = load2(k_pool, (key_page, slot, h_kv, 64 * i + 2 * lane))
                    partial += q_rmem[i, 0] * x
                    partial += q_rmem[i, 1] * y
                partial = warp_sum(partial)
                score = partial if j == lane else score
            # </exercise>
            if softcapped:
                score = softcap * math.tanh(score / softcap) if lane < keys else NOTHING
            m_new = max(m, warp_max(score))
            rescale, p = math.exp(m - m_new), math.exp(score - m_new)
            m, l = m_new, l * rescale + p
            for i in range(V_PAIRS):
                o_rmem[i, 0] *= rescale
                o_rmem[i, 1] *= rescale
            for j in range(keys):
                key_page, p_j = cuda.shfl_sync(ALL_LANES, my_page, j), cuda.shfl_sync(ALL_LANES, p, j)
                for i in range(V_PAIRS):
                    x, y = load2(v_pool, (key_page, (first + j) % page, h_kv, 64 * i + 2 * lane))
                    o_rmem[i, 0] += p_j * x
                    o_rmem[i, 1] += p_j * y
        l = warp_sum(l)
        for i in range(V_PAIRS):
            for e in range(2):
                part_out[b, h, token, chunk, 64 * i + 2 * lane + e] = o_rmem[i, e] / l
        if lane == 0:
            part_lse[b, h, token, chunk] = m + math.log(l)

    return attend_chunk
