"""Stage 01: one thread computes one query row, and the scores go out to memory and come back.

Thread i of a 32-thread block owns query row i of one head. It walks over the keys three times: to write the
scores S[i, :] = scale * Q[i] . K[j] and find their maximum, to turn them into exp(S - max) and their sum, and
to gather the rows of V. This is the three lines of textbook softmax attention, so everything a later stage
does can be compared with it.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage

ROWS = 32  # query rows per block: one warp


@functools.cache
def scalar_kernel(D):
    @cuda.jit
    def scalar(q, k, v, out, scores, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H, S_k, D] float16   scores: [B, H, S_q, S_k] float32
        row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row >= q.shape[2]:
            return
        _, visible = interval(row, q.shape[2], k.shape[2], causal)

        # <exercise>
        row_max = float32(-math.inf)
        for j in range(visible):
            score = float32(0)
            for c in range(D):
                score += float32(q[b, h, row, c]) * float32(k[b, h, j, c])
            score *= scale
            scores[b, h, row, j] = score
            row_max = max(row_max, score)

        row_sum = float32(0)
        for j in range(visible):
            p = math.exp(scores[b, h, row, j] - row_max)
            scores[b, h, row, j] = p
            row_sum += p
        # </exercise>

        o_rmem = cuda.local.array(D, float32)
        for c in range(D):
            o_rmem[c] = 0
        for j in range(visible):
            p = scores[b, h, row, j]
            for c in range(D):
                o_rmem[c] += p * float32(v[b, h, j, c])
        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        inv_sum = float32(1) / row_sum if visible > 0 else float32(0)
        for c in range(D):
            out[b, h, row, c] = o_rmem[c] * inv_sum

    return scalar


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    scores = executor.empty((p.batch, p.heads, p.seq_q, p.seq_k), np.float32)
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    kernel = scalar_kernel(p.head_dim)
    executor.launch(kernel, grid, ROWS, p.q, p.k, p.v, out, scores, np.float32(p.scale), p.causal)


STAGE = Stage(
    number=1,
    name="scalar",
    title="One thread, one query row",
    idea="One thread computes one query row; its scores are written out and read back.",
    launch=launch,
)
