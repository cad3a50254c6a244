// Tiles of 16 keys in e4m3, a byte per number, for the rows of one warp (warp_rows.cuh). Bytes become
// elements in registers, without rounding; a scale of the K/V head multiplies S, another one O.
//
// ldmatrix hands out four bytes at a time. Of K they are columns 4t to 4t + 3 of key g: S sums columns in
// that order, and Q is read in it. Of V, transposed, they are columns 2g and 2g + 1 of keys 2t and 2t + 1: of
// each 16 columns one product has the even ones and the next the odd ones, so a lane has columns 4t to 4t + 3
// of O.
#pragma once
#include "warp_rows.cuh"

// A row is D bytes, in chunks of 16. The 8 rows that a phase of ldmatrix reads are in different banks.
struct Bytes {
    static constexpr int CHUNKS = D / 16, LANES = CHUNKS;

    static __device__ __forceinline__ int swizzled(int row, int chunk) {
        return row * D + (chunk ^ (CHUNKS < 8 ? row / 2 % CHUNKS : row % 8)) * 16;
    }
};

// Chunks 2 * k and 2 * k + 1 of all keys: keys 0 to 7 and 8 to 15 of the first, then of the second.
__device__ __forceinline__ const uint8_t* chunk_of(const uint8_t* tile_smem, int k, int lane) {
    return tile_smem + Bytes::swizzled(lane % 16, 2 * k + lane / 16);
}

__device__ __forceinline__ void to_elements(uint32_t (&pairs)[2], uint32_t bytes) {
    pairs[0] = Element::pair_of(ptx::widen_e4m3((uint16_t)bytes));
    pairs[1] = Element::pair_of(ptx::widen_e4m3((uint16_t)(bytes >> 16)));
}

// Rows 16 * tile and columns 16 * k onwards of the warp's Q, columns in the order of K's.
__device__ __forceinline__ void load_four_q(Operand& q_rmem, const element* q_smem, int tile, int k,
                                            int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 16 * tile + 8 * i + lane / 4, t = lane % 4;
        const uint2 four = *(const uint2*)(q_smem + Tile<D>::swizzled(row, 2 * k + t / 2) + t % 2 * 4);
        q_rmem[i] = four.x, q_rmem[2 + i] = four.y;
    }
}

__device__ __forceinline__ void load_fours(Queries& q_rmem, const element* q_smem, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int k = 0; k < D / 16; k++) load_four_q(q_rmem[r][k], q_smem, r, k, lane);
}

// S = Q K^T, without the scale of K
__device__ __forceinline__ void score_tile(Scores& s_rmem, Queries& q_rmem, const element* q_smem,
                                           const uint8_t* k_smem, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s_rmem[r][n][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k += 2) {
        if (!Q_IN_REGISTERS)
#pragma unroll
            for (int r = 0; r < 2 * ROW_TILES; r++)
                load_four_q(q_rmem[r / 2][k + r % 2], q_smem, r / 2, k + r % 2, lane);
        Operand bytes_rmem;
        ptx::ldmatrix_x4(bytes_rmem, chunk_of(k_smem, k / 2, lane));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t k_rmem[2];
            to_elements(k_rmem, bytes_rmem[i]);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
                ptx::mma_m16n8k16(s_rmem[r][i % 2], q_rmem[r][k + i / 2], k_rmem[0], k_rmem[1]);
        }
    }
}

// O += P V, without the scale of V
__device__ __forceinline__ void accumulate_pv(Output& o_rmem, const P& p_rmem, const uint8_t* v_smem,
                                              int lane) {
#pragma unroll
    for (int d = 0; d < D / 8; d += 4) {
        Operand bytes_rmem;
        ptx::ldmatrix_x4_trans(bytes_rmem, chunk_of(v_smem, d / 4, lane));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t low_rmem[2], high_rmem[2];  // keys 0 to 7 and 8 to 15: even columns, odd columns
            to_elements(low_rmem, __byte_perm(bytes_rmem[2 * i], 0, 0x3120));
            to_elements(high_rmem, __byte_perm(bytes_rmem[2 * i + 1], 0, 0x3120));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    Result& o = o_rmem[r][d + 2 * i + odd];
                    ptx::mma_m16n8k16(o, p_rmem[r][0], low_rmem[odd], high_rmem[odd]);
                }
        }
    }
}

// Row r of the lane to a row of floats, from its first column on.
__device__ __forceinline__ void store_fours(float* o_row, const Output& o_rmem, int r) {
#pragma unroll
    for (int d = 0; d < D / 8; d += 2) {
        const float *even = &o_rmem[r / 2][d][r % 2 * 2], *odd = &o_rmem[r / 2][d + 1][r % 2 * 2];
        *(float4*)(o_row + 8 * d) = make_float4(even[0], odd[0], even[1], odd[1]);
    }
}
