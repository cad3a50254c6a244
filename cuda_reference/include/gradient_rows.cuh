// What the backward pass keeps of query rows in global memory: LSE, D and the sums of dQ, in padded rows, so
// that no tile of 64 or 128 rows holds rows of two sequences and none needs a bound.
//
// Kernels of the backward pass take `lse2`, LSE * log2(e), and `delta`, D = sum dO * O - dLSE, both
// [B, H, padded rows]. Rows of the padding, and those that see no key, have lse2 = inf and delta = 0: with
// them P = 2^(score - lse2) is 0 for every finite score, and dS = P * (dP - D) is 0 too.
// The sums of dQ, before its scale, are in the order of accumulators: [B, H, padded rows / 64] tiles of
// [D / 8][128 lanes] quads. Lane l of the 128 has of columns 8j to 8j + 7 what it has of an m64n8 product:
// rows 16 (l / 32) + g and + 8, columns 2t and 2t + 1, with g = l % 32 / 4 and t = l % 4. How the quads of a
// warp share their 512 bytes, `ptx::add_quad` says.
#pragma once
#include "params.cuh"
#include "ptx.cuh"

constexpr int ROW_PIECE = 128, SUM_ROWS = 64;
constexpr int SUMS_STEP = 4 * 128;  // sums from 8 columns of a lane to its next 8

// The rows of one head, S_q and the padding.
__device__ __forceinline__ int padded_rows(const Sizes& sizes) {
    const int sequences = RAGGED ? sizes.features.sequences : 1, most = RAGGED ? ROW_PIECE : ROW_PIECE - 1;
    return (sizes.S_q + sequences * most) / ROW_PIECE * ROW_PIECE;
}

// In [B, H, padded rows], where a head of a sequence begins: a multiple of ROW_PIECE.
__device__ __forceinline__ long long padded_before(const Sizes& sizes, const Sequence& sequence, int h) {
    const int first = RAGGED ? (sequence.first_row / ROW_PIECE + sequence.index) * ROW_PIECE : 0;
    return ((long long)sequence.batch * sizes.H + h) * padded_rows(sizes) + first;
}

// The sums of lane `lane` of a warp in the padded rows from `row`, a multiple of 16, and columns 8 * j on.
template <int COLUMNS>
__device__ __forceinline__ long long sums_before(long long row, int j, int lane) {
    const long long warps = (row / SUM_ROWS * (COLUMNS / 8) + j) * 4 + row % SUM_ROWS / 16;
    return warps * 128 + ptx::LANE_STRIDE * lane;
}

// Eight columns of rows g and g + 8, from where the sums of the 16 rows begin.
__device__ __forceinline__ void load_sums(float (&upper)[8], float (&lower)[8], const float* warp_sums,
                                          int g) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        constexpr bool QUADS = ptx::FLOAT_STRIDE == 1;  // one load has a lane's quad, else a float of 4 lanes
        const int first = QUADS ? ptx::LANE_STRIDE * (4 * g + i) : ptx::FLOAT_STRIDE * i + 4 * g;
        const float4 four = *(const float4*)(warp_sums + first);
        if (QUADS) {
            upper[2 * i] = four.x, upper[2 * i + 1] = four.y;
            lower[2 * i] = four.z, lower[2 * i + 1] = four.w;
        } else {
            float(&row)[8] = i < 2 ? upper : lower;
            row[i % 2] = four.x, row[2 + i % 2] = four.y, row[4 + i % 2] = four.z, row[6 + i % 2] = four.w;
        }
    }
}
