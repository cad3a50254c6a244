"""Stage 06: a thread keeps a small tile of the scores and of the output in registers.

In stage 05 every multiplication reads its operands from shared memory, and that is its limit. Here a thread
owns 2 rows x 4 keys of S, then 2 rows x 4 components of O (`stage06_fragments`): what it loads once it
multiplies two or four times. A block has 32 query rows and K/V tiles of 64 keys, at D = 128 half as many. P
takes the place of the K tile. K/V tiles that no row of the block sees are skipped, which halves the work of a
long causal problem. `stage06_history` holds the variants that led here.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.common import PAD, load_tile
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.stage06_fragments import COLS, TM, accumulate_pv, multiply_qk, row_max, row_sum
from flashcore_numba.stages.stage06_history import HISTORY, history_kernel

# By head dimension: warps per block and keys per K/V tile, as many as 48 KB of shared memory hold.
SHAPE = {64: (8, 64), 128: (4, 32)}


@functools.cache
def register_tiles_kernel(D):
    """The kernel, the query rows of a block, and its threads."""
    WARPS, KEYS = SHAPE[D]
    ROWS, THREADS, STRIDE = 2 * TM * WARPS, 32 * WARPS, D + PAD
    TN, MINE = KEYS // COLS, D // COLS  # keys, then components, that a thread owns
    NOTHING = float32(-math.inf)

    @cuda.jit
    def register_tiles(q, k, v, out, lse, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H_kv, S_k, D] float16   lse: [B, H, S_q] float32
        q_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        k_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        v_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        s_rmem, o_rmem = cuda.local.array((TM, TN), float32), cuda.local.array((TM, MINE), float32)
        m, l = cuda.local.array(TM, float32), cuda.local.array(TM, float32)
        thread, col = cuda.threadIdx.x, cuda.threadIdx.x % 32 // 2
        my_row = TM * (thread // 32 * 2 + thread % 2)
        first_row = cuda.blockIdx.x * ROWS
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        h_kv = h // (q.shape[1] // k.shape[1])
        seq_q, seq_k = q.shape[2], k.shape[2]
        last_row = min(first_row + ROWS, seq_q) - 1

        load_tile(q[b, h], first_row, q_smem, thread, THREADS)
        for r in range(TM):
            m[r], l[r] = NOTHING, float32(0)
            for i in range(MINE):
                o_rmem[r, i] = 0

        for first_key in range(0, interval(last_row, seq_q, seq_k, causal)[1], KEYS):
            load_tile(k[b, h_kv], first_key, k_smem, thread, THREADS)
            load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)
            cuda.syncthreads()  # Q and the tiles are whole before a thread reads what others wrote
            multiply_qk(s_rmem, q_smem, my_row, k_smem, col, D)
            cuda.syncthreads()  # every warp has read the K tile before P overwrites it
            for r in range(TM):
                seen = interval(first_row + my_row + r, seq_q, seq_k, causal)[1] - first_key
                m_new = m[r]
                for j in range(TN):
                    s_rmem[r, j] = s_rmem[r, j] * scale if col + COLS * j < seen else NOTHING
                    m_new = max(m_new, s_rmem[r, j])
                m_new = row_max(m_new)
                # While no key has been seen m_new is -inf, and -inf - -inf would be NaN.
                m_ref = m_new if m_new > NOTHING else float32(0)
                rescale = math.exp(m[r] - m_ref)
                m[r] = m_new
                l[r] *= rescale
                for i in range(MINE):
                    o_rmem[r, i] *= rescale
                for j in range(TN):
                    p = math.exp(s_rmem[r, j] - m_ref)
                    l[r] += p
                    k_smem[my_row + r, col + COLS * j] = p
            cuda.syncwarp()  # the warp's rows of P are whole before its lanes read all of them
            accumulate_pv(o_rmem, k_smem, my_row, v_smem, col, KEYS)
            cuda.syncthreads()  # every warp has read V and P before the next tiles overwrite them

        for r in range(TM):
            row, total = first_row + my_row + r, row_sum(l[r])
            if row < seq_q:
                # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
                inv_l = float32(1) / total if total != 0 else float32(0)
                for i in range(MINE):
                    out[b, h, row, COLS * (i // 4 * 4) + 4 * col + i % 4] = o_rmem[r, i] * inv_l
                if col == 0:
                    lse[b, h, row] = m[r] + math.log(total) if total != 0 else NOTHING

    return register_tiles, ROWS, THREADS


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    lse = executor.empty((p.batch, p.heads, p.seq_q), np.float32) if lse is None else lse
    D = p.head_dim
    kernel, rows, block = history_kernel(D, variant) if variant in HISTORY else register_tiles_kernel(D)
    grid = (-(-p.seq_q // rows), p.heads, p.batch)
    executor.launch(kernel, grid, block, p.q, p.k, p.v, out, lse, np.float32(p.scale), p.causal)


STAGE = Stage(
    number=6,
    name="register_tiles",
    title="Tiles in registers",
    idea="A thread owns a tile of S and of O in registers, so each value loaded is multiplied several times.",
    launch=launch,
    grouped_queries=True,
    outputs=(OUT, LSE),
    variants=HISTORY | {"register_tiles": "2 x 4 tiles of S and O in the registers of a thread"},
)
