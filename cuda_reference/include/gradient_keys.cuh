// What a block of the backward pass that owns keys does, however its warps divide the products: the rows that
// see its keys, the copies of K, V and tiles of query rows, P of two scores, and the store of dK and dV.
#pragma once
#include "gradient_rows.cuh"
#include "warp_rows.cuh"

static_assert(D == D_V, "S and dP, dK and dV are made by the same code");
using Rows = Tile<D>;

// The first chunk that a thread copies of the rows from `row` on.
__device__ __forceinline__ const element* own_chunk(const element* x, const Strides& strides, int b, int h,
                                                    int row) {
    const int thread_row = threadIdx.x / Rows::LANES, thread_column = threadIdx.x % Rows::LANES * 8;
    return x + strides.at(b, h, row + thread_row) + thread_column;
}

// A block's COUNT keys, from key `first` of a sequence on.
template <int COUNT> struct Keys {
    const Sequence sequence;
    const Mask mask;
    const int first;

    __device__ __forceinline__ Keys(const Sizes& sizes, const RowTile& at)
        : sequence(sizes.sequence(at.sequence)), mask(sizes, sequence), first(at.tile * COUNT) {}
    // The last of them that the sequence has, or else the first.
    __device__ __forceinline__ int last() const { return max(min(first + COUNT, sequence.S_k) - 1, first); }
    // The query rows that see a key: none if it is past the end.
    __device__ __forceinline__ Interval rows_of(int key) const {
        return key < sequence.S_k ? mask.rows(key) : Interval{0, 0};
    }
    // Their rows of K or V of one head into shared memory, copied by THREADS threads.
    template <int THREADS>
    __device__ __forceinline__ void load(element* keys_smem, const element* x, const Strides& strides,
                                         int kv_head) const {
        x = own_chunk(x, strides, sequence.batch, kv_head, sequence.first_key + first);
        load_rows_async<D, COUNT, THREADS>(keys_smem, x, strides.row, sequence.S_k - first, threadIdx.x);
    }
};

// Tiles of ROWS query rows of a sequence, and the slots in shared memory that they are copied to.
template <int ROWS> struct QueryTiles {
    element *q_smem, *do_smem;  // [slots, ROWS, D]
    float* rows_smem;           // [slots, 2, ROWS]: lse2 and delta
    const element *q, *dout;    // the thread's own chunk, in head 0
    const Strides &q_strides, &do_strides;
    const float *lse2, *delta;
    long long padded_first;  // in both, where the sequence begins in head 0
    const Sizes& sizes;
    int S_q;  // of the sequence

    // A tile of head h, copied by THREADS threads.
    template <int THREADS> __device__ __forceinline__ void load(int h, int tile, int slot) const {
        const int first_row = tile * ROWS, inside = S_q - first_row, thread = threadIdx.x;
        const element* q_tile = q + q_strides.at(0, h, first_row);
        const element* do_tile = dout + do_strides.at(0, h, first_row);
        load_rows_async<D, ROWS, THREADS>(q_smem + slot * ROWS * D, q_tile, q_strides.row, inside, thread);
        load_rows_async<D, ROWS, THREADS>(do_smem + slot * ROWS * D, do_tile, do_strides.row, inside, thread);
        if (threadIdx.x < ROWS / 2) {  // 16 bytes of lse2 or of delta
            const int part = threadIdx.x / (ROWS / 4), four = threadIdx.x % (ROWS / 4) * 4;
            const long long padded = padded_first + (long long)h * padded_rows(sizes) + first_row + four;
            ptx::cp_async_16(rows_smem + (2 * slot + part) * ROWS + four,
                             (part == 0 ? lse2 : delta) + padded);
        }
    }
};

// P = 2^(scale S - lse2) of a key and two query rows, as a pair. What dS = P (dP - delta) takes for P, in
// place of S^T: P, times the softcap's derivative, 1 - tanh^2. `diagonal`: as adjust_tile has it, of the
// first of the two.
__device__ __forceinline__ uint32_t exponentiate_pair(float* s, float2 lse2, float scale_log2,
                                                      const Adjustment& adjustment, int diagonal) {
    const float p[2] = {ptx::ex2(s[0] * scale_log2 - lse2.x), ptx::ex2(s[1] * scale_log2 - lse2.y)};
    const uint32_t packed = ptx::pack_pair(p[0], p[1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float tanh = s[i];  // -inf where it is masked
        if (SOFTCAP && ALIBI) tanh = (tanh + adjustment.slope_log2 * abs(diagonal - i)) / adjustment.cap_log2;
        s[i] = SOFTCAP ? p[i] * (1.0f - fminf(tanh * tanh, 1.0f)) : p[i];
    }
    return packed;
}

// A warp's part of dK or dV, 8 * CHUNKS columns from `column` on of 16 * KEY_TILES keys, of which `inside`
// are there: through shared memory that no other warp uses then.
template <int KEY_TILES, int CHUNKS>
__device__ __forceinline__ void store_gradient(element* gradient, long long row_stride,
                                               const Result (&x_rmem)[KEY_TILES][CHUNKS], float factor,
                                               element* own_smem, int column, int inside, int lane) {
#pragma unroll
    for (int r = 0; r < 2 * KEY_TILES; r++)
#pragma unroll
        for (int d = 0; d < CHUNKS; d++) {
            const float* x = &x_rmem[r / 2][d][r % 2 * 2];
            *(uint32_t*)(own_smem + Rows::swizzled(8 * r + lane / 4, column / 8 + d) + lane % 4 * 2) =
                ptx::pack_pair(x[0] * factor, x[1] * factor);
        }
    __syncwarp();  // the rows are whole before lanes read what others wrote
#pragma unroll
    for (int n = 0; n < 16 * KEY_TILES; n += 32 / CHUNKS) {
        const int row = n + lane / CHUNKS, chunk = column / 8 + lane % CHUNKS;
        if (row < inside)
            *(uint4*)(gradient + row * row_stride + 8 * chunk) =
                *(const uint4*)(own_smem + Rows::swizzled(row, chunk));
    }
}
