// Strides and sizes: what every kernel takes beside its pointers. The host packs them in this order, in
// flashcore_numba/stages/parts/cuda_arguments.py.
//
// STRIDES, SIZES and PARAMS stand in a kernel's parameter list; ..._GIVEN makes its struct of them. They
// arrive one by one, because of a struct that arrives whole the compiler makes other machine code.
#pragma once

#define STRIDES(x) long long x##_batch, long long x##_head, long long x##_row
#define SIZES int S_q, int S_k, int H, int group, float scale_log2, int causal
#define PARAMS STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(out), SIZES
#define STRIDES_GIVEN(x) {x##_batch, x##_head, x##_row}
#define SIZES_GIVEN {S_q, S_k, H, group, scale_log2, causal}
#define PARAMS_GIVEN {{STRIDES_GIVEN(q), STRIDES_GIVEN(k), STRIDES_GIVEN(v), STRIDES_GIVEN(out)}, SIZES_GIVEN}

// Elements from one batch, head or row of a [B, H, S, D] array to the next.
struct Strides {
    long long batch, head, row;

    __device__ __forceinline__ long long at(int b, int h, int s) const {
        return b * batch + h * head + s * row;
    }
};

struct Layout {
    Strides q, k, v, out;
};

struct Sizes {
    int S_q, S_k;      // query rows and keys
    int H, group;      // query heads, and how many of them share a K/V head
    float scale_log2;  // of the scores, in units of log2
    int causal;

    // In [B, H, S_q], where a head begins.
    __device__ __forceinline__ long long rows_before(int b, int h) const {
        return ((long long)b * H + h) * S_q;
    }
};

struct Params : Layout, Sizes {};
