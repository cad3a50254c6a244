// The rows of one warp on mma.sync: 16 * ROW_TILES query rows of Q, S, P and O in registers, against a tile
// of BLOCK_N keys in shared memory. Stage 12 builds on it; stage 13 divides the same work differently.
//
// mma.m16n8k16 returns a result in the layout of its left operand: lane 4g + t has rows g and g + 8, columns
// 2t and 2t + 1. So P = exp(S) is the left operand of P V without moving between lanes, and a quad, the lanes
// 4g to 4g + 3, holds a row. A lane counts its rows r: row g + 8r of the warp's.
// A tile in shared memory has rows of D elements, at a pitch that is a multiple of 64; its 16-byte chunks are
// permuted, chunk ^ row % 8: the 8 rows that a phase of ldmatrix reads are then in 8 different groups of 4
// banks. The elements between D and the pitch are neither written nor read.
// The running max m may lag (quad.cuh): then a tile needs no maximum, no shuffle and no rescaling.
#pragma once
#include "quad.cuh"

constexpr int D = HEAD_DIM, D_V = VALUE_DIM;  // columns of Q and K, and of V and O
constexpr int WARP_ROWS = 16 * ROW_TILES, LANE_ROWS = 2 * ROW_TILES;
constexpr bool Q_IN_REGISTERS = ROW_TILES * D <= 128;  // else O leaves no room: Q is read from q_smem

using Operand = uint32_t[4];  // a lane's part of a 16 x 16 operand, or of two 16 x 8 ones
using Result = float[4];      // a lane's part of a 16 x 8 result: [row g: 2t, 2t + 1; row g + 8: 2t, 2t + 1]
using Queries = Operand[ROW_TILES][D / 16];
using Scores = Result[ROW_TILES][BLOCK_N / 8];
using P = Operand[ROW_TILES][BLOCK_N / 16];
using Output = Result[ROW_TILES][D_V / 8];
using RowState = float[LANE_ROWS];

// A tile of rows of COLUMNS elements in shared memory.
template <int COLUMNS> struct Tile {
    static_assert(COLUMNS % 16 == 0, "whole steps of mma");
    static constexpr int PITCH = (COLUMNS + 63) / 64 * 64, CHUNKS = COLUMNS / 8;
    // Threads that copy a row together, each a chunk of every LANES.
    static constexpr int LANES = (CHUNKS & (CHUNKS - 1)) == 0 ? CHUNKS : 8;

    static __device__ __forceinline__ int swizzled(int row, int chunk) {
        return row * PITCH + ((chunk ^ (row & 7)) << 3);
    }
    // 16 * k columns on from `lane_offset`, which is in the first two chunks: an xor, so that a lane keeps
    // one swizzled offset for every k and tile.
    static __device__ __forceinline__ int step(int lane_offset, int k) {
        return (PITCH & (PITCH - 1)) == 0 ? lane_offset ^ 16 * k : (lane_offset ^ 16 * (k % 4)) + k / 4 * 64;
    }
    // Whether a thread of LANES has a chunk among those from `chunk` on.
    static __device__ __forceinline__ bool has(int chunk, int thread) {
        return chunk + LANES <= CHUNKS || chunk + thread % LANES < CHUNKS;
    }
};

// ROWS rows into a tile by COUNT threads, of which this one starts at `source`: its chunk of row
// thread / LANES.
// Rows from `inside` on become zero: what they held could be NaN, and 0 * NaN is NaN.
template <int COLUMNS, int ROWS, int COUNT>
__device__ __forceinline__ void load_rows_async(element* tile_smem, const element* source,
                                                long long row_stride, int inside, int thread) {
    using T = Tile<COLUMNS>;
    constexpr int PASS = COUNT / T::LANES;  // rows
    static_assert(ROWS % PASS == 0 && (PASS & (PASS - 1)) == 0, "whole passes");
#pragma unroll
    for (int row = 0; row < ROWS; row += PASS) {
        const int lane_offset = T::swizzled(thread / T::LANES, thread % T::LANES);
        element* chunk_smem = tile_smem + row * T::PITCH + (lane_offset ^ row % 8 * 8);
        const bool valid = row + thread / T::LANES < inside;
        ptx::cp_async_16(chunk_smem, source, valid);
#pragma unroll
        for (int chunk = T::LANES; chunk < T::CHUNKS; chunk += T::LANES)
            if (T::has(chunk, thread))
                ptx::cp_async_16(chunk_smem + 8 * chunk, source + 8 * chunk, valid);
        source += PASS * row_stride;
    }
}

// Rows 16 * tile and columns 16 * k onwards of the warp's Q.
__device__ __forceinline__ void load_q(Operand& q_rmem, const element* q_smem, int tile, int k, int lane) {
    const int lane_offset = Tile<D>::swizzled(lane % 16, lane / 16);
    ptx::ldmatrix_x4(q_rmem, q_smem + 16 * tile * Tile<D>::PITCH + Tile<D>::step(lane_offset, k));
}

__device__ __forceinline__ void load_queries(Queries& q_rmem, const element* q_smem, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int k = 0; k < D / 16; k++) load_q(q_rmem[r][k], q_smem, r, k, lane);
}

// S = Q K^T
template <bool IN_REGISTERS = Q_IN_REGISTERS>
__device__ __forceinline__ void score_tile(Scores& s_rmem, Queries& q_rmem, const element* q_smem,
                                           const element* k_smem, int lane) {
    const int lane_offset = Tile<D>::swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s_rmem[r][n][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        if (!IN_REGISTERS)
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) load_q(q_rmem[r][k], q_smem, r, k, lane);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; n++) {
            Operand k_rmem;  // 16 keys: as many columns of S
            ptx::ldmatrix_x4(k_rmem, k_smem + 16 * n * Tile<D>::PITCH + Tile<D>::step(lane_offset, k));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                ptx::mma_m16n8k16(s_rmem[r][2 * n], q_rmem[r][k], k_rmem[0], k_rmem[1]);
                ptx::mma_m16n8k16(s_rmem[r][2 * n + 1], q_rmem[r][k], k_rmem[2], k_rmem[3]);
            }
        }
    }
}

// What softcap and ALiBi make of S. `diagonal`: of the lane's first row, counted from the tile's first key.
__device__ __forceinline__ void adjust_tile(Scores& s_rmem, const Adjustment& adjusted, int diagonal,
                                            int lane) {
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& s = s_rmem[r / 2][n][r % 2 * 2 + i];
                s = adjusted(s, (float)(diagonal + 8 * r - lane % 4 * 2) - (float)(8 * n + i));
            }
}

// Row r of the lane sees the keys `seen[r]`, counted from the tile's first; `sign` is the scale's.
__device__ __forceinline__ void mask_tile(Scores& s_rmem, const Interval (&seen)[LANE_ROWS], float sign,
                                          int lane) {
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = 8 * n + lane % 4 * 2 + i;
                float& s = s_rmem[r / 2][n][r % 2 * 2 + i];
                s = seen[r].begin <= key && key < seen[r].end ? s * sign : -INFINITY;
            }
}

// m rises to the row's maximum, and l and O follow. Returns the scale that S still needs. Where some m of the
// warp is FAR from 0, its rounding alone would move scale * s - m by whole powers of 2, up to infinity: S is
// scaled here then, rounded as m was, so that the maximum's exponent is 0.
__device__ __forceinline__ float raise_max(Scores& s_rmem, Output& o_rmem, RowState& m, RowState& l,
                                           float scale_log2) {
    bool far = false;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        float row_max = -INFINITY;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) row_max = fmaxf(row_max, s_rmem[r / 2][n][r % 2 * 2 + i]);
        const float m_new = fmaxf(m[r], quad_max(row_max) * scale_log2), rescale = ptx::ex2(m[r] - m_new);
        m[r] = m_new;
        far = far || is_far(m_new);
        l[r] *= rescale;
#pragma unroll
        for (int d = 0; d < D_V / 8; d++)
#pragma unroll
            for (int i = 0; i < 2; i++) o_rmem[r / 2][d][r % 2 * 2 + i] *= rescale;
    }
    if (!__any_sync(ALL_LANES, far)) return scale_log2;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s_rmem[r][n][i] *= scale_log2;
    return 1.0f;
}

// P = 2^(scale S - m) as the left operand of P V, and l += the lane's part of the row sums; false, and l as
// it was, if some sum of the warp shows that m lags too far.
__device__ __forceinline__ bool exponentiate(P& p_rmem, const Scores& s_rmem, const RowState& m,
                                             RowState& l, float scale_log2) {
    RowState sum;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) sum[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float* s = &s_rmem[r / 2][n][r % 2 * 2];
            // One FFMA: scale * s - m is rounded once, so that powers of the same m cancel exactly in O / l.
            const float p0 = ptx::ex2(s[0] * scale_log2 - m[r]), p1 = ptx::ex2(s[1] * scale_log2 - m[r]);
            sum[r] += p0;
            sum[r] += p1;
            p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);
        }
    bool close = true;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) close = close && !(sum[r] > MAX_SUM);
    if (!__all_sync(ALL_LANES, close)) return false;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) l[r] += sum[r];
    return true;
}

// P of a tile under its own maximum, and m, l and O with it. Returns the scale that S still needed.
__device__ __forceinline__ float softmax_tile(P& p_rmem, Scores& s_rmem, Output& o_rmem, RowState& m,
                                              RowState& l, float scale_log2) {
    const float scale_left = raise_max(s_rmem, o_rmem, m, l, scale_log2);
    exponentiate(p_rmem, s_rmem, m, l, scale_left);
    return scale_left;
}

// Row r of the lane, O rescaled by `rescale`, and what was computed before for its row `row` of the sequence.
__device__ __forceinline__ void merge_prior(Output& o_rmem, int r, float& m, float& l, float rescale,
                                            const Sizes& sizes, const Sequence& sequence, int h, int row,
                                            int lane) {
    const PriorRow prior(m, l, sizes, sequence, h, row, lane);
#pragma unroll
    for (int d = 0; d < D_V / 8; d++) {
        float* o = &o_rmem[r / 2][d][r % 2 * 2];
        float2 before = make_float2(0.0f, 0.0f);
        if (prior.weight > 0) before = *(const float2*)(prior.out + 8 * d);
        o[0] = o[0] * (rescale * prior.rescale) + before.x * prior.weight;
        o[1] = o[1] * (rescale * prior.rescale) + before.y * prior.weight;
    }
}

// O += P V. V is [key, component] and a register of the right operand holds two keys: ldmatrix transposes.
__device__ __forceinline__ void accumulate_pv(Output& o_rmem, const P& p_rmem, const element* v_smem,
                                              int lane) {
    const int lane_offset = Tile<D_V>::swizzled(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < BLOCK_N / 16; k++)
#pragma unroll
        for (int d = 0; d < D_V / 16; d++) {
            Operand v_rmem;
            const element* rows_smem = v_smem + 16 * k * Tile<D_V>::PITCH;
            ptx::ldmatrix_x4_trans(v_rmem, rows_smem + Tile<D_V>::step(lane_offset, d));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                ptx::mma_m16n8k16(o_rmem[r][2 * d], p_rmem[r][k], v_rmem[0], v_rmem[1]);
                ptx::mma_m16n8k16(o_rmem[r][2 * d + 1], p_rmem[r][k], v_rmem[2], v_rmem[3]);
            }
        }
}
