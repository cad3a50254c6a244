// The softmax of a row that lives in a quad, the lanes 4g to 4g + 3 of a warp: what warp_rows.cuh and
// warpgroup_rows.cuh share.
//
// m of a row is a reference near the row's maximum, not the maximum. Weights are never negative, so the sum
// that l needs anyway bounds the greatest one: while it is at most MAX_SUM, P is safe in the element type and
// m can stay. A tile whose sum is greater is done again, with its maximum.
#pragma once
#include "mask.cuh"
#include "output.cuh"

constexpr float LOWEST = -3.4028235e38f, MAX_SUM = 4096.0f, LN2 = 0.69314718f;
constexpr float FAR = 16777216.0f;  // floats beyond 2^24 lie 2 and more apart
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

// Whether the rounding of m alone would move scale * s - m by whole powers of 2, up to infinity.
__device__ __forceinline__ bool is_far(float m) { return fabsf(m) > FAR && m > LOWEST; }

// What O is divided by, as a factor, and the log-sum-exp. A row that sees no key is 0, not 0 / 0.
__device__ __forceinline__ float inverse_sum(float l) { return l == 0 ? 0.0f : 1.0f / l; }
__device__ __forceinline__ float log_sum_exp(float m, float l) {
    return l == 0 ? -INFINITY : (m + __log2f(l)) * LN2;
}
