// The softmax of a row that a quad holds, the lanes 4g to 4g + 3 of a warp: what warp_rows.cuh and
// warpgroup_rows.cuh share.
//
// The running max m may lag behind the row's maximum. P is never negative, so the row sum that l needs anyway
// bounds its greatest element: while it is at most MAX_SUM, P is safe in the element type and m can stay. A
// tile whose sum is greater is done again, and m rises to its maximum.
#pragma once
#include "mask.cuh"
#include "ragged.cuh"
#include "output.cuh"

constexpr float LOWEST = -3.4028235e38f, MAX_SUM = 4096.0f, LN2 = 0.69314718f;
constexpr float FAR = 16777216.0f;  // floats beyond 2^24 are 2 and more apart
constexpr unsigned ALL_LANES = 0xffffffff;

// scale_log2 as a sign, which the mask applies, and a positive scale: then the greatest score gives m.
struct Scale {
    float sign, log2;

    __device__ __forceinline__ explicit Scale(float scale_log2)
        : sign(scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f),
          log2(scale_log2 == 0 ? 1.0f : fabsf(scale_log2)) {}
};

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Softcap and ALiBi make of a score what the softmax takes, in units of Sizes::softmax_scale_log2.
constexpr bool ADJUSTED = SOFTCAP || ALIBI;

struct Adjustment {
    float scale_by_cap, cap_log2, scale_log2, slope_log2 = 0;

    __device__ __forceinline__ Adjustment(const Sizes& sizes, const Sequence& sequence, int h)
        : scale_log2(sizes.scale_log2) {
        const Features& features = sizes.features;
        scale_by_cap = features.scale_by_cap, cap_log2 = features.cap_log2;
        if (ALIBI) slope_log2 = features.slopes[sequence.index * features.slopes_batch + h] / LN2;
    }
    // `from_diagonal`: keys between the row's place on the diagonal and this key.
    __device__ __forceinline__ float operator()(float s, float from_diagonal) const {
        if (SOFTCAP) s = ptx::tanh(s * scale_by_cap);
        if (ALIBI) s = s * (SOFTCAP ? cap_log2 : scale_log2) - slope_log2 * fabsf(from_diagonal);
        return s;
    }
};

// The sink of head h joins the maximum and the sum of a row, once; O follows by what comes back.
__device__ __forceinline__ float join_sink(float& m, float& l, const Sizes& sizes, int h) {
    if (!SINKS) return 1.0f;
    const float sink = sizes.features.sinks[h] / LN2, m_new = fmaxf(m, sink), rescale = ptx::ex2(m - m_new);
    l = l * rescale + ptx::ex2(sink - m_new);
    m = m_new;
    return rescale;
}

// The result of before, over other keys, joins a row as one more key does: its score is that LSE, its value
// that O. m and l take its weight here; `merge_prior` adds the value.
struct PriorRow {
    const float* out;  // columns 2t and 2t + 1 of the first 8: the lane reads what it will write
    float rescale, weight;

    __device__ __forceinline__ PriorRow(float& m, float& l, const Sizes& sizes, const Sequence& sequence,
                                        int h, int row, int lane) {
        const Features& prior = sizes.features;
        const Strides strides{prior.prior_batch, prior.prior_head, prior.prior_row};
        out = prior.prior_out + strides.at(sequence.batch, h, sequence.first_row + row) + lane % 4 * 2;
        const float* lse_row = prior.prior_lse + sequence.batch * prior.prior_lse_batch +
                               h * prior.prior_lse_head + sequence.first_row + row;
        // Lane 4g reads it alone, because it writes the LSE, perhaps to the same memory.
        float lse = lane % 4 == 0 && row < sequence.S_q ? *lse_row : -INFINITY;
        lse = __shfl_sync(ALL_LANES, lse, lane / 4 * 4);
        // m is finite also where no key was seen, so that no -inf is taken from -inf.
        const float score = lse / LN2, m_new = fmaxf(m, score);
        rescale = ptx::ex2(m - m_new), weight = ptx::ex2(score - m_new);
        l = l * rescale + weight;
        m = m_new;
    }
};

// Whether the rounding of m alone would move scale * s - m by whole powers of 2, up to infinity.
__device__ __forceinline__ bool is_far(float m) { return fabsf(m) > FAR && m > LOWEST; }

// What O is divided by, as a factor, and the log-sum-exp. A row that sees no key is 0, not 0 / 0.
__device__ __forceinline__ float inverse_sum(float l) { return l == 0 ? 0.0f : 1.0f / l; }
__device__ __forceinline__ float log_sum_exp(float m, float l) {
    return l == 0 ? -INFINITY : (m + __log2f(l)) * LN2;
}
