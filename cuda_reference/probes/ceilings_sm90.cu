// As ceilings.cu, for the tensor cores of Hopper, which reach their full rate only through wgmma: two
// warpgroups multiply the same a [64, 64] and b [256, 64] from shared memory, so that one of them computes
// while the other waits for its sums. Each round adds a b^T to the sums of each warpgroup.
#include <cuda_fp16.h>

#include "ptx.cuh"

constexpr int DEPTH = 64, COLUMNS = 256;

extern "C" __global__ void __launch_bounds__(256, 1)
wgmma_chains(const half* a, const half* b, float* out, int rounds) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half *a_smem = reinterpret_cast<half*>(smem), *b_smem = a_smem + 64 * DEPTH;
    for (int i = threadIdx.x; i < 64 * DEPTH; i += blockDim.x) a_smem[i ^ i / DEPTH % 8 * 8] = a[i];
    for (int i = threadIdx.x; i < COLUMNS * DEPTH; i += blockDim.x) b_smem[i ^ i / DEPTH % 8 * 8] = b[i];
    ptx::fence_proxy_async();  // the tiles before wgmma reads them
    __syncthreads();           // everyone has stored
    const uint64_t a_tile = ptx::wgmma_tile(a_smem), b_tile = ptx::wgmma_tile(b_smem);
    float d[COLUMNS / 2] = {}, sum = 0.0f;
    for (int n = 0; n < rounds; n++) {
        ptx::wgmma_pin(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) ptx::wgmma_ss<COLUMNS>(d, a_tile + 2 * k, b_tile + 2 * k, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();  // the sums are in the registers
        ptx::wgmma_pin(d);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) sum += d[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
