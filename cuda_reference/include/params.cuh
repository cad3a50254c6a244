// Strides and sizes: what every kernel takes beside its pointers. The host packs them in this order, in
// flashcore_numba/stages/parts/cuda_arguments.py.
//
// STRIDES, SIZES and PARAMS are for a kernel's parameter list; ..._GIVEN makes its struct of them. They
// arrive one by one, because the compiler makes other machine code for a struct that arrives whole.
#pragma once
#include "features.cuh"

#define STRIDES(x) long long x##_batch, long long x##_head, long long x##_row
#define SIZES int S_q, int S_k, int H, int group, float scale_log2, int causal FEATURES
#define PARAMS STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(out), SIZES
#define STRIDES_GIVEN(x) {x##_batch, x##_head, x##_row}
#define SIZES_GIVEN {S_q, S_k, H, group, scale_log2, causal FEATURES_GIVEN}
#define PARAMS_GIVEN {{STRIDES_GIVEN(q), STRIDES_GIVEN(k), STRIDES_GIVEN(v), STRIDES_GIVEN(out)}, SIZES_GIVEN}

// One sequence of the batch: its number, its place in the arrays, and its lengths.
struct Sequence {
    int index, batch;
    int first_row, first_key;  // in the arrays: 0 unless they are packed
    int S_q, S_k;
};

struct Layout {
    Strides q, k, v, out;
};

struct Sizes {
    int S_q, S_k;      // query rows and keys, of the arrays
    int H, group;      // query heads, and how many of them share a K/V head
    float scale_log2;  // of the scores, in units of log2
    int causal;
    Features features;

    __device__ __forceinline__ Sequence sequence(int index) const {
        Sequence found{index, index, 0, 0, S_q, S_k};
        if (RAGGED) {
            const int *rows = features.cu_seqlens_q + index, *keys = features.cu_seqlens_k + index;
            found = {index, 0, rows[0], keys[0], rows[1] - rows[0], keys[1] - keys[0]};
        }
        if (USED) found.S_k = max(0, min(found.S_k, features.seqused_k[index]));
        return found;
    }
    // Keys of a sequence, those that do not count included.
    __device__ __forceinline__ int all_keys(const Sequence& sequence) const {
        return RAGGED ? features.cu_seqlens_k[sequence.index + 1] - sequence.first_key : S_k;
    }
    // Query rows up to the end of the last sequence.
    __device__ __forceinline__ int end_row() const {
        return RAGGED ? features.cu_seqlens_q[features.sequences] : S_q;
    }
    // In [B, H, S_q], where a head of a sequence begins.
    __device__ __forceinline__ long long rows_before(const Sequence& sequence, int h) const {
        return ((long long)sequence.batch * H + h) * S_q + sequence.first_row;
    }
    // In [B, H, S_q], where a head begins.
    __device__ __forceinline__ long long rows_before(int b, int h) const {
        return ((long long)b * H + h) * S_q;
    }
    // Of what the softmax takes: the scores, or what softcap and ALiBi made of them.
    __device__ __forceinline__ float softmax_scale_log2() const {
        return ALIBI ? 1.0f : SOFTCAP ? features.cap_log2 : scale_log2;
    }
};

struct Params : Layout, Sizes {};
