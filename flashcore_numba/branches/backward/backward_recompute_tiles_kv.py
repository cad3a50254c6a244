"""dK and dV by tiles: a block owns 16 keys, and tiles of query rows pass by.

The kernel of dQ with rows and keys exchanged: S^T = K Q^T and dP^T = V dO^T, and the lanes have the number of
every passing row where they had those of their own. P^T and dS^T take turns in one buffer. The query heads
that read a K/V head pass one after another, so their gradients meet in registers and nobody adds in memory.
"""

import functools
import math

from numba import cuda, float32

from flashcore_numba.branches.backward.backward_recompute_tiles_q import (
    OWN,
    PASSING,
    SHIFT,
    THREADS,
    store_rows,
)
from flashcore_numba.stages.parts.common import PAD, load_tile
from flashcore_numba.stages.parts.mask import band
from flashcore_numba.stages.stage06_fragments import COLS, TM, accumulate_pv, multiply_qk


@functools.cache
def grad_kv_kernel(D):
    ROWS, STRIDE, MINE = PASSING[D], D + PAD, D // COLS
    P_STRIDE = ROWS + SHIFT
    TN = ROWS // COLS  # query rows that a thread owns

    @cuda.jit
    def grad_kv(q, k, v, dout, lse, delta, dk, dv, scale, left, right):
        # q, dout: [B, H, S_q, D] float16   k, v, dk, dv: [B, H_kv, S_k, D] float16   lse, delta: [B, H, S_q]
        k_smem = cuda.shared.array((OWN, STRIDE), float32, alignment=16)
        v_smem = cuda.shared.array((OWN, STRIDE), float32, alignment=16)
        q_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        do_smem = cuda.shared.array((ROWS, STRIDE), float32, alignment=16)
        p_smem = cuda.shared.array((OWN, P_STRIDE), float32, alignment=16)  # [key, row]: P^T, then dS^T
        s_rmem, dp_rmem = cuda.local.array((TM, TN), float32), cuda.local.array((TM, TN), float32)
        lse_rmem, delta_rmem = cuda.local.array(TN, float32), cuda.local.array(TN, float32)
        dk_rmem, dv_rmem = cuda.local.array((TM, MINE), float32), cuda.local.array((TM, MINE), float32)
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        thread, col = 32 * warp + lane, lane // 2
        my_key = TM * (2 * warp + lane % 2)
        first_key = cuda.blockIdx.x * OWN
        h_kv, b = cuda.blockIdx.y, cuda.blockIdx.z
        group = q.shape[1] // k.shape[1]
        seq_q, seq_k = q.shape[2], k.shape[2]
        start = band(first_key, seq_k, seq_q, right, left)[0] // ROWS * ROWS
        stop = band(min(first_key + OWN, seq_k) - 1, seq_k, seq_q, right, left)[1]

        load_tile(k[b, h_kv], first_key, k_smem, thread, THREADS)
        load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)
        for r in range(TM):
            for i in range(MINE):
                dk_rmem[r, i], dv_rmem[r, i] = float32(0), float32(0)
        for h in range(h_kv * group, h_kv * group + group):  # all query heads that read these keys
            for first_row in range(start, stop, ROWS):
                load_tile(q[b, h], first_row, q_smem, thread, THREADS)
                load_tile(dout[b, h], first_row, do_smem, thread, THREADS)
                for j in range(TN):
                    row = first_row + col + COLS * j
                    lse_rmem[j] = lse[b, h, row] if row < seq_q else float32(0)
                    delta_rmem[j] = delta[b, h, row] if row < seq_q else float32(0)
                cuda.syncthreads()  # the tiles are whole before a thread reads what others wrote
                multiply_qk(s_rmem, k_smem, my_key, q_smem, col, D)
                multiply_qk(dp_rmem, v_smem, my_key, do_smem, col, D)
                for r in range(TM):
                    key = first_key + my_key + r
                    begin, end = band(key, seq_k, seq_q, right, left)
                    for j in range(TN):
                        row = first_row + col + COLS * j
                        seen = begin <= row < end and key < seq_k
                        p = math.exp(s_rmem[r, j] * scale - lse_rmem[j]) if seen else float32(0)
                        s_rmem[r, j] = p * (dp_rmem[r, j] - delta_rmem[j])
                        p_smem[my_key + r, col + COLS * j] = p
                cuda.syncwarp()  # the warp's rows of P^T are whole before its lanes read all of them
                accumulate_pv(dv_rmem, p_smem, my_key, do_smem, col, ROWS)
                cuda.syncwarp()  # its lanes have read P^T before dS^T takes its place
                for r in range(TM):
                    for j in range(TN):
                        p_smem[my_key + r, col + COLS * j] = s_rmem[r, j]
                cuda.syncwarp()  # the warp's rows of dS^T are whole before its lanes read all of them
                accumulate_pv(dk_rmem, p_smem, my_key, q_smem, col, ROWS)
                cuda.syncthreads()  # every warp has read Q, dO and dS^T before the next tile overwrites them
        store_rows(dk[b, h_kv], first_key + my_key, col, dk_rmem, scale)
        store_rows(dv[b, h_kv], first_key + my_key, col, dv_rmem, float32(1))

    return grad_kv
