"""Stage 04: K and V pass through shared memory in tiles that 16 query rows use together.

A block of 16 warps owns 16 query rows, one per warp. It brings 32 rows of K, then of V, into shared memory at
a time: each is read from global memory once for 16 query rows. With K in shared memory a lane can own a key,
so the dot product needs no shuffle. Two barriers per tile keep it whole while it is read. Its rows are padded
by 4 floats: without them, 32 lanes that read 16 bytes each would all meet in the same 4 banks.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.common import PAD, fma4, load_tile, warp_max, warp_sum
from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage
from flashcore_numba.wide import load4

ROWS = 16  # query rows per block, one per warp
KEYS = 32  # keys per tile, one per lane
THREADS = ROWS * KEYS


@cuda.jit(device=True)
def dot(q_smem, row, k_smem, key):
    """Q[row] . K[key], 16 bytes per load."""
    total = float32(0)
    for c in range(0, q_smem.shape[1] - PAD, 4):
        total = fma4(total, load4(q_smem, (row, c)), load4(k_smem, (key, c)))
    return total


@cuda.jit(device=True)
def accumulate_pv(o_rmem, p_smem, row, v_smem, lane):
    """o_rmem += P[row] V over the keys of a tile; `o_rmem[part]` is component `lane + 32 * part`."""
    for j in range(0, KEYS, 4):
        p = load4(p_smem, (row, j))
        for part in range(o_rmem.shape[0]):
            c = lane + KEYS * part
            v = v_smem[j, c], v_smem[j + 1, c], v_smem[j + 2, c], v_smem[j + 3, c]
            o_rmem[part] = fma4(o_rmem[part], p, v)


@functools.cache
def shared_tiles_kernel(D):
    PARTS, STRIDE = D // KEYS, D + PAD  # output components a lane owns; floats from row to row of a tile

    @cuda.jit
    def shared_tiles(q, k, v, out, scores, scale, causal):
        # q, out: [B, H, S_q, D] float16   k, v: [B, H, S_k, D] float16   scores: [B, H, S_q, S_k] float32
        q_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        kv_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        p_smem = cuda.shared.array((ROWS, KEYS), float32, alignment=16)
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        thread = warp * KEYS + lane
        first_row = cuda.blockIdx.x * ROWS
        row = first_row + warp
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        seq_q, seq_k = q.shape[2], k.shape[2]
        # A warp past the last row sees no key, but comes to every barrier.
        visible = interval(row, seq_q, seq_k, causal)[1] if row < seq_q else 0

        load_tile(q[b, h], first_row, q_smem, thread, THREADS)
        # <exercise>
        row_max = float32(-math.inf)
        for first_key in range(0, seq_k, KEYS):
            load_tile(k[b, h], first_key, kv_smem, thread, THREADS)
            cuda.syncthreads()  # Q and the K tile are whole before a lane reads a row that others wrote
            score = dot(q_smem, warp, kv_smem, lane) * scale
            if first_key + lane < visible:
                scores[b, h, row, first_key + lane] = score
                row_max = max(row_max, score)
            cuda.syncthreads()  # every warp has read the tile before the next one overwrites it
        row_max = warp_max(row_max)
        # </exercise>

        row_sum = float32(0)
        o_rmem = cuda.local.array(PARTS, float32)
        for part in range(PARTS):
            o_rmem[part] = 0
        for first_key in range(0, seq_k, KEYS):
            load_tile(v[b, h], first_key, kv_smem, thread, THREADS)
            p = float32(0)
            if first_key + lane < visible:
                p = math.exp(scores[b, h, row, first_key + lane] - row_max)
            row_sum += p
            p_smem[warp, lane] = p
            cuda.syncthreads()  # the V tile and P are whole before a lane reads what others wrote
            accumulate_pv(o_rmem, p_smem, warp, kv_smem, lane)
            cuda.syncthreads()  # every warp has read V and P before the next tile overwrites them
        row_sum = warp_sum(row_sum)

        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        inv_sum = float32(1) / row_sum if visible > 0 else float32(0)
        if row < seq_q:
            for part in range(PARTS):
                out[b, h, row, lane + KEYS * part] = o_rmem[part] * inv_sum

    return shared_tiles


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    scores = executor.empty((p.batch, p.heads, p.seq_q, p.seq_k), np.float32)
    kernel, grid = shared_tiles_kernel(p.head_dim), (-(-p.seq_q // ROWS), p.heads, p.batch)
    executor.launch(kernel, grid, (KEYS, ROWS), p.q, p.k, p.v, out, scores, np.float32(p.scale), p.causal)


STAGE = Stage(
    number=4,
    name="shared_tiles",
    title="Tiles in shared memory",
    idea="A block brings K and V into shared memory a tile at a time, and 16 query rows share each tile.",
    launch=launch,
)
