"""Stage 05: the scores are never stored; a running maximum and a running sum make one pass enough.

The block is that of stage 04: 16 warps, 16 query rows, tiles of 32 keys. For each row it carries m, the
largest score so far, l, the sum of exp(score - m) so far, and O, the same sum weighted by the rows of V. When
a tile brings a larger maximum, both sums are rescaled by exp(m - new m); so K and V are read together, once,
and the [S_q, S_k] matrix of scores never exists. m starts at minus infinity: exp(-inf - m) is exactly 0,
whatever the first scores are. (Milakov and Gimelshein 2018, algorithm 3; FlashAttention, algorithm 1.)
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import OF_MODELS
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.common import PAD, load_tile, warp_max, warp_sum
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most
from flashcore_numba.stages.parts.features import feature_parts, options_of
from flashcore_numba.stages.parts.mask import diagonal
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.stage04_shared_tiles import KEYS, ROWS, THREADS, accumulate_pv, dot


@functools.cache
def online_softmax_kernel(D, on=()):
    PARTS, STRIDE = D // KEYS, D + PAD  # output components a lane owns; floats from row to row of a tile
    # What a model adds, such as windows or sinks, these put into the kernel: without features, nothing.
    sequence, end, start, logit = feature_parts(on, ROWS)
    SINKS = "sinks" in on

    @cuda.jit
    def online_softmax(q, k, v, out, lse, scale, causal, options):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H_kv, S_k, D] float16   lse: [B, H, S_q] float32
        q_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        k_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        v_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        p_smem = cuda.shared.array((ROWS, KEYS), float32, alignment=16)
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        thread = warp * KEYS + lane
        tile, slope, q, k, v, out, lse = sequence(q, k, v, out, lse, options)
        first_row = tile * ROWS
        row = first_row + warp
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        h_kv = h // (q.shape[1] // k.shape[1])
        seq_q, seq_k = q.shape[2], k.shape[2]
        # A warp past the last row sees no key, but comes to every barrier.
        visible = end(row, seq_q, seq_k, causal, options) if row < seq_q else 0

        load_tile(q[b, h], first_row, q_smem, thread, THREADS)
        m = float32(-math.inf)
        l = float32(0)
        m, l = start(m, l, lane, options)
        o_rmem = cuda.local.array(PARTS, float32)
        for part in range(PARTS):
            o_rmem[part] = 0

        for first_key in range(0, seq_k, KEYS):
            load_tile(k[b, h_kv], first_key, k_smem, thread, THREADS)
            load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)
            cuda.syncthreads()  # Q and the tiles are whole before a lane reads a row that others wrote
            score = dot(q_smem, warp, k_smem, lane) * scale
            score = logit(score, diagonal(row, seq_q, seq_k) - first_key - lane, slope, options)
            score = score if first_key + lane < visible else float32(-math.inf)

            # <exercise>
            m_new = max(m, warp_max(score))
            # While no key has been seen m_new is -inf, and -inf - -inf would be NaN.
            m_ref = m_new if m_new > float32(-math.inf) else float32(0)
            rescale = math.exp(m - m_ref)
            p = math.exp(score - m_ref)
            l = l * rescale + p
            m = m_new
            p_smem[warp, lane] = p
            cuda.syncwarp()  # the warp's row of P is whole before its lanes read all of it
            for part in range(PARTS):
                o_rmem[part] *= rescale
            # </exercise>
            accumulate_pv(o_rmem, p_smem, warp, v_smem, lane)
            cuda.syncthreads()  # every warp has read K, V and P before the next tile overwrites them
        l = warp_sum(l)

        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        inv_l = float32(1) / l if visible > 0 else float32(0)
        if row < seq_q:
            for part in range(PARTS):
                out[b, h, row, lane + KEYS * part] = o_rmem[part] * inv_l
            if lane == 0:
                lse[b, h, row] = m + math.log(l) if visible > 0 or SINKS else float32(-math.inf)

    return online_softmax


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    lse = executor.empty((p.batch, p.heads, p.seq_q), np.float32) if lse is None else lse
    grid = (row_tiles_at_most(p, ROWS), p.heads, p.batch)
    kernel, scale = online_softmax_kernel(p.head_dim, p.features.names), np.float32(p.scale)
    executor.launch(kernel, grid, (KEYS, ROWS), p.q, p.k, p.v, out, lse, scale, p.causal, options_of(p))


STAGE = Stage(
    number=5,
    name="online_softmax",
    title="One pass, no score matrix",
    idea="A running maximum and a running sum replace the stored scores: the first fused kernel.",
    launch=launch,
    grouped_queries=True,
    features=OF_MODELS,
    outputs=(OUT, LSE),
)
