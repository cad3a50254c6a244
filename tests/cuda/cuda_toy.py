"""A small kernel in CUDA C, and a stage made of one, for tests of what loads, runs and breaks them."""

import numpy as np

from cuda_reference import source
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages import Stage

REVERSE = """// Reverses every 64 elements, times FACTOR.
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    __shared__ float tile_smem[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    tile_smem[threadIdx.x] = i < n ? x[i] * FACTOR : 0.0f;
    __syncthreads();  // the tile is whole before a thread reads what another wrote
    if (i < n) y[i] = tile_smem[63 - threadIdx.x];
}
"""
# Attention of one thread a query row, without any finesse: right, and slow.
PLAIN = """// One thread, one query row; two passes over the keys.
#include <cuda_fp16.h>
extern "C" __global__ void plain(const half* q, const half* k, const half* v, half* out, float* lse,
                                 long long q_batch, long long q_head, long long q_row,
                                 long long k_batch, long long k_head, long long k_row,
                                 long long v_batch, long long v_head, long long v_row,
                                 long long out_batch, long long out_head, long long out_row,
                                 int S_q, int S_k, int H, int group, float scale, int causal) {
    const int row = blockIdx.x * 32 + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
    if (row >= S_q) return;
    q += b * q_batch + h * q_head + row * q_row;
    k += b * k_batch + h / group * k_head;
    v += b * v_batch + h / group * v_head;
    out += b * out_batch + h * out_head + row * out_row;
    const int visible = causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k;
    float m = -3.4e38f, l = 0.0f, o_rmem[64];
    for (int c = 0; c < 64; c++) o_rmem[c] = 0.0f;
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < visible; j++) {
            float s = 0.0f;
            for (int c = 0; c < 64; c++) s += __half2float(q[c]) * __half2float(k[j * k_row + c]);
            s *= scale;
            if (pass == 0) {
                m = fmaxf(m, s);
            } else {
                const float p = exp2f((s - m) * 1.44269504f);
                l += p;
                for (int c = 0; c < 64; c++) o_rmem[c] += p * __half2float(v[j * v_row + c]);
            }
        }
    const float inv_l = visible > 0 ? 1.0f / l : 0.0f;
    for (int c = 0; c < 64; c++) out[c] = __float2half(o_rmem[c] * inv_l);
    if (lse) lse[(b * H + h) * S_q + row] = visible > 0 ? m + logf(l) : -__int_as_float(0x7f800000);
}
"""


def toy(folder, name="reverse", text=REVERSE, **defines):
    """The kernel in a file of its own under `folder`."""
    (folder / f"{name}.cu").write_text(text)
    return source(name, folder=folder, **defines)


def arguments(rng, n=100):
    """x, y and n of `reverse`, and what y must become, for FACTOR = 2."""
    x = rng.standard_normal(n).astype(np.float32)
    padded = np.zeros(-(-n // 64) * 64, np.float32)
    padded[:n] = 2 * x
    expected = padded.reshape(-1, 64)[:, ::-1].reshape(-1)[:n]
    return x, np.full(n, np.nan, np.float32), np.int32(n), expected


def plain_stage(folder, text=PLAIN):
    """A stage in CUDA C, of no ladder."""
    from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments

    kernel = toy(folder, "plain", text)

    def launch(problem, out, executor, lse=None, variant=None):
        p = problem
        grid = (-(-p.seq_q // 32), p.heads, p.batch)
        executor.launch(kernel, grid, 32, *cuda_arguments(p, out, lse, p.scale))

    return Stage(
        number=99, name="plain", title="plain", idea="plain", launch=launch, language="CUDA C",
        head_dims=(64,), grouped_queries=True, outputs=(OUT, LSE),
    )  # fmt: skip
