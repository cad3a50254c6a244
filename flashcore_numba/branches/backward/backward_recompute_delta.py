"""Before the passes D of every query row, and after them dQ where it was summed up in float32."""

import functools

from numba import cuda, float32

from flashcore_numba.stages.parts.common import warp_sum
from flashcore_numba.wide import load2

WARPS = 4  # query rows per block
LANES = 32


@functools.cache
def delta_kernel(D, with_dlse, clears=False):
    """A warp per query row. Without `with_dlse` dlse is not read; with `clears` dq_sum becomes zero."""

    @cuda.jit
    def delta_rows(out, dout, dlse, delta, dq_sum):
        # out, dout: [B, H, S_q, D] float16   dlse, delta: [B, H, S_q] float32   dq_sum: [B, H, S_q, D]
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row >= out.shape[2]:
            return
        total = float32(0)
        for c in range(2 * lane, D, 2 * LANES):
            o0, o1 = load2(out, (b, h, row, c))
            do0, do1 = load2(dout, (b, h, row, c))
            total += o0 * do0
            total += o1 * do1
            if clears:
                dq_sum[b, h, row, c], dq_sum[b, h, row, c + 1] = float32(0), float32(0)
        total = warp_sum(total)
        if lane == 0:
            delta[b, h, row] = total - dlse[b, h, row] if with_dlse else total

    return delta_rows


@functools.cache
def scaled_kernel(D):
    @cuda.jit
    def scaled(dq_sum, dq, scale):
        # dq_sum: [B, H, S_q, D] float32   dq: [B, H, S_q, D] float16
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if row < dq.shape[2]:
            for c in range(cuda.threadIdx.x, D, LANES):
                dq[b, h, row, c] = dq_sum[b, h, row, c] * scale

    return scaled
