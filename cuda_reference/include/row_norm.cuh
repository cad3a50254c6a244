// LayerNorm or RMSNorm of rows whose columns are spread over the warps of a cluster: what epilogue_norm.cu
// does with O when the products are done.
//
// A lane 4g + t has accumulators x of rows g and g + 8: 4j + 2r + i is row g + 8r, column 8j + 2t + i of the
// warp's WIDTH = 2 OWN columns. A warp tells the others the mean and M2, the sum of (x - mean)^2, of its
// columns, and parts of equal size merge by Chan's formula (Chan, Golub and LeVeque 1979):
// M2 = sum M2_i + WIDTH (mean_i - mean)^2. RMSNorm takes each mean for 0.
#pragma once
#include "quad.cuh"

// Elements from one batch and row of an array [B, S, H * D] to the next, for a kernel's parameter list.
#define ROW_STRIDES(x) long long x##_batch, long long x##_row

// m and l become those of both parts; `mine` and `theirs`: what O of each has to be scaled by.
__device__ __forceinline__ void join(float (&m)[2], float (&l)[2], float4 other, float (&mine)[2],
                                     float (&theirs)[2]) {
    const float m_other[2] = {other.x, other.y}, l_other[2] = {other.z, other.w};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m_new = fmaxf(m[r], m_other[r]);
        mine[r] = ptx::ex2(m[r] - m_new), theirs[r] = ptx::ex2(m_other[r] - m_new);
        l[r] = mine[r] * l[r] + theirs[r] * l_other[r], m[r] = m_new;
    }
}

// Of the first 2 N accumulators one half, the upper one if `upper`, become the first N; the others go to
// `give(i, four)`, four at a time.
template <int N, class Give>
__device__ __forceinline__ void trade_halves(float* x, bool upper, Give give) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float low = x[i + j], high = x[i + j + N];
            x[i + j] = upper ? high : low;
            four[j] = upper ? low : high;
        }
        give(i / 4, four);
    }
}

// The lane's columns of the rows that exist, as pairs of elements; 0 where there is none.
template <int OWN>
__device__ __forceinline__ void load_columns(uint32_t (&pairs)[OWN / 2], const element* source,
                                             long long row_stride, int inside, int lane) {
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) {
        const int row = lane / 4 + i % 2 * 8;
        pairs[i] = 0;
        if (row < inside)
            pairs[i] = *(const uint32_t*)(source + row * row_stride + i / 2 * 8 + lane % 4 * 2);
    }
}

// The same of an array [H * D], which all rows share.
template <int OWN>
__device__ __forceinline__ void load_row(uint32_t (&pairs)[OWN / 4], const element* source, int lane) {
#pragma unroll
    for (int i = 0; i < OWN / 4; i++) pairs[i] = *(const uint32_t*)(source + 8 * i + lane % 4 * 2);
}

template <int OWN> __device__ __forceinline__ void add_columns(float* x, const uint32_t* pairs) {
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) {
        const float2 two = Element::floats(*(const element2*)&pairs[i]);
        x[2 * i] += two.x, x[2 * i + 1] += two.y;
    }
}

// Of the warp's columns: {mean, M2} of row g, then of row g + 8, the same in all lanes of a quad.
template <int OWN, bool CENTRED>
__device__ __forceinline__ void moments_of(float (&moments)[4], const float* x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0.0f, squares = 0.0f;
        if (CENTRED)
#pragma unroll
            for (int i = 2 * r; i < OWN; i += 4) sum += x[i] + x[i + 1];
        const float mean = CENTRED ? quad_sum(sum) / (2 * OWN) : 0.0f;
#pragma unroll
        for (int i = 2 * r; i < OWN; i += 4)
            squares += (x[i] - mean) * (x[i] - mean) + (x[i + 1] - mean) * (x[i + 1] - mean);
        moments[2 * r] = mean, moments[2 * r + 1] = quad_sum(squares);
    }
}

// Where the moments that warp `share` of a row has of rows g and g + 8 are in `moments_smem` [SHARES, 8]: so
// that 8 lanes that read four shares of two g meet 8 different groups of 4 banks.
__device__ __forceinline__ int moments_at(int share, int g) { return 8 * share + (g ^ share % 4 * 2); }

// x normalised by the moments of SHARES warps, of which each lane of a quad adds up every fourth.
template <int OWN, int SHARES, bool CENTRED>
__device__ __forceinline__ void normalise_rows(float* x, const float4* moments_smem, float eps, int lane) {
    float mean[2] = {}, factor[2] = {};
    float4 parts[(SHARES + 3) / 4];
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < SHARES; i += 4) {
        parts[i / 4] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i + lane % 4 < SHARES) parts[i / 4] = moments_smem[moments_at(i + lane % 4, lane / 4)];
        if (CENTRED) mean[0] += parts[i / 4].x, mean[1] += parts[i / 4].z;
    }
    if (CENTRED) mean[0] = quad_sum(mean[0]) / SHARES, mean[1] = quad_sum(mean[1]) / SHARES;
#pragma unroll
    for (int i = 0; i < SHARES; i += 4) {
        const float4& part = parts[i / 4];
        const float off[2] = {part.x - mean[0], part.z - mean[1]};
        if (i + lane % 4 >= SHARES) continue;
        squares[0] += part.y + 2 * OWN * off[0] * off[0], squares[1] += part.w + 2 * OWN * off[1] * off[1];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES) + eps);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 2 * r; i < OWN; i += 4)
            x[i] = (x[i] - mean[r]) * factor[r], x[i + 1] = (x[i + 1] - mean[r]) * factor[r];
}

// x times weights plus biases, of the lane's columns.
template <int OWN>
__device__ __forceinline__ void scale_columns(float* x, const uint32_t* weights, const uint32_t* biases) {
#pragma unroll
    for (int i = 0; i < OWN; i += 2) {
        const float2 weight = Element::floats(*(const element2*)&weights[i / 4]);
        const float2 bias = Element::floats(*(const element2*)&biases[i / 4]);
        x[i] = x[i] * weight.x + bias.x, x[i + 1] = x[i + 1] * weight.y + bias.y;
    }
}

// The warp's columns of the rows that exist, from `target` on. Two lanes trade, so that each stores four
// columns in a row.
template <int OWN>
__device__ __forceinline__ void store_columns(element* target, long long row_stride, const float* x,
                                              int inside, int lane) {
    const bool odd = lane % 2;
#pragma unroll
    for (int i = 0; i < OWN; i += 8)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float* of_row = x + i + 2 * r;
            const uint32_t low = ptx::pack_pair(of_row[0], of_row[1]);
            const uint32_t high = ptx::pack_pair(of_row[4], of_row[5]);
            const uint32_t other = __shfl_xor_sync(ALL_LANES, odd ? low : high, 1);
            const int row = lane / 4 + 8 * r, column = 2 * i + odd * 8 + lane % 4 / 2 * 4;
            if (row < inside)
                *(uint2*)(target + row * row_stride + column) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
        }
}
