"""Stage 02: neighbouring lanes touch neighbouring bytes, and every load brings 16 of them.

The work is divided as in stage 01: thread i of a block owns query row i. Two things move. The scores are
stored transposed, [keys, rows], so the 32 lanes of a warp write 32 neighbouring floats: 4 sectors per request
instead of 32. And a row of Q, K or V is read eight float16 at a time, 16 bytes in one instruction, so the row
of K that all lanes share takes D / 8 loads instead of D. The query row and the output row wait in registers
meanwhile.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.common import load_row, store_row
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage
from flashcore_numba.wide import load8

ROWS = 32  # query rows per block: one warp


@cuda.jit(device=True)
def dot(q_rmem, k_head, j):
    """The dot product of the query row with key j."""
    total = float32(0)
    for c in range(0, q_rmem.shape[0], 8):
        part = load8(k_head, (j, c))
        for e in range(8):
            total += q_rmem[c + e] * part[e]
    return total


@cuda.jit(device=True)
def accumulate_pv(o_rmem, p, v_head, j):
    """o_rmem += p * V[j]."""
    for c in range(0, o_rmem.shape[0], 8):
        part = load8(v_head, (j, c))
        for e in range(8):
            o_rmem[c + e] += p * part[e]


@functools.cache
def coalesced_kernel(D):
    @cuda.jit
    def coalesced(q, k, v, out, scores, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H, S_k, D] float16   scores: [B, H, S_k, S_q] float32
        row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row >= q.shape[2]:
            return
        _, visible = interval(row, q.shape[2], k.shape[2], causal)
        k_head, v_head = k[b, h], v[b, h]

        q_rmem = cuda.local.array(D, float32)
        load_row(q[b, h, row], q_rmem, scale)
        # <exercise>
        row_max = float32(-math.inf)
        for j in range(visible):
            score = dot(q_rmem, k_head, j)
            scores[b, h, j, row] = score
            row_max = max(row_max, score)

        o_rmem = cuda.local.array(D, float32)
        for c in range(D):
            o_rmem[c] = 0
        row_sum = float32(0)
        for j in range(visible):
            p = math.exp(scores[b, h, j, row] - row_max)
            row_sum += p
            accumulate_pv(o_rmem, p, v_head, j)
        # </exercise>

        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        store_row(out[b, h, row], o_rmem, float32(1) / row_sum if visible > 0 else float32(0))

    return coalesced


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    scores = executor.empty((p.batch, p.heads, p.seq_k, p.seq_q), np.float32)
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    kernel = coalesced_kernel(p.head_dim)
    executor.launch(kernel, grid, ROWS, p.q, p.k, p.v, out, scores, np.float32(p.scale), p.causal)


STAGE = Stage(
    number=2,
    name="coalesced",
    title="Neighbouring lanes, neighbouring bytes",
    idea="Scores are stored so that neighbouring lanes write neighbouring bytes; loads are 128 bits wide.",
    launch=launch,
)
