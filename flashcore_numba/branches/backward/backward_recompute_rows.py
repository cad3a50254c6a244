"""The backward pass by rows: a warp owns a query row for dQ, then a warp owns a key for dK and dV.

Lane i has the components 2 i and 2 i + 1 of every 64, as in stage 03, so a row is one request of the warp and
a butterfly of shuffles leaves both dot products, S and dP, in every lane. What a warp owns it adds up in
registers and writes once. Who owns the rows must therefore compute S and dP a second time for the keys: seven
products instead of five. With `adds` the warp of a key adds its share of dQ to memory instead, where warps
meet in an order that nobody knows: five products, and a dQ that is rounded differently from run to run.
"""

import functools
import math

from numba import cuda, float32

from flashcore_numba.branches.backward.backward_recompute_delta import WARPS
from flashcore_numba.stages.parts.common import warp_sum
from flashcore_numba.stages.parts.mask import band
from flashcore_numba.wide import load2


@functools.cache
def grad_q_kernel(D):
    PAIRS = D // 64  # pairs of components a lane owns

    @cuda.jit
    def grad_q(q, k, v, dout, lse, delta, dq, scale, left, right):
        # q, dout, dq: [B, H, S_q, D] float16   k, v: [B, H_kv, S_k, D] float16   lse, delta: [B, H, S_q]
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row >= q.shape[2]:
            return
        h_kv = h // (q.shape[1] // k.shape[1])
        k_head, v_head = k[b, h_kv], v[b, h_kv]
        begin, end = band(row, q.shape[2], k.shape[2], left, right)
        row_lse, row_delta = lse[b, h, row], delta[b, h, row]

        q_rmem, do_rmem = cuda.local.array((PAIRS, 2), float32), cuda.local.array((PAIRS, 2), float32)
        k_rmem, dq_rmem = cuda.local.array((PAIRS, 2), float32), cuda.local.array((PAIRS, 2), float32)
        for i in range(PAIRS):
            q_rmem[i, 0], q_rmem[i, 1] = load2(q, (b, h, row, 64 * i + 2 * lane))
            do_rmem[i, 0], do_rmem[i, 1] = load2(dout, (b, h, row, 64 * i + 2 * lane))
            dq_rmem[i, 0], dq_rmem[i, 1] = float32(0), float32(0)
        for key in range(begin, end):
            # <exercise>
            s, dp = float32(0), float32(0)
            for i in range(PAIRS):
                k_rmem[i, 0], k_rmem[i, 1] = load2(k_head, (key, 64 * i + 2 * lane))
                x, y = load2(v_head, (key, 64 * i + 2 * lane))
                s += q_rmem[i, 0] * k_rmem[i, 0]
                s += q_rmem[i, 1] * k_rmem[i, 1]
                dp += do_rmem[i, 0] * x
                dp += do_rmem[i, 1] * y
            s, dp = warp_sum(s), warp_sum(dp)
            # The forward pass kept one number per row, with which a weight is one exponential away.
            p = math.exp(s * scale - row_lse)
            ds = p * (dp - row_delta)
            for i in range(PAIRS):
                dq_rmem[i, 0] += ds * k_rmem[i, 0]
                dq_rmem[i, 1] += ds * k_rmem[i, 1]
            # </exercise>
        for i in range(PAIRS):
            dq[b, h, row, 64 * i + 2 * lane] = dq_rmem[i, 0] * scale
            dq[b, h, row, 64 * i + 2 * lane + 1] = dq_rmem[i, 1] * scale

    return grad_q


@functools.cache
def grad_kv_kernel(D, adds=False):
    """With `adds`, dQ / scale is added to dq_sum [B, H, S_q, D] float32, which else is not used."""
    PAIRS = D // 64

    @cuda.jit
    def grad_kv(q, k, v, dout, lse, delta, dk, dv, dq_sum, scale, left, right):
        lane = cuda.threadIdx.x
        key = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h_kv, b = cuda.blockIdx.y, cuda.blockIdx.z
        if key >= k.shape[2]:
            return
        group = q.shape[1] // k.shape[1]
        # The mask with rows and keys exchanged: every row from `begin` on and before `end` sees this key.
        begin, end = band(key, k.shape[2], q.shape[2], right, left)

        k_rmem, v_rmem = cuda.local.array((PAIRS, 2), float32), cuda.local.array((PAIRS, 2), float32)
        q_rmem, do_rmem = cuda.local.array((PAIRS, 2), float32), cuda.local.array((PAIRS, 2), float32)
        dk_rmem, dv_rmem = cuda.local.array((PAIRS, 2), float32), cuda.local.array((PAIRS, 2), float32)
        for i in range(PAIRS):
            k_rmem[i, 0], k_rmem[i, 1] = load2(k, (b, h_kv, key, 64 * i + 2 * lane))
            v_rmem[i, 0], v_rmem[i, 1] = load2(v, (b, h_kv, key, 64 * i + 2 * lane))
            for e in range(2):
                dk_rmem[i, e], dv_rmem[i, e] = float32(0), float32(0)
        for h in range(h_kv * group, h_kv * group + group):  # all query heads that read this key
            for row in range(begin, end):
                s, dp = float32(0), float32(0)
                for i in range(PAIRS):
                    q_rmem[i, 0], q_rmem[i, 1] = load2(q, (b, h, row, 64 * i + 2 * lane))
                    do_rmem[i, 0], do_rmem[i, 1] = load2(dout, (b, h, row, 64 * i + 2 * lane))
                    for e in range(2):
                        s += q_rmem[i, e] * k_rmem[i, e]
                        dp += do_rmem[i, e] * v_rmem[i, e]
                s, dp = warp_sum(s), warp_sum(dp)
                p = math.exp(s * scale - lse[b, h, row])
                ds = p * (dp - delta[b, h, row])
                for i in range(PAIRS):
                    for e in range(2):
                        dv_rmem[i, e] += p * do_rmem[i, e]
                        dk_rmem[i, e] += ds * q_rmem[i, e]
                        if adds:
                            cuda.atomic.add(dq_sum, (b, h, row, 64 * i + 2 * lane + e), ds * k_rmem[i, e])
        for i in range(PAIRS):
            for e in range(2):
                dk[b, h_kv, key, 64 * i + 2 * lane + e] = dk_rmem[i, e] * scale
                dv[b, h_kv, key, 64 * i + 2 * lane + e] = dv_rmem[i, e]

    return grad_kv
