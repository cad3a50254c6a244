"""Stage 03: a warp computes one query row, and its lanes add up by shuffles.

Lane i of a warp owns the components 2 i and 2 i + 1 of every 64, so a row of Q, K or V is one contiguous
request of the whole warp and the query row costs each lane D / 32 registers. The price is that a score is now
spread over 32 lanes: a butterfly of five shuffles adds it up and leaves the sum in every lane, with no shared
memory and no atomics. 32 times as many threads run as in stage 02, which hides the latency of the loads.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.common import ALL_LANES, warp_max, warp_sum
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage
from flashcore_numba.wide import load2

WARPS = 4  # query rows per block
LANES = 32


@functools.cache
def warp_reduction_kernel(D):
    PAIRS = D // 64  # pairs of components a lane owns

    @cuda.jit
    def warp_reduction(q, k, v, out, scores, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H, S_k, D] float16   scores: [B, H, S_q, S_k] float32
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row >= q.shape[2]:
            return
        _, visible = interval(row, q.shape[2], k.shape[2], causal)
        k_head, v_head = k[b, h], v[b, h]

        q_rmem = cuda.local.array((PAIRS, 2), float32)
        for i in range(PAIRS):
            x, y = load2(q, (b, h, row, 64 * i + 2 * lane))
            q_rmem[i, 0], q_rmem[i, 1] = x * scale, y * scale
        # <exercise>
        row_max = float32(-math.inf)
        for first_key in range(0, visible, LANES):
            mine = float32(-math.inf)  # lane j keeps the score of key first_key + j
            for j in range(min(LANES, visible - first_key)):
                partial = float32(0)
                for i in range(PAIRS):
                    x, y = load2(k_head, (first_key + j, 64 * i + 2 * lane))
                    partial += q_rmem[i, 0] * x
                    partial += q_rmem[i, 1] * y
                for step in range(5):  # the butterfly that `warp_sum` is
                    partial += cuda.shfl_xor_sync(ALL_LANES, partial, 16 >> step)
                mine = partial if j == lane else mine
            if first_key + lane < visible:
                scores[b, h, row, first_key + lane] = mine
                row_max = max(row_max, mine)
        row_max = warp_max(row_max)
        # </exercise>

        row_sum = float32(0)
        o_rmem = cuda.local.array((PAIRS, 2), float32)
        for i in range(PAIRS):
            o_rmem[i, 0], o_rmem[i, 1] = float32(0), float32(0)
        for first_key in range(0, visible, LANES):
            p = float32(0)
            if first_key + lane < visible:
                p = math.exp(scores[b, h, row, first_key + lane] - row_max)
            row_sum += p
            for j in range(min(LANES, visible - first_key)):
                p_j = cuda.shfl_sync(ALL_LANES, p, j)
                for i in range(PAIRS):
                    x, y = load2(v_head, (first_key + j, 64 * i + 2 * lane))
                    o_rmem[i, 0] += p_j * x
                    o_rmem[i, 1] += p_j * y
        row_sum = warp_sum(row_sum)

        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        inv_sum = float32(1) / row_sum if visible > 0 else float32(0)
        for i in range(PAIRS):
            out[b, h, row, 64 * i + 2 * lane] = o_rmem[i, 0] * inv_sum
            out[b, h, row, 64 * i + 2 * lane + 1] = o_rmem[i, 1] * inv_sum

    return warp_reduction


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    scores = executor.empty((p.batch, p.heads, p.seq_q, p.seq_k), np.float32)
    grid = (-(-p.seq_q // WARPS), p.heads, p.batch)
    kernel = warp_reduction_kernel(p.head_dim)
    executor.launch(kernel, grid, (LANES, WARPS), p.q, p.k, p.v, out, scores, np.float32(p.scale), p.causal)


STAGE = Stage(
    number=3,
    name="warp_reduction",
    title="One warp per query row",
    idea="A warp computes one query row; shuffles add up what its 32 lanes hold.",
    launch=launch,
)
