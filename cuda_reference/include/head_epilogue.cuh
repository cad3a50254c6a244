// What a kernel may do with O / l before it writes it: RMSNorm over the columns of the head, then a gate,
// out = O / sqrt(mean(O^2) + eps) * weight * sigmoid(gate).
//
// A lane 4g + t of a warp has accumulators O of rows g and g + 8: 4j + 2r + i is row g + 8r, column
// 8j + 2t + i of the warp's, which are the head's or a part of them. The squares of a row are those of its
// quad, and of the other warps that have columns of it.
#pragma once
#include "quad.cuh"

constexpr float LOG2_E = 1.44269504f;

// Of 0 and 1 at the ends: 2^x is infinite there, or 0.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + ptx::ex2(-LOG2_E * x)); }

// Of rows g and g + 8, over the warp's columns: the same in all lanes of a quad.
template <int N> __device__ __forceinline__ void sum_squares(float (&squares)[2], const float* o) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        squares[r] = 0.0f;
#pragma unroll
        for (int i = 2 * r; i < N; i += 4) squares[r] += o[i] * o[i] + o[i + 1] * o[i + 1];
        squares[r] = quad_sum(squares[r]);
    }
}

__device__ __forceinline__ float2 two_weights(const element* own) {
    return Element::floats(*(const element2*)own);
}
__device__ __forceinline__ float2 two_weights(const float* own) {  // which may begin anywhere
    return make_float2(own[0], own[1]);
}

// O normed and times the weight. squares: of whole rows of the head, COLUMNS numbers each. first_column: of
// the warp's in the head.
template <int N, int COLUMNS>
__device__ __forceinline__ void norm_columns(float* o, const float (&squares)[2], const Features& features,
                                             int h, int first_column, int lane) {
    const NORM_WEIGHT* weight = features.norm_weight + h * features.norm_weight_head + first_column;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) factor[r] = rsqrtf(squares[r] / COLUMNS + features.norm_eps);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 two = two_weights(weight + 2 * i + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            o[i + 2 * r] *= factor[r] * two.x;
            o[i + 2 * r + 1] *= factor[r] * two.y;
        }
    }
}

// A lane's part of the gate of the warp's rows and columns: four columns in a row of each 16, so that a quad
// reads whole sectors. warp_row: the warp's first in the sequence.
template <int N>
__device__ __forceinline__ void load_gate(uint2 (&fours)[N / 4], const Features& features,
                                          const Sequence& sequence, int h, int warp_row, int first_column,
                                          int lane) {
    const Strides& strides = features.gate_strides;
    const element* gate = features.gate + first_column +
                          strides.at(sequence.batch, h, sequence.first_row + warp_row);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int row = lane / 4 + i % 2 * 8, column = i / 2 * 16 + lane % 2 * 8 + lane % 4 / 2 * 4;
        fours[i] = make_uint2(0, 0);
        if (warp_row + row < sequence.S_q)
            fours[i] = *(const uint2*)(gate + row * strides.row + column);
    }
}

// O times the sigmoid of the gate. Two lanes trade, so that each has the columns of its accumulators.
template <int N>
__device__ __forceinline__ void gate_columns(float* o, const uint2 (&fours)[N / 4], int lane) {
    const bool odd = lane % 2;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const uint32_t other = __shfl_xor_sync(ALL_LANES, odd ? fours[i].x : fours[i].y, 1);
        const uint32_t pairs[2] = {odd ? other : fours[i].x, odd ? fours[i].y : other};  // of 8 columns each
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const float2 two = Element::floats(*(const element2*)&pairs[pair]);
            float* own = o + i / 2 * 8 + pair * 4 + i % 2 * 2;
            own[0] *= sigmoid(two.x), own[1] *= sigmoid(two.y);
        }
    }
}
