// Stage 10: one to four K/V tiles in flight.
//
// A block of 12 warps owns 48 query rows of one head and walks over K/V tiles of 64 keys. Each row belongs to
// 8 lanes, which have m and their parts of l in registers. Shared memory has Q, S, P, O and a ring of STAGES
// buffers of K and V: each stage costs 18,432 bytes at D = 64, which can cost a resident block.
// S = Q K^T has 3 x 4 parts of 16 x 16, one per warp, which keeps its fragments of Q.
// Softmax: a lane takes 8 of its row's 64 scores, writes P, and rescales its share of O.
// O += P V has 3 x 4 parts (D = 128: 3 x 8), one or two per warp. Four barriers per tile, as in stage 09.
// The copies of tile t + STAGES - 1 are issued before tile t is multiplied, into the buffer of tile t - 1. A
// thread's groups of copies finish in order, so "at most STAGES - 1 groups unfinished" means that tile t has
// arrived. With one stage nothing is in flight while the block multiplies; with two a copy has the time of
// one tile to arrive, with three of two tiles. More time than a copy's latency gains nothing.
// Every row is padded by 8 halves or 8 floats: the 8 rows of a fragment start in different banks.
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr int D = HEAD_DIM, ROWS = 48, KEYS = 64, THREADS = 384;
// Elements from one row to the next in shared memory
constexpr int LD = D + 8, S_LD = KEYS + 8, P_LD = KEYS + 8, O_LD = D + 8;
// The memory map: bytes of each part, in this order, and where each begins
constexpr int Q_BYTES = ROWS * LD * 2;           // element [ROWS, D]
constexpr int K_BYTES = STAGES * KEYS * LD * 2;  // element [STAGES, KEYS, D]
constexpr int V_BYTES = STAGES * KEYS * LD * 2;  // element [STAGES, KEYS, D]
constexpr int S_BYTES = ROWS * S_LD * 4;         // float   [ROWS, KEYS]
constexpr int P_BYTES = ROWS * P_LD * 2;         // element [ROWS, KEYS]
constexpr int O_BYTES = ROWS * O_LD * 4;         // float   [ROWS, D]
constexpr int Q_AT = 0, K_AT = Q_AT + Q_BYTES, V_AT = K_AT + K_BYTES, S_AT = V_AT + V_BYTES;
constexpr int P_AT = S_AT + S_BYTES, O_AT = P_AT + P_BYTES, SMEM_BYTES = O_AT + O_BYTES;
static_assert(SMEM_BYTES <= 227 * 1024, "no block of any GPU may have more");

using QueryFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major>;

// 16 rows of Q, as D / 16 operands
__device__ __forceinline__ void load_queries(QueryFragment (&q_rmem)[D / 16], const element* q_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) wmma::load_matrix_sync(q_rmem[i], q_smem + 16 * i, LD);
}

// s_smem[16, 16] = Q k_smem[16, D]^T, by one warp
__device__ __forceinline__ void multiply_qk(float* s_smem, const QueryFragment (&q_rmem)[D / 16],
                                            const element* k_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> s;
    wmma::fill_fragment(s, 0.0f);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> k_transposed;
        wmma::load_matrix_sync(k_transposed, k_smem + 16 * i, LD);
        wmma::mma_sync(s, q_rmem[i], k_transposed, s);
    }
    wmma::store_matrix_sync(s_smem, s, S_LD, wmma::mem_row_major);
}

// o_smem[16, 16] += p_smem[16, KEYS] v_smem[KEYS, 16], by one warp
__device__ __forceinline__ void accumulate_pv(float* o_smem, const element* p_smem, const element* v_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
    wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> v;
        wmma::load_matrix_sync(p, p_smem + key, P_LD);
        wmma::load_matrix_sync(v, v_smem + key * LD, LD);
        wmma::mma_sync(o, p, v, o);
    }
    wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
}

extern "C" __global__ void __launch_bounds__(THREADS, 128 / D)  // registers for two blocks per SM at D = 64
pipeline(const element* q, const element* k, const element* v, element* out,  // [B, H or H_kv, S, D]
         float* lse,                                                          // [B, H, S_q]
         PARAMS) {
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem + Q_AT);
    element* k_smem = reinterpret_cast<element*>(smem + K_AT);
    element* v_smem = reinterpret_cast<element*>(smem + V_AT);
    float* s_smem = reinterpret_cast<float*>(smem + S_AT);
    element* p_smem = reinterpret_cast<element*>(smem + P_AT);
    float* o_smem = reinterpret_cast<float*>(smem + O_AT);
    const int warp = threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x * ROWS;
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;  // 8 lanes share a row, 8 scores each
    const int tile_row = warp / 4 * 16, tile_col = warp % 4 * 16;  // the warp's part of S, and of O
    const Mask mask(params);
    q += params.q.at(b, h, first_row);
    k += params.k.at(b, h / params.group, 0);
    v += params.v.at(b, h / params.group, 0);
    const Interval row_keys = mask.interval(min(first_row + row, params.S_q - 1));
    const int last_row = min(first_row + ROWS, params.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval tiles = block_keys.tiles(KEYS);

    const auto load_tile = tile::load_tile_async<KEYS, D, LD, THREADS>;
    auto load_keys_and_values = [&](int t) {  // one group per tile, empty beyond the last: groups count tiles
        if (t < tiles.end) {
            const int first_key = t * KEYS, buffer = t % STAGES * KEYS * LD;
            load_tile(k_smem + buffer, k + first_key * params.k.row, params.k.row, params.S_k - first_key);
            load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - first_key);
        }
        ptx::cp_async_commit();
    };
    tile::load_tile_async<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
    ptx::cp_async_commit();
#pragma unroll 1  // the addresses of three tiles at once would not fit the registers
    for (int t = 0; t < STAGES - 1; t++) load_keys_and_values(tiles.begin + t);
    tile::clear_row<D>(o_smem + row * O_LD, part);
    float m = -INFINITY, l = 0.0f;
    QueryFragment q_rmem[D / 16];
    ptx::cp_async_wait<STAGES - 1>();  // this thread's copies of Q have arrived; those of the tiles need not
    __syncthreads();                   // every thread's have, before a warp reads what other warps copied
    load_queries(q_rmem, q_smem + tile_row * LD);

    for (int t = tiles.begin; t < tiles.end; t++) {
        const element* k_tile = k_smem + t % STAGES * KEYS * LD;
        const element* v_tile = v_smem + t % STAGES * KEYS * LD;
        load_keys_and_values(t + STAGES - 1);
        ptx::cp_async_wait<STAGES - 1>();  // this thread's copies of tile t have arrived
        __syncthreads();                   // every thread's have, before a warp reads what other warps copied
        multiply_qk(s_smem + tile_row * S_LD + tile_col, q_rmem, k_tile + tile_col * LD);
        __syncthreads();  // S is whole before a lane reads its row of it

        float p[8];
        tile::load_scores(p, s_smem + row * S_LD, 4 * part, row_keys.from(t * KEYS), params.scale_log2);
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
        __syncthreads();  // every warp is done with this buffer, P and O, which are overwritten next
    }

    l = tile::row_sum(l);
    if (first_row + row < params.S_q) {
        out += params.out.at(b, h, first_row + row);
        tile::store_row<D>(out, o_smem + row * O_LD, part, tile::inverse_sum(l));
        if (lse != nullptr && part == 0)
            lse[params.rows_before(b, h) + first_row + row] = tile::log_sum_exp(m, l);
    }
}
