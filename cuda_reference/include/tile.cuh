// What stages 07 to 11 share, apart from PTX: copies of tiles between global and shared memory, and one step
// of the online softmax for rows that 8 neighbouring lanes of a warp share.
#pragma once

#include "mask.cuh"
#include "output.cuh"

namespace tile {

constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int LANES_A_ROW = 8;
constexpr float LN2 = 0.69314718f;

// Eight consecutive elements as floats; one 16-byte access. Both pointers are multiples of 16 bytes.
__device__ __forceinline__ void load8(float (&x)[8], const element* source) {
    const uint4 bits = *reinterpret_cast<const uint4*>(source);
    const element2* pairs = reinterpret_cast<const element2*>(&bits);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = Element::floats(pairs[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ void store8(element* target, const float (&x)[8]) {  // in global memory
    uint32_t pairs[4];
    pack_output<8>(pairs, x);
    ptx::store_16(target, pairs[0], pairs[1], pairs[2], pairs[3]);
}

__device__ __forceinline__ void store4(element* target, const float* x) {
    *reinterpret_cast<uint2*>(target) = make_uint2(ptx::pack_pair(x[0], x[1]), ptx::pack_pair(x[2], x[3]));
}

// The first ROWS rows of D elements of `source` into `tile_smem`, whose rows are LD elements apart; rows from
// `inside` on become zero: what shared memory held before could be NaN, and 0 * NaN would poison a sum.
template <int ROWS, int D, int LD, int THREADS>
__device__ __forceinline__ void load_tile(element* tile_smem, const element* source, int64_t row_stride,
                                          int inside) {
    constexpr int CHUNKS = ROWS * D / 8;  // of 16 bytes
#pragma unroll
    for (int first = 0; first < CHUNKS; first += THREADS) {
        const int chunk = first + threadIdx.x, row = chunk / (D / 8), c = chunk % (D / 8) * 8;
        if (CHUNKS % THREADS != 0 && chunk >= CHUNKS) break;
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (row < inside) bits = *reinterpret_cast<const uint4*>(source + row * row_stride + c);
        *reinterpret_cast<uint4*>(tile_smem + row * LD + c) = bits;
    }
}

// The same with cp.async: the copies belong to the thread's next group.
template <int ROWS, int D, int LD, int THREADS>
__device__ __forceinline__ void load_tile_async(element* tile_smem, const element* source, int64_t row_stride,
                                                int inside) {
    constexpr int CHUNKS = ROWS * D / 8;
#pragma unroll
    for (int first = 0; first < CHUNKS; first += THREADS) {
        const int chunk = first + threadIdx.x, row = chunk / (D / 8), c = chunk % (D / 8) * 8;
        if (CHUNKS % THREADS != 0 && chunk >= CHUNKS) break;
        ptx::cp_async_16(tile_smem + row * LD + c, source + row * row_stride + c, row < inside);
    }
}

// The lane's scores of a row, in units of log2: 4 from column `first` on, then 4 of every 32 columns. Keys
// that the row does not see count as -inf. `seen`: the keys that it sees, counted from the tile's first one.
template <int N>
__device__ __forceinline__ void load_scores(float (&s)[N], const float* s_row, int first, Interval seen,
                                            float scale_log2) {
#pragma unroll
    for (int i = 0, column = first; i < N; i += 4, column += 4 * LANES_A_ROW) {
        const float4 four = *reinterpret_cast<const float4*>(s_row + column);
        s[i + 0] = seen.begin <= column + 0 && column + 0 < seen.end ? four.x * scale_log2 : -INFINITY;
        s[i + 1] = seen.begin <= column + 1 && column + 1 < seen.end ? four.y * scale_log2 : -INFINITY;
        s[i + 2] = seen.begin <= column + 2 && column + 2 < seen.end ? four.z * scale_log2 : -INFINITY;
        s[i + 3] = seen.begin <= column + 3 && column + 3 < seen.end ? four.w * scale_log2 : -INFINITY;
    }
}

__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int lanes = 1; lanes < LANES_A_ROW; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lanes));
    return x;
}

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int lanes = 1; lanes < LANES_A_ROW; lanes *= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// Scores become P = 2^(s - m), and m the maximum so far. Returns what the row's older sum and output shrink
// by.
template <int N> __device__ __forceinline__ float online_softmax(float (&s)[N], float& m) {
    float m_new = s[0];
#pragma unroll
    for (int i = 1; i < N; i++) m_new = fmaxf(m_new, s[i]);
    m_new = fmaxf(m, row_max(m_new));
    const float m_ref = m_new > -INFINITY ? m_new : 0.0f;  // no key seen yet: -inf - -inf would be NaN
    const float rescale = ptx::ex2(m - m_ref);
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = ptx::ex2(s[i] - m_ref);
    m = m_new;
    return rescale;
}

// The lane's share of a row of O in shared memory: lane `part` of 8 has the floats 4 part.. of every 32.
template <int D> __device__ __forceinline__ void clear_row(float* o_row, int part) {
#pragma unroll
    for (int c = 4 * part; c < D; c += 32) *reinterpret_cast<float4*>(o_row + c) = make_float4(0, 0, 0, 0);
}

template <int D> __device__ __forceinline__ void rescale_row(float* o_row, int part, float factor) {
#pragma unroll
    for (int c = 4 * part; c < D; c += 32) {
        const float4 o = *reinterpret_cast<const float4*>(o_row + c);
        const float4 scaled = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
        *reinterpret_cast<float4*>(o_row + c) = scaled;
    }
}

// out_row[0, D) = factor * o_row as elements; lane `part` of 8 writes 16 bytes at 8 part.. of every 64.
template <int D>
__device__ __forceinline__ void store_row(element* out_row, const float* o_row, int part, float factor) {
#pragma unroll
    for (int c = 8 * part; c < D; c += 64) {
        const float4 a = *reinterpret_cast<const float4*>(o_row + c);
        const float4 b = *reinterpret_cast<const float4*>(o_row + c + 4);
        const float o[8] = {a.x * factor, a.y * factor, a.z * factor, a.w * factor,
                            b.x * factor, b.y * factor, b.z * factor, b.w * factor};
        store8(out_row + c, o);
    }
}

// What a row's output is divided by, as a factor, and its log-sum-exp. A row that sees no key has l = 0:
// zeros, -inf.
__device__ __forceinline__ float inverse_sum(float l) { return l == 0 ? 0.0f : 1.0f / l; }
__device__ __forceinline__ float log_sum_exp(float m, float l) {
    return l == 0 ? -INFINITY : (m + log2f(l)) * LN2;
}

}  // namespace tile
