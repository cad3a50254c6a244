// Stage 10: one to four K/V tiles in flight.
//
// Stage 09 with a ring of STAGES buffers: the copies of tile t + STAGES - 1 are issued before tile t is
// multiplied, into the buffer that tile t - 1 has left. A thread's groups of copies finish in order, so "at
// most STAGES - 1 groups unfinished" says that tile t has arrived. With one stage nothing is in flight while
// the block multiplies; with two a copy has one tile's arithmetic to arrive in, with three two tiles'. Time
// beyond a copy's latency buys nothing, and each stage costs 18,432 bytes of shared memory (D = 64), which
// can cost a resident block.
// Phases and barriers are those of stage 09. What its counters show is put right besides. Tiles have 64 keys:
// S then has 3 x 4 parts, one for each warp, where 3 x 2 left six warps idle, and the barriers are half as
// many. Every array has padded rows (8 halves or 8 floats), so that the 8 rows of a fragment start in
// different banks. m and l stay in the registers of the row's 8 lanes, which add up their parts of l once,
// behind the last tile.
#include <cuda_fp16.h>
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr int D = HEAD_DIM, ROWS = 48, KEYS = 64, THREADS = 384;
// Elements from one row to the next in shared memory
constexpr int LD = D + 8, S_LD = KEYS + 8, P_LD = KEYS + 8, O_LD = D + 8;
// The memory map: bytes of each part, in this order, and where each begins
constexpr int Q_BYTES = ROWS * LD * 2;           // half  [ROWS, D]
constexpr int K_BYTES = STAGES * KEYS * LD * 2;  // half  [STAGES, KEYS, D]
constexpr int V_BYTES = STAGES * KEYS * LD * 2;  // half  [STAGES, KEYS, D]
constexpr int S_BYTES = ROWS * S_LD * 4;         // float [ROWS, KEYS]
constexpr int P_BYTES = ROWS * P_LD * 2;         // half  [ROWS, KEYS]
constexpr int O_BYTES = ROWS * O_LD * 4;         // float [ROWS, D]
constexpr int Q_AT = 0, K_AT = Q_AT + Q_BYTES, V_AT = K_AT + K_BYTES, S_AT = V_AT + V_BYTES;
constexpr int P_AT = S_AT + S_BYTES, O_AT = P_AT + P_BYTES, SMEM_BYTES = O_AT + O_BYTES;
static_assert(SMEM_BYTES <= 227 * 1024, "no block of any GPU may have more");

using QueryFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;

// 16 rows of Q, as D / 16 operands
__device__ __forceinline__ void load_queries(QueryFragment (&q_rmem)[D / 16], const half* q_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) wmma::load_matrix_sync(q_rmem[i], q_smem + 16 * i, LD);
}

// s_smem[16, 16] = Q k_smem[16, D]^T, by one warp
__device__ __forceinline__ void multiply_qk(float* s_smem, const QueryFragment (&q_rmem)[D / 16],
                                            const half* k_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> s;
    wmma::fill_fragment(s, 0.0f);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> k_transposed;
        wmma::load_matrix_sync(k_transposed, k_smem + 16 * i, LD);
        wmma::mma_sync(s, q_rmem[i], k_transposed, s);
    }
    wmma::store_matrix_sync(s_smem, s, S_LD, wmma::mem_row_major);
}

// o_smem[16, 16] += p_smem[16, KEYS] v_smem[KEYS, 16], by one warp
__device__ __forceinline__ void accumulate_pv(float* o_smem, const half* p_smem, const half* v_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
    wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> p;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> v;
        wmma::load_matrix_sync(p, p_smem + key, P_LD);
        wmma::load_matrix_sync(v, v_smem + key * LD, LD);
        wmma::mma_sync(o, p, v, o);
    }
    wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
}

extern "C" __global__ void __launch_bounds__(THREADS, 128 / D)  // registers for two blocks an SM at D = 64
pipeline(const half* q, const half* k, const half* v, half* out,  // [B, H or H_kv, S, D]
         float* lse,                                              // [B, H, S_q]
         long long q_batch, long long q_head, long long q_row,    // elements from one to the next
         long long k_batch, long long k_head, long long k_row,
         long long v_batch, long long v_head, long long v_row,
         long long out_batch, long long out_head, long long out_row,
         int S_q, int S_k, int H, int group, float scale_log2, int causal) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* q_smem = reinterpret_cast<half*>(smem + Q_AT);
    half* k_smem = reinterpret_cast<half*>(smem + K_AT);
    half* v_smem = reinterpret_cast<half*>(smem + V_AT);
    float* s_smem = reinterpret_cast<float*>(smem + S_AT);
    half* p_smem = reinterpret_cast<half*>(smem + P_AT);
    float* o_smem = reinterpret_cast<float*>(smem + O_AT);
    const int warp = threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x * ROWS;
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;  // 8 lanes share a row, 8 scores each
    const int tile_row = warp / 4 * 16, tile_col = warp % 4 * 16;  // the warp's part of S, and of O
    q += b * q_batch + h * q_head + first_row * q_row;
    k += b * k_batch + h / group * k_head;
    v += b * v_batch + h / group * v_head;
    const int row_sees = tile::visible_keys(min(first_row + row, S_q - 1), S_q, S_k, causal);
    const int block_sees = tile::visible_keys(min(first_row + ROWS, S_q) - 1, S_q, S_k, causal);
    const int tiles = (block_sees + KEYS - 1) / KEYS;

    const auto load_tile = tile::load_tile_async<KEYS, D, LD, THREADS>;
    auto load_keys_and_values = [&](int t) {  // one group a tile, empty beyond the last: groups count tiles
        if (t < tiles) {
            const int first_key = t * KEYS, buffer = t % STAGES * KEYS * LD;
            load_tile(k_smem + buffer, k + first_key * k_row, k_row, S_k - first_key);
            load_tile(v_smem + buffer, v + first_key * v_row, v_row, S_k - first_key);
        }
        ptx::cp_async_commit();
    };
    tile::load_tile_async<ROWS, D, LD, THREADS>(q_smem, q, q_row, S_q - first_row);
    ptx::cp_async_commit();
#pragma unroll 1  // the addresses of three tiles at once would not fit the registers
    for (int t = 0; t < STAGES - 1; t++) load_keys_and_values(t);
    tile::clear_row<D>(o_smem + row * O_LD, part);
    float m = -INFINITY, l = 0.0f;
    QueryFragment q_rmem[D / 16];
    ptx::cp_async_wait<STAGES - 1>();  // this thread's copies of Q have arrived; those of the tiles need not
    __syncthreads();                   // every thread's have, before a warp reads what other warps copied
    load_queries(q_rmem, q_smem + tile_row * LD);

    for (int t = 0; t < tiles; t++) {
        const half* k_tile = k_smem + t % STAGES * KEYS * LD;
        const half* v_tile = v_smem + t % STAGES * KEYS * LD;
        load_keys_and_values(t + STAGES - 1);
        ptx::cp_async_wait<STAGES - 1>();  // this thread's copies of tile t have arrived
        __syncthreads();                   // every thread's have, before a warp reads what other warps copied
        multiply_qk(s_smem + tile_row * S_LD + tile_col, q_rmem, k_tile + tile_col * LD);
        __syncthreads();  // S is whole before a lane reads its row of it

        float p[8];
        tile::load_scores(p, s_smem + row * S_LD, 4 * part, row_sees - t * KEYS, scale_log2);
        const float rescale = tile::online_softmax(p, m);
        l *= rescale;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            l += p[i] + p[i + 1] + p[i + 2] + p[i + 3];
            tile::store4(p_smem + row * P_LD + 4 * part + 8 * i, p + i);
        }
        tile::rescale_row<D>(o_smem + row * O_LD, part, rescale);
        __syncthreads();  // P is whole, and O rescaled, before a warp multiplies them
#pragma unroll
        for (int c = tile_col; c < D; c += 64)
            accumulate_pv(o_smem + tile_row * O_LD + c, p_smem + tile_row * P_LD, v_tile + c);
        __syncthreads();  // every warp has left this buffer, P and O before the next turn overwrites them
    }

    l = tile::row_sum(l);
    if (first_row + row < S_q) {
        out += b * out_batch + h * out_head + (first_row + row) * out_row;
        tile::store_row<D>(out, o_smem + row * O_LD, part, tile::inverse_sum(l));
        if (lse != nullptr && part == 0)
            lse[((int64_t)b * H + h) * S_q + first_row + row] = tile::log_sum_exp(m, l);
    }
}
