// What a warp does with tiles in shared memory where every product of a backward pass has its own parts: the
// products, and P^T and dS^T as tiles for them.
#pragma once
#include "gradient_keys.cuh"

using Weights = Tile<BLOCK_ROWS>;  // P^T or dS^T: a row for each key, a column for each query row

// What a lane reads of 16 x 16 elements by ldmatrix: its matrices one below the other first, or side by side.
template <class T> __device__ __forceinline__ int down(int lane) { return T::swizzled(lane % 16, lane / 16); }
template <class T> __device__ __forceinline__ int across(int lane) {
    return T::swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// X += A B, 16 * STEPS products for each element. A_SUMMED, B_SUMMED: the sum is over that tile's rows, and
// ldmatrix transposes it. A begins in the row at `a_smem` and column a_column, B likewise.
template <class A, bool A_SUMMED, class B, bool B_SUMMED, int STEPS, int ROWS, int COLUMNS>
__device__ __forceinline__ void multiply(Result (&x_rmem)[ROWS][COLUMNS], const element* a_smem, int a_column,
                                         const element* b_smem, int b_column, int lane) {
    const int a_offset = A_SUMMED ? across<A>(lane) : down<A>(lane);
    const int b_offset = B_SUMMED ? down<B>(lane) : across<B>(lane);
#pragma unroll 4
    for (int k = 0; k < STEPS; k++) {
        Operand a_rmem[ROWS], b_rmem;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if constexpr (A_SUMMED)
                ptx::ldmatrix_x4_trans(a_rmem[r],
                                       a_smem + 16 * k * A::PITCH + A::step(a_offset, a_column / 16 + r));
            else
                ptx::ldmatrix_x4(a_rmem[r],
                                 a_smem + 16 * r * A::PITCH + A::step(a_offset, a_column / 16 + k));
#pragma unroll
        for (int n = 0; n < COLUMNS / 2; n++) {
            if constexpr (B_SUMMED)
                ptx::ldmatrix_x4_trans(b_rmem,
                                       b_smem + 16 * k * B::PITCH + B::step(b_offset, b_column / 16 + n));
            else
                ptx::ldmatrix_x4(b_rmem, b_smem + 16 * n * B::PITCH + B::step(b_offset, b_column / 16 + k));
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                ptx::mma_m16n8k16(x_rmem[r][2 * n], a_rmem[r], b_rmem[0], b_rmem[1]);
                ptx::mma_m16n8k16(x_rmem[r][2 * n + 1], a_rmem[r], b_rmem[2], b_rmem[3]);
            }
        }
    }
}

// S^T = K Q^T or dP^T = V dO^T: the warp's keys from `own_smem` on, BLOCK_N rows from `tile_smem` on.
__device__ __forceinline__ void score(Scores& s_rmem, const element* own_smem, const element* tile_smem,
                                      int lane) {
    multiply<Rows, false, Rows, false, D / 16>(s_rmem, own_smem, 0, tile_smem, 0, lane);
}

// 16 query rows, from column `row` on, of the warp's keys, whose first begins at `weights_smem`.
__device__ __forceinline__ void store_weights(element* weights_smem, const Operand (&packed)[ROW_TILES],
                                              int row, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        element* keys_smem = weights_smem + 16 * r * Weights::PITCH;
        if constexpr (ptx::STMATRIX) {
            ptx::stmatrix_x4(keys_smem + Weights::step(down<Weights>(lane), row / 16), packed[r]);
        } else {
            const int pair = Weights::swizzled(lane / 4, 0) + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 4; i++)  // rows g and g + 8, of two chunks
                *(uint32_t*)(keys_smem + i % 2 * 8 * Weights::PITCH + (pair ^ (row + i / 2 * 8))) =
                    packed[r][i];
        }
    }
}

// P into shared memory, for query rows from column `row` on, and what dS takes for P in place of S^T, as
// exponentiate_pair has them.
__device__ __forceinline__ void exponentiate(element* p_smem, Scores& s_rmem, const float* lse2_smem, int row,
                                             float scale_log2, const Adjustment& adjustment, int diagonal,
                                             int lane) {
    Operand packed[ROW_TILES];
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 lse2 = *(const float2*)(lse2_smem + row + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++)
            packed[r / 2][n % 2 * 2 + r % 2] =
                exponentiate_pair(&s_rmem[r / 2][n][r % 2 * 2], lse2, scale_log2, adjustment,
                                  diagonal + 8 * r - 8 * n - lane % 4 * 2);
        if (n % 2 == 1) store_weights(p_smem, packed, row + n / 2 * 16, lane);
    }
}

// dS into shared memory, as P.
__device__ __forceinline__ void store_ds(element* ds_smem, const Scores& p_rmem, const Scores& dp_rmem,
                                         const float* delta_smem, int row, int lane) {
    Operand packed[ROW_TILES];
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 delta = *(const float2*)(delta_smem + row + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float *p = &p_rmem[r / 2][n][r % 2 * 2], *dp = &dp_rmem[r / 2][n][r % 2 * 2];
            packed[r / 2][n % 2 * 2 + r % 2] =
                ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));
        }
        if (n % 2 == 1) store_weights(ds_smem, packed, row + n / 2 * 16, lane);
    }
}
