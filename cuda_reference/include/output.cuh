// O / l as elements, at the end of every kernel whose P is in elements.
//
// P is rounded and l is summed from what it was before, so O / l may pass the greatest V of its column by a
// rounding of the element type: its largest number would become infinite. What V itself makes infinite stays
// so. Dropout and a norm multiply O / l: what is too large then is no rounding, and must be seen as infinite.
#pragma once
#include "features.cuh"
#include "ptx.cuh"

__device__ __forceinline__ float no_overflow(float o) {
    return fabsf(o) < INFINITY ? fminf(fmaxf(o, -Element::largest()), Element::largest()) : o;
}

template <bool CLAMP> __device__ __forceinline__ uint32_t output_pair(float low, float high) {
    return CLAMP ? ptx::pack_pair(no_overflow(low), no_overflow(high)) : ptx::pack_pair(low, high);
}

// `products` sums products of two pairs each: for a quarter of an instruction per value, it tells whether an
// infinity may be among them that a rounding has made. Great numbers may look like one, and are then clamped
// for nothing.
__device__ __forceinline__ bool may_overflow(uint32_t products) {
    if (DROPOUT || HEAD_NORM) return false;  // a gate is at most 1
    constexpr uint32_t LOW = Element::exponent(), HIGH = LOW << 16;
    return (products & LOW) == LOW || (products & HIGH) == HIGH;
}

// N floats, a multiple of 4.
template <int N> __device__ __forceinline__ void pack_output(uint32_t* pairs, const float* o) {
    uint32_t products = 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++) pairs[i] = output_pair<false>(o[2 * i], o[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) products = ptx::fma_pairs(pairs[i], pairs[i + 1], products);
    if (!may_overflow(products)) return;
#pragma unroll
    for (int i = 0; i < N / 2; i++) pairs[i] = output_pair<true>(o[2 * i], o[2 * i + 1]);
}
