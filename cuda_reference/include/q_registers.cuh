// Columns of Q that stay in registers: what Q K^T reads of shared memory is then K, and the rest of Q.
#pragma once

#include "warpgroup_rows.cuh"

// The first 16 * CHUNKS columns of a warpgroup's Q as the left operand, from its tile.
template <int CHUNKS>
__device__ __forceinline__ void load_q(uint32_t (&q_rmem)[CHUNKS][4], const element* q_smem, int warp,
                                       int lane) {
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int chunk = k % 4 * 2 + lane / 16, row = warp * WARP_ROWS + lane % 16;
        ptx::ldmatrix_x4(q_rmem[k], q_smem + k / 4 * ROWS * 64 + row * 64 + (chunk ^ lane % 8) * 8);
    }
}

// S = Q K^T with these columns from registers, in flight until the next wgmma_wait.
template <int CHUNKS>
__device__ __forceinline__ void issue_qk(Scores& s_rmem, const uint32_t (&q_rmem)[CHUNKS][4],
                                         const element* q_smem, const element* k_smem) {
    const uint64_t k_tile = ptx::wgmma_tile(k_smem), q_tile = ptx::wgmma_tile(q_smem);
    ptx::wgmma_fence();  // the last use of these registers is over
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint64_t k_chunk = k_tile + k / 4 * (BLOCK_N * 8) + k % 4 * 2;
        if (k < CHUNKS)
            ptx::wgmma_rs<BLOCK_N>(s_rmem, q_rmem[k < CHUNKS ? k : 0], k_chunk, k > 0);
        else
            ptx::wgmma_ss<BLOCK_N>(s_rmem, q_tile + k / 4 * (ROWS * 8) + k % 4 * 2, k_chunk, k > 0);
    }
    ptx::wgmma_commit();
}
