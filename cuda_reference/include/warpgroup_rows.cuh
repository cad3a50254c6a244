// The 64 query rows of one warpgroup on wgmma: Q, K and V in shared memory as TMA left them, S, P and O in
// registers, against a tile of BLOCK_N keys. Stages 14 to 16 build on it, as 12 and 13 on warp_rows.cuh.
//
// A tile in shared memory is D / 64 panels of [rows, 64] elements, the 16-byte chunks of a row permuted,
// chunk ^ row % 8: TMA writes and wgmma reads this 128-byte swizzle. K is the right operand of Q K^T as it lies, V
// that of P V by the instruction's own transposition.
// wgmma hands out a result as mma.sync does: lane 4g + t of warp w holds rows 16w + g and 16w + g + 8, of
// each 8 columns 2t and 2t + 1. So P = exp(S) is the left operand of P V by renaming, and a row is a quad's.
// m is a reference near the maximum (quad.cuh): with LAZY a tile whose weights stay small enough needs neither
// its maximum nor a rescaled O, and the others are done again.
#pragma once
#include "quad.cuh"

constexpr int D = HEAD_DIM, PANELS = D / 64, ROWS = 64, WARP_ROWS = 16;

using Scores = float[BLOCK_N / 2];            // [64, BLOCK_N]: 4j + 2r + i is row g + 8r, column 8j + 2t + i
using Output = float[D / 2];                  // [64, D], the same
using Weights = uint32_t[BLOCK_N / 16][4];    // [64, BLOCK_N] elements
using RowState = float[2];                    // of rows g and g + 8; l: the lane's part of the sum

// The box of `TILE_ROWS` rows from `row` on, of one head and batch; TILE_ROWS * D elements count on `full`.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem, const ptx::TensorMap* map, uint64_t* full,
                                          int row, int h, int b) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        ptx::tma_load_4d(tile_smem + panel * TILE_ROWS * 64, map, full, 64 * panel, row, h, b);
}

// S = Q K^T, in flight until the next wgmma_wait.
__device__ __forceinline__ void issue_qk(Scores& s_rmem, const element* q_smem, const element* k_smem) {
    const uint64_t q_tile = ptx::wgmma_tile(q_smem), k_tile = ptx::wgmma_tile(k_smem);
    ptx::wgmma_fence();  // the last use of these registers is over
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        ptx::wgmma_ss<BLOCK_N>(s_rmem, q_tile + k / 4 * (ROWS * 8) + k % 4 * 2,
                               k_tile + k / 4 * (BLOCK_N * 8) + k % 4 * 2, k > 0);
    ptx::wgmma_commit();
}

// O += P V for the keys FIRST to END of the tile, in flight until the next wgmma_wait.
template <int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ void issue_pv(Output& o_rmem, const Weights& p_rmem, const element* v_smem) {
    const uint64_t v_tile = ptx::wgmma_tile(v_smem, BLOCK_N * 128);
    if (FIRST == 0) ptx::wgmma_pin(o_rmem);
    ptx::wgmma_fence();  // P is written and O rescaled before wgmma reads them
#pragma unroll
    for (int k = FIRST / 16; k < END / 16; k++) ptx::wgmma_rs<D, 1>(o_rmem, p_rmem[k], v_tile + 128 * k, 1);
    ptx::wgmma_commit();
}

// Row g + 8r of the warp sees the keys `seen[r]`, counted from the tile's first; `sign` is the scale's.
__device__ __forceinline__ void mask_tile(Scores& s_rmem, const Interval (&seen)[2], float sign, int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) {
        const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const Interval& keys = seen[i / 2 % 2];
        s_rmem[i] = keys.begin <= key && key < keys.end ? s_rmem[i] * sign : -INFINITY;
    }
}

// m rises to the row's maximum; `rescale` is what l and O must follow by. Returns the scale that S still
// needs. Where some m of the warp is FAR from 0, its rounding alone would move scale * s - m by whole powers
// of 2, up to infinity: S is scaled here then, rounded as m was, so that the maximum's exponent is 0.
__device__ __forceinline__ float raise_reference(Scores& s_rmem, RowState& m, RowState& rescale,
                                                 float scale_log2) {
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float even = s_rmem[2 * r], odd = s_rmem[2 * r + 1];
#pragma unroll
        for (int i = 4; i < BLOCK_N / 2; i += 4)
            even = fmaxf(even, s_rmem[i + 2 * r]), odd = fmaxf(odd, s_rmem[i + 2 * r + 1]);
        const float m_new = fmaxf(m[r], quad_max(fmaxf(even, odd)) * scale_log2);
        rescale[r] = ptx::ex2(m[r] - m_new);
        m[r] = m_new;
        far = far || is_far(m_new);
    }
    if (!__any_sync(ALL_LANES, far)) return scale_log2;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) s_rmem[i] *= scale_log2;
    return 1.0f;
}

__device__ __forceinline__ void follow_reference(Output& o_rmem, RowState& l, const RowState& rescale) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
    l[0] *= rescale[0], l[1] *= rescale[1];
}

// 2^x without the special-function unit, to 1e-4: the integer part of x shifted into the exponent of a
// polynomial in the rest. Exponents beyond -64 and 64 count as these: one FFMA makes y of x and clamps it.
__device__ __forceinline__ float ex2_polynomial(float x) {
    constexpr float SHIFT = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const float y = __saturatef(x / 128.0f + 0.5f);  // x = 128 y - 64
    const float shifted = y * 128.0f + (SHIFT - 64.0f);
    const float rest = y * 128.0f - (shifted - (SHIFT - 64.0f));  // in [-1/2, 1/2]
    float p = 0.055171669f * rest + 0.24261112f;
    p = p * rest + 0.69326098f;
    p = p * rest + 0.99992807f;
    return __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));
}

// S becomes 2^(scale S - m) at the keys FIRST to END, and l grows by the lane's part of their row sums. With
// LAZY: false, and l as it was, if some sum of the warp shows that m lies too far behind. Of each 16 columns
// of a lane POLY are made by polynomial: only without a mask, for 2^-64 would stand for 0.
template <bool LAZY = false, int POLY = 0, int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ bool exponentiate(Scores& s_rmem, const RowState& m, RowState& l,
                                             float scale_log2) {
    RowState sum = {0.0f, 0.0f};
#pragma unroll
    for (int i = FIRST / 2; i < END / 2; i++) {
        const int r = i / 2 % 2, column = i / 4 * 2 + i % 2;
        // One FFMA: scale * s - m is rounded once, so that powers of the same m cancel exactly in O / l.
        const float x = s_rmem[i] * scale_log2 - m[r];
        s_rmem[i] = column * POLY / 16 != (column + 1) * POLY / 16 ? ex2_polynomial(x) : ptx::ex2(x);
        sum[r] += s_rmem[i];
    }
    if (LAZY && !__all_sync(ALL_LANES, !(sum[0] > MAX_SUM) && !(sum[1] > MAX_SUM))) return false;
    l[0] += sum[0], l[1] += sum[1];
    return true;
}

// P as the left operand of P V.
template <int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ void pack(Weights& p_rmem, const Scores& s_rmem) {
#pragma unroll
    for (int i = FIRST / 2; i < END / 2; i += 2)
        p_rmem[i / 8][i / 2 % 4] = ptx::pack_pair(s_rmem[i], s_rmem[i + 1]);
}

template <bool LAZY = false, int POLY = 0, int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ bool exponentiate(Weights& p_rmem, Scores& s_rmem, const RowState& m, RowState& l,
                                             float scale_log2) {
    const bool close = exponentiate<LAZY, POLY, FIRST, END>(s_rmem, m, l, scale_log2);
    pack<FIRST, END>(p_rmem, s_rmem);
    return close;
}

// After the last tile: O / l, and the log-sum-exp of the warp's rows from `lse_row` on, of which `inside`
// exist.
__device__ __forceinline__ void normalise(Output& o_rmem, const RowState& m, const RowState& l,
                                          float* lse_row, int inside, int lane) {
    RowState inv_l;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(l[r]);
        inv_l[r] = inverse_sum(total);
        const int row = lane / 4 + 8 * r;
        if (lse_row && lane % 4 == 0 && row < inside)
            lse_row[row] = log_sum_exp(m[r], total);
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) o_rmem[i] *= inv_l[i / 2 % 2];
}

// The warp's 16 rows of O as elements, to its rows of the swizzled tile o_smem [64, D]: `may_overflow` of them.
template <bool CLAMP>
__device__ __forceinline__ bool pack_rows(element* panel_smem, const Output& o_rmem, int lane) {
    uint32_t products = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t pairs[4];  // rows g, g + 8 of columns 16d to 16d + 7, then of the other 8
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = output_pair<CLAMP>(o_rmem[8 * d + 2 * i], o_rmem[8 * d + 2 * i + 1]);
        products = ptx::fma_pairs(pairs[0], pairs[1], ptx::fma_pairs(pairs[2], pairs[3], products));
        const int chunk = d % 4 * 2 + lane / 16, lane_row = lane % 16;
        ptx::stmatrix_x4(panel_smem + d / 4 * ROWS * 64 + lane_row * 64 + (chunk ^ lane_row % 8) * 8, pairs);
    }
    return may_overflow(products);
}

// The same, and on to `out_map` by TMA: boxes of 16 rows, of which those beyond the tensor are not written.
// `row`: of the warp's first in the tensor.
__device__ __forceinline__ void store_rows(element* o_smem, const ptx::TensorMap* out_map,
                                           const Output& o_rmem, int warp, int lane, int row, int h,
                                           int b) {
    element* panel_smem = o_smem + warp * WARP_ROWS * 64;  // of panel 0
    if (__any_sync(ALL_LANES, pack_rows<false>(panel_smem, o_rmem, lane)))
        pack_rows<true>(panel_smem, o_rmem, lane);
    ptx::fence_proxy_async();  // TMA reads what this lane has stored,
    __syncwarp();              // and what the other lanes have
    if (lane == 0) {
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
            ptx::tma_store_4d(out_map, panel_smem + panel * ROWS * 64, 64 * panel, row, h, b);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();  // the block's shared memory stays until TMA has read it
    }
}
