"""dQ by tiles: a block owns 16 query rows, and tiles of keys pass by.

Q and dO of the rows stay in shared memory. A warp owns 4 rows of S and of dP, a thread 2 rows and every 16th
key of both, then 2 rows and 4 neighbours of every 64 components of dQ: the fragments of stage 06. dS goes
through shared memory between the warp's own lanes, so it needs no barrier of the block.
"""

import functools
import math

from numba import cuda, float32, int32

from flashcore_numba.stages.parts.common import PAD, load_tile
from flashcore_numba.stages.parts.mask import band
from flashcore_numba.stages.stage06_fragments import COLS, TM, accumulate_pv, multiply_qk

WARPS = 4
OWN, THREADS = 2 * TM * WARPS, 32 * WARPS  # rows, or keys, that a block owns; its threads
PASSING = {64: 64, 128: 16}  # keys, or rows, of a passing tile, by head dimension: what 48 KB hold
SHIFT = 8  # floats after each row of P or dS: rows that a warp writes together, TM apart, meet in no bank


@cuda.jit(device=True)
def store_rows(head, row, col, rmem, factor):
    """`head[row + r] = factor * rmem[r]` where the row exists; `rmem[r, 4 i + e]` is component
    64 i + 4 col + e.
    """
    for r in range(TM):
        if row + r < head.shape[0]:
            for i in range(rmem.shape[1]):
                head[row + r, COLS * (i // 4 * 4) + 4 * col + i % 4] = rmem[r, i] * factor


@functools.cache
def grad_q_kernel(D):
    KEYS, STRIDE, MINE = PASSING[D], D + PAD, D // COLS
    DS_STRIDE = KEYS + SHIFT
    TN = KEYS // COLS  # keys that a thread owns

    @cuda.jit
    def grad_q(q, k, v, dout, lse, delta, dq, scale, left, right):
        # q, dout, dq: [B, H, S_q, D] float16   k, v: [B, H_kv, S_k, D] float16   lse, delta: [B, H, S_q]
        q_smem = cuda.shared.array((OWN, STRIDE), float32, alignment=16)
        do_smem = cuda.shared.array((OWN, STRIDE), float32, alignment=16)
        k_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        v_smem = cuda.shared.array((KEYS, STRIDE), float32, alignment=16)
        ds_smem = cuda.shared.array((OWN, DS_STRIDE), float32, alignment=16)
        s_rmem, dp_rmem = cuda.local.array((TM, TN), float32), cuda.local.array((TM, TN), float32)
        begin, end = cuda.local.array(TM, int32), cuda.local.array(TM, int32)
        lse_rmem, delta_rmem = cuda.local.array(TM, float32), cuda.local.array(TM, float32)
        dq_rmem = cuda.local.array((TM, MINE), float32)
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        thread, col = 32 * warp + lane, lane // 2
        my_row = TM * (2 * warp + lane % 2)
        first_row = cuda.blockIdx.x * OWN
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        h_kv = h // (q.shape[1] // k.shape[1])
        seq_q, seq_k = q.shape[2], k.shape[2]
        start = band(first_row, seq_q, seq_k, left, right)[0] // KEYS * KEYS
        stop = band(min(first_row + OWN, seq_q) - 1, seq_q, seq_k, left, right)[1]

        load_tile(q[b, h], first_row, q_smem, thread, THREADS)
        load_tile(dout[b, h], first_row, do_smem, thread, THREADS)
        for r in range(TM):
            row = first_row + my_row + r
            begin[r], end[r], lse_rmem[r], delta_rmem[r] = 0, 0, float32(0), float32(0)
            if row < seq_q:
                begin[r], end[r] = band(row, seq_q, seq_k, left, right)
                lse_rmem[r], delta_rmem[r] = lse[b, h, row], delta[b, h, row]
            for i in range(MINE):
                dq_rmem[r, i] = 0
        for first_key in range(start, stop, KEYS):
            load_tile(k[b, h_kv], first_key, k_smem, thread, THREADS)
            load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)
            cuda.syncthreads()  # the tiles are whole before a thread reads what others wrote
            multiply_qk(s_rmem, q_smem, my_row, k_smem, col, D)
            multiply_qk(dp_rmem, do_smem, my_row, v_smem, col, D)
            for r in range(TM):
                for j in range(TN):
                    key = first_key + col + COLS * j
                    # What is masked is P: a score of -inf times a negative scale would be seen after all.
                    seen = begin[r] <= key < end[r]
                    p = math.exp(s_rmem[r, j] * scale - lse_rmem[r]) if seen else float32(0)
                    ds_smem[my_row + r, col + COLS * j] = p * (dp_rmem[r, j] - delta_rmem[r])
            cuda.syncwarp()  # the warp's rows of dS are whole before its lanes read all of them
            accumulate_pv(dq_rmem, ds_smem, my_row, k_smem, col, KEYS)
            cuda.syncthreads()  # every warp has read K, V and dS before the next tile overwrites them
        store_rows(dq[b, h], first_row + my_row, col, dq_rmem, scale)

    return grad_q
