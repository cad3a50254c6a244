// What models add to attention. Each feature is a macro: 1 is on, and adds parameters after those of SIZES,
// in the order below; one that is off leaves a kernel's machine code as it was. The host packs them in
// flashcore_numba/stages/parts/cuda_arguments.py; flashcore_numba/core/features.py says what each means.
#pragma once
#include "element.cuh"

#ifndef WINDOW
#define WINDOW 0  // keys from `left` before the diagonal to `right` after it; -1 is unbounded
#endif
#ifndef SOFTCAP
#define SOFTCAP 0  // c * tanh(x / c) of a scaled score x
#endif
#ifndef ALIBI
#define ALIBI 0  // -slope * distance from the diagonal
#endif
#ifndef SINKS
#define SINKS 0  // a logit of each head that has no value
#endif
#ifndef USED
#define USED 0  // keys of each sequence that count
#endif
#ifndef RAGGED
#define RAGGED 0  // sequences of different lengths, packed: q and out are [H, total, D] then
#endif
#ifndef KEYS_FROM
#define KEYS_FROM 0  // keys come while the kernel runs, the last ones first
#endif
#ifndef PRIOR
#define PRIOR 0  // O and LSE of the same rows over other keys, with which the result is merged
#endif
#ifndef FLOAT_OUT
#define FLOAT_OUT 0  // O is float32
#endif
#ifndef HEAD_NORM
#define HEAD_NORM 0  // RMSNorm of O over the columns of its head
#endif
#ifndef FLOAT_NORM
#define FLOAT_NORM 0  // whose weight is float32
#endif
#ifndef GATE
#define GATE 0  // O times the sigmoid of as many numbers
#endif
#ifndef DROPOUT
#define DROPOUT 0  // some elements of P are dropped: dropout.cuh
#endif
#ifndef E4M3
#define E4M3 0  // K and V of a cache are bytes of e4m3, and a scale of each K/V head multiplies them
#endif
#ifndef TWO_Q
#define TWO_Q 0  // no feature: stage 15 has the next Q in a second place, which pays under a window
#endif
#ifndef VALUE_DIM
#define VALUE_DIM HEAD_DIM  // columns of V and O
#endif

// Off, a parameter is a constant of `Features`, so that code need not ask.

#if WINDOW
#define WINDOW_PARAMS , int left, int right
#define WINDOW_GIVEN , left, right
#define WINDOW_MEMBERS int left, right;
#else
#define WINDOW_PARAMS
#define WINDOW_GIVEN
#define WINDOW_MEMBERS static constexpr int left = -1, right = -1;
#endif

#if SOFTCAP
#define SOFTCAP_PARAMS , float scale_by_cap, float cap_log2
#define SOFTCAP_GIVEN , scale_by_cap, cap_log2
#define SOFTCAP_MEMBERS float scale_by_cap, cap_log2;  // scale / c; c in units of log2
#else
#define SOFTCAP_PARAMS
#define SOFTCAP_GIVEN
#define SOFTCAP_MEMBERS static constexpr float scale_by_cap = 0, cap_log2 = 0;
#endif

#if ALIBI
#define ALIBI_PARAMS , const float *slopes, int slopes_batch
#define ALIBI_GIVEN , slopes, slopes_batch
#define ALIBI_MEMBERS                              \
    const float* slopes; /* [H] or [B, H] */       \
    int slopes_batch;    // H for the latter, or 0
#else
#define ALIBI_PARAMS
#define ALIBI_GIVEN
#define ALIBI_MEMBERS                               \
    static constexpr const float* slopes = nullptr; \
    static constexpr int slopes_batch = 0;
#endif

#if SINKS
#define SINKS_PARAMS , const float* sinks
#define SINKS_GIVEN , sinks
#define SINKS_MEMBERS const float* sinks;  // [H]
#else
#define SINKS_PARAMS
#define SINKS_GIVEN
#define SINKS_MEMBERS static constexpr const float* sinks = nullptr;
#endif

#if USED
#define USED_PARAMS , const int* seqused_k
#define USED_GIVEN , seqused_k
#define USED_MEMBERS const int* seqused_k;  // [B]
#else
#define USED_PARAMS
#define USED_GIVEN
#define USED_MEMBERS static constexpr const int* seqused_k = nullptr;
#endif

#if RAGGED
#define RAGGED_PARAMS , const int *cu_seqlens_q, const int *cu_seqlens_k, int sequences
#define RAGGED_GIVEN , cu_seqlens_q, cu_seqlens_k, sequences
#define RAGGED_MEMBERS                                            \
    const int *cu_seqlens_q, *cu_seqlens_k; /* [sequences + 1] */ \
    int sequences;
#else
#define RAGGED_PARAMS
#define RAGGED_GIVEN
#define RAGGED_MEMBERS                                                           \
    static constexpr const int *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr; \
    static constexpr int sequences = 0;
#endif

#if KEYS_FROM
#define KEYS_FROM_PARAMS , const int *keys_from, int keys_from_step
#define KEYS_FROM_GIVEN , keys_from, keys_from_step
// A K/V head's keys from keys_from[head * keys_from_step] on are there.
#define KEYS_FROM_MEMBERS \
    const int* keys_from; \
    int keys_from_step;
#else
#define KEYS_FROM_PARAMS
#define KEYS_FROM_GIVEN
#define KEYS_FROM_MEMBERS                            \
    static constexpr const int* keys_from = nullptr; \
    static constexpr int keys_from_step = 0;
#endif

#if PRIOR
#define PRIOR_PARAMS , const float *prior_out, const float *prior_lse, STRIDES(prior_out), STRIDES(prior_lse)
#define PRIOR_GIVEN , prior_out, prior_lse, STRIDES_GIVEN(prior_out), STRIDES_GIVEN(prior_lse)
#define PRIOR_MEMBERS                                                       \
    const float *prior_out, *prior_lse; /* [B, H, S_q, D_v], [B, H, S_q] */ \
    Strides prior_out_strides, prior_lse_strides;
#else
#define PRIOR_PARAMS
#define PRIOR_GIVEN
#define PRIOR_MEMBERS                                                        \
    static constexpr const float *prior_out = nullptr, *prior_lse = nullptr; \
    static constexpr Strides prior_out_strides{}, prior_lse_strides{};
#endif

#if FLOAT_NORM
#define NORM_WEIGHT float
#else
#define NORM_WEIGHT element
#endif

#if HEAD_NORM
#define HEAD_NORM_PARAMS , const NORM_WEIGHT *norm_weight, int norm_weight_head, float norm_eps
#define HEAD_NORM_GIVEN , norm_weight, norm_weight_head, norm_eps
#define HEAD_NORM_MEMBERS                                      \
    const NORM_WEIGHT* norm_weight; /* [D_v], or */            \
    int norm_weight_head;           /* [H, D_v]: D_v, not 0 */ \
    float norm_eps;
#else
#define HEAD_NORM_PARAMS
#define HEAD_NORM_GIVEN
#define HEAD_NORM_MEMBERS                                      \
    static constexpr const NORM_WEIGHT* norm_weight = nullptr; \
    static constexpr int norm_weight_head = 0;                 \
    static constexpr float norm_eps = 0;
#endif

#if GATE
#define GATE_PARAMS , const element *gate, STRIDES(gate)
#define GATE_GIVEN , gate, STRIDES_GIVEN(gate)
#define GATE_MEMBERS                            \
    const element* gate; /* [B, H, S_q, D_v] */ \
    Strides gate_strides;
#else
#define GATE_PARAMS
#define GATE_GIVEN
#define GATE_MEMBERS                                \
    static constexpr const element* gate = nullptr; \
    static constexpr Strides gate_strides{};
#endif

#if DROPOUT
#define DROPOUT_PARAMS , unsigned drop_below, float keep_scale, unsigned long long seed, unsigned draw
#define DROPOUT_GIVEN , drop_below, keep_scale, seed, draw
#define DROPOUT_MEMBERS                                                    \
    unsigned drop_below;     /* p in units of 2^-32, a multiple of 2^16 */ \
    float keep_scale;        /* 1 / (1 - p) */                             \
    unsigned long long seed; /* Philox's key */                            \
    unsigned draw;           // offset / 4
#else
#define DROPOUT_PARAMS
#define DROPOUT_GIVEN
#define DROPOUT_MEMBERS                                 \
    static constexpr unsigned drop_below = 0, draw = 0; \
    static constexpr float keep_scale = 1;              \
    static constexpr unsigned long long seed = 0;
#endif

// TMA stores elements; in float32 each lane stores what it has. OUT_ROWS is what `store_rows` of
// warpgroup_rows.cuh takes, and OUT_ROWS_PARAM the parameter that it is made of.
#if FLOAT_OUT
#define OUT_ELEMENT float
#define OUT_ROWS_PARAM float *out, STRIDES(out)
#define OUT_ROWS                          \
    FloatRows { out, STRIDES_GIVEN(out) }
#else
#define OUT_ELEMENT element
#define OUT_ROWS_PARAM const __grid_constant__ ptx::TensorMap out_map
#define OUT_ROWS &out_map
#endif

#if E4M3
#define STORED uint8_t
#define SCALES_PARAMS                                                                                    \
    , float k_scale, float v_scale, const float *k_scales, const float *v_scales, int k_step, int v_step
#define SCALES_GIVEN {k_scale, v_scale, k_scales, v_scales, k_step, v_step}
#define SCALES_MEMBERS                                                            \
    float k_scale, v_scale;           /* of all heads, unless there are */        \
    const float *k_scales, *v_scales; /* [K/V heads], */                          \
    int k_step, v_step;               // with so many floats from one to the next
#else
#define STORED element
#define SCALES_PARAMS
#define SCALES_GIVEN \
    {}
#define SCALES_MEMBERS                                                     \
    static constexpr float k_scale = 1, v_scale = 1;                       \
    static constexpr const float *k_scales = nullptr, *v_scales = nullptr; \
    static constexpr int k_step = 0, v_step = 0;
#endif

#if RAGGED || USED
#define BATCHES_PARAMS , int k_batch, int v_batch
#define BATCHES_GIVEN {k_batch, v_batch}
#define BATCHES_MEMBERS int k, v;
#else
#define BATCHES_PARAMS
#define BATCHES_GIVEN \
    {}
#define BATCHES_MEMBERS static constexpr int k = 0, v = 0;
#endif

#define FEATURES                                                                                      \
    WINDOW_PARAMS SOFTCAP_PARAMS ALIBI_PARAMS SINKS_PARAMS USED_PARAMS RAGGED_PARAMS KEYS_FROM_PARAMS \
        PRIOR_PARAMS HEAD_NORM_PARAMS GATE_PARAMS DROPOUT_PARAMS
#define FEATURES_GIVEN                                                                                     \
    WINDOW_GIVEN SOFTCAP_GIVEN ALIBI_GIVEN SINKS_GIVEN USED_GIVEN RAGGED_GIVEN KEYS_FROM_GIVEN PRIOR_GIVEN \
        HEAD_NORM_GIVEN GATE_GIVEN DROPOUT_GIVEN

// Elements from one batch, head or row of a [B, H, S, D] array to the next.
struct Strides {
    long long batch, head, row;

    __device__ __forceinline__ long long at(int b, int h, int s) const {
        return b * batch + h * head + s * row;
    }
};

struct Features {
    WINDOW_MEMBERS
    SOFTCAP_MEMBERS
    ALIBI_MEMBERS
    SINKS_MEMBERS
    USED_MEMBERS
    RAGGED_MEMBERS
    KEYS_FROM_MEMBERS
    PRIOR_MEMBERS
    HEAD_NORM_MEMBERS
    GATE_MEMBERS
    DROPOUT_MEMBERS
};

// Of a K/V head: what is stored times it is meant.
struct Scales {
    SCALES_MEMBERS

    __device__ __forceinline__ float k(int h_kv) const {
        return k_scales ? k_scales[h_kv * k_step] : k_scale;
    }
    __device__ __forceinline__ float v(int h_kv) const {
        return v_scales ? v_scales[h_kv * v_step] : v_scale;
    }
};

// For kernels whose copies end where only the GPU knows: rows of K, and of V, from one batch to the next.
struct Batches {
    BATCHES_MEMBERS
};
