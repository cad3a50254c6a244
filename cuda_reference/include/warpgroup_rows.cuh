// The 64 query rows of one warpgroup on wgmma: Q, K and V in shared memory as TMA left them, S, P and O in
// registers, against a tile of BLOCK_N keys. Stages 14 to 16 build on it, as 12 and 13 on warp_rows.cuh.
//
// A tile in shared memory is panels of [rows, 64] elements, the 16-byte chunks of a row permuted,
// chunk ^ row % 8: TMA writes and wgmma reads this 128-byte swizzle. Columns that an array lacks arrive as
// zeros. K is the right operand of Q K^T as it is, and the instruction itself transposes V for P V.
// wgmma returns a result in the layout of mma.sync: lane 4g + t of warp w has rows 16w + g and 16w + g + 8,
// columns 2t and 2t + 1 of each 8. So P = exp(S) is the left operand of P V as it is, and a quad has a row.
// The running max m may lag (quad.cuh): with LAZY a tile whose P stays small enough needs neither its maximum
// nor a rescaled O, and the others are done again.
#pragma once
#include "head_epilogue.cuh"

constexpr int D = HEAD_DIM, D_V = VALUE_DIM, ROWS = 64, WARP_ROWS = 16;
constexpr int COLUMNS = D > D_V ? D : D_V, PANELS = (COLUMNS + 63) / 64, PITCH = 64 * PANELS;  // of a tile

using Scores = float[BLOCK_N / 2];            // [64, BLOCK_N]: 4j + 2r + i is row g + 8r, column 8j + 2t + i
using Output = float[D_V / 2];                // [64, D_V], the same
using P = uint32_t[BLOCK_N / 16][4];          // [64, BLOCK_N] elements
using RowState = float[2];                    // of rows g and g + 8; l: the lane's part of the sum

// The box of `TILE_ROWS` rows from `row` on, of one head and batch; TILE_ROWS * D elements count on `full`.
template <int TILE_ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem, const ptx::TensorMap* map, uint64_t* full,
                                          int row, int h, int b) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        ptx::tma_load_4d(tile_smem + panel * TILE_ROWS * 64, map, full, 64 * panel, row, h, b);
}

// Whose end only the GPU knows: of packed arrays every sequence's, of K and V also that of `seqused_k`.
constexpr bool BOUNDED_Q = RAGGED, BOUNDED_KV = RAGGED || USED;

// Where TMA finds the rows of a sequence: in a batch, or, BOUNDED, `size` rows from row `begin` on.
//
// What is past the end of a sequence must arrive as zeros and stay unwritten, and one tensor map serves all
// ends. Its dimensions are column, head, a row below BOUND, and two that move the rows: by steps of a row and
// by steps of 2^35 bytes less a row. Row i is at row coordinate BOUND - size + i, beyond BOUND if i >= size.
// begin + size steps on and BOUND rows back take it to its address, and BOUND * 2^35 = 2^65 bytes are none,
// since addresses are modulo 2^64. Rows before the sequence are not out of bounds. The host's side is
// `bounded_map` of stages/parts/tile_maps.py; the idea is from Triton's ragged descriptors (ragged_tma.py).
constexpr int BOUND = 1 << 30;

struct Place {
    int batch, begin = 0, size = 0;
};

// The same, of a sequence.
template <int TILE_ROWS, bool BOUNDED>
__device__ __forceinline__ void load_rows(element* tile_smem, const ptx::TensorMap* map, uint64_t* full,
                                          int row, int h, const Place& at) {
    if constexpr (BOUNDED)
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
            ptx::tma_load_5d(tile_smem + panel * TILE_ROWS * 64, map, full, 64 * panel, h,
                             BOUND - at.size + row, at.begin + at.size, BOUND);
    else
        load_tile<TILE_ROWS>(tile_smem, map, full, row, h, at.batch);
}

// For the thread that loads: which keys of a head are there. They come last ones first.
struct Arrivals {
    const uint32_t* word = nullptr;
    int from;  // what the word said last

    __device__ __forceinline__ void wait(const Sizes& sizes, int h, int key) {
        const Features& given = sizes.features;
        const auto* of_head = (const uint32_t*)given.keys_from + h / sizes.group * given.keys_from_step;
        if (word == of_head && from <= key) return;
        word = of_head;
        do from = ptx::load_acquire_system(word);
        while (from > key);
        ptx::fence_proxy_async_global();  // TMA reads what was there when the number was read
    }
};

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

// O += P V for the keys FIRST to END of the tile, in flight until the next wgmma_wait; O = P V unless `add`.
template <int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ void issue_pv(Output& o_rmem, const P& p_rmem, const element* v_smem,
                                         bool add = true) {
    const uint64_t v_tile = ptx::wgmma_tile(v_smem, BLOCK_N * 128);
    if (FIRST == 0) ptx::wgmma_pin(o_rmem);
    ptx::wgmma_fence();  // P is written and O rescaled before wgmma reads them
#pragma unroll
    for (int k = FIRST / 16; k < END / 16; k++)
        ptx::wgmma_rs<D_V, 1>(o_rmem, p_rmem[k], v_tile + 128 * k, add || k > FIRST / 16);
    ptx::wgmma_commit();
}

// What softcap and ALiBi make of S. `diagonal`: of row g of the warp, counted from the tile's first key.
__device__ __forceinline__ void adjust_tile(Scores& s_rmem, const Adjustment& adjusted, int diagonal,
                                            int lane) {
    float from[2] = {(float)(diagonal - lane % 4 * 2), (float)(diagonal + 8 - lane % 4 * 2)};
    ptx::wgmma_pin(from);  // or the compiler keeps all distances for a second pass over the tile
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
        s_rmem[i] = adjusted(s_rmem[i], from[i / 2 % 2] - (float)(i / 4 * 8 + i % 2));
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
__device__ __forceinline__ float raise_max(Scores& s_rmem, RowState& m, RowState& rescale,
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

__device__ __forceinline__ void rescale_o_and_l(Output& o_rmem, RowState& l, const RowState& rescale) {
#pragma unroll
    for (int i = 0; i < D_V / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
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
// LAZY: false, and l as it was, if some sum of the warp shows that m lags too far. Of each 16 columns of a
// lane POLY are computed by polynomial: only without a mask, since 0 would become 2^-64.
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
__device__ __forceinline__ void pack(P& p_rmem, const Scores& s_rmem) {
#pragma unroll
    for (int i = FIRST / 2; i < END / 2; i += 2)
        p_rmem[i / 8][i / 2 % 4] = ptx::pack_pair(s_rmem[i], s_rmem[i + 1]);
}

template <bool LAZY = false, int POLY = 0, int FIRST = 0, int END = BLOCK_N>
__device__ __forceinline__ bool exponentiate(P& p_rmem, Scores& s_rmem, const RowState& m, RowState& l,
                                             float scale_log2) {
    const bool close = exponentiate<LAZY, POLY, FIRST, END>(s_rmem, m, l, scale_log2);
    pack<FIRST, END>(p_rmem, s_rmem);
    return close;
}

// Row g + 8r of the warp, O rescaled by `rescale`, and what was computed before for its row `row` of the
// sequence.
__device__ __forceinline__ void merge_prior(Output& o_rmem, int r, float& m, float& l, float rescale,
                                            const Sizes& sizes, const Sequence& sequence, int h, int row,
                                            int lane) {
    const PriorRow prior(m, l, sizes, sequence, h, row, lane);
#pragma unroll
    for (int d = 0; d < D_V / 8; d++) {
        float* o = &o_rmem[4 * d + 2 * r];
        float2 before = make_float2(0.0f, 0.0f);
        if (prior.weight > 0) before = *(const float2*)(prior.out + 8 * d);
        o[0] = o[0] * (rescale * prior.rescale) + before.x * prior.weight;
        o[1] = o[1] * (rescale * prior.rescale) + before.y * prior.weight;
    }
}

// After the last tile: the sink and what was computed before join, O / l, the log-sum-exp of the warp's rows
// from `lse_row` on, of which `inside` exist, and the norm.
__device__ __forceinline__ void normalise(Output& o_rmem, RowState& m, const RowState& l, const Sizes& sizes,
                                          const Sequence& sequence, int h, float* lse_row, int warp_row,
                                          int lane) {
    RowState inv_l;
    const int inside = sequence.S_q - warp_row;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = quad_sum(l[r]);
        float rescale = join_sink(m[r], total, sizes, h);
        const int row = lane / 4 + 8 * r;
        if (PRIOR) {
            merge_prior(o_rmem, r, m[r], total, rescale, sizes, sequence, h, warp_row + row, lane);
            rescale = 1.0f;
        }
        inv_l[r] = inverse_sum(total) * rescale;
        if (lse_row && lane % 4 == 0 && row < inside)
            lse_row[row] = log_sum_exp(m[r], total);
    }
#pragma unroll
    for (int i = 0; i < D_V / 2; i++) o_rmem[i] *= inv_l[i / 2 % 2];
    if (HEAD_NORM) {
        RowState squares;
        sum_squares<D_V / 2>(squares, o_rmem);
        norm_columns<D_V / 2, D_V>(o_rmem, squares, sizes.features, h, 0, lane);
    }
}

// Of the gate of a whole row of the head, a lane has so many accumulators at a time: beside 256 columns of O
// there is room for a part alone.
constexpr int GATE_PARTS = D_V < 256 ? 1 : 4, GATED = D_V / 2 / GATE_PARTS;

// `gate_columns` of whole rows, of which `fours` has the first part already, where there is one part.
__device__ __forceinline__ void gate_output(float* o, uint2 (&fours)[GATED / 4], const Features& features,
                                            const Sequence& sequence, int h, int warp_row, int lane) {
#pragma unroll
    for (int part = 0; part < GATE_PARTS; part++) {
        if (GATE_PARTS > 1)
            load_gate<GATED>(fours, features, sequence, h, warp_row, 2 * part * GATED, lane);
        gate_columns<GATED>(o + part * GATED, fours, lane);
    }
}

// The warp's 16 rows of O as elements, to its rows of the swizzled tile o_smem [64, PITCH]: `may_overflow` of
// them.
template <bool CLAMP>
__device__ __forceinline__ bool pack_rows(element* panel_smem, const Output& o_rmem, int lane) {
    uint32_t products = 0;
#pragma unroll
    for (int d = 0; d < D_V / 16; d++) {
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

// What pack_rows has written goes on to `out_map` by TMA: boxes of 16 rows, of which those beyond the tensor
// are not written. `row`: of the warp's first in the tensor. WAIT: until TMA has read the memory, which must
// stay as it is so long, in the block too.
template <bool BOUNDED = false, bool WAIT = true>
__device__ __forceinline__ void store_packed(const element* panel_smem, const ptx::TensorMap* out_map,
                                             int lane, int row, int h, const Place& at) {
    ptx::fence_proxy_async();  // TMA reads what this lane has stored,
    __syncwarp();              // and what the other lanes have
    if (lane == 0) {
#pragma unroll
        for (int panel = 0; panel < (D_V + 63) / 64; panel++) {
            const element* rows_smem = panel_smem + panel * ROWS * 64;
            if (BOUNDED)
                ptx::tma_store_5d(out_map, rows_smem, 64 * panel, h, BOUND - at.size + row,
                                  at.begin + at.size, BOUND);
            else
                ptx::tma_store_4d(out_map, rows_smem, 64 * panel, row, h, at.batch);
        }
        ptx::bulk_commit();
        if (WAIT) ptx::bulk_wait_read<0>();  // the block's shared memory stays until TMA has read it
    }
}

// Both, for the rows of O.
template <bool BOUNDED = false, bool WAIT = true>
__device__ __forceinline__ void store_rows(element* o_smem, const ptx::TensorMap* out_map,
                                           const Output& o_rmem, int warp, int lane, int row, int h,
                                           const Place& at) {
    element* panel_smem = o_smem + warp * WARP_ROWS * 64;  // of panel 0
    if (__any_sync(ALL_LANES, pack_rows<false>(panel_smem, o_rmem, lane)))
        pack_rows<true>(panel_smem, o_rmem, lane);
    store_packed<BOUNDED, WAIT>(panel_smem, out_map, lane, row, h, at);
}

// An output in float32, [B, H, S_q, D_v].
struct FloatRows {
    float* out;
    Strides strides;
};

// The same, from the registers, of the rows that the sequence has.
template <bool BOUNDED = false, bool WAIT = true>
__device__ __forceinline__ void store_rows(element*, const FloatRows& rows, const Output& o_rmem, int,
                                           int lane, int row, int h, const Place& at) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int own = row + lane / 4 + 8 * r;
        if (own >= at.size) continue;
        float* out_row = rows.out + rows.strides.at(at.batch, h, at.begin + own) + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < D_V / 8; d++)
            *(float2*)(out_row + 8 * d) = make_float2(o_rmem[4 * d + 2 * r], o_rmem[4 * d + 2 * r + 1]);
    }
}
