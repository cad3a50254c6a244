// Stage 09: the next K/V tile is copied while this one is multiplied.
//
// A block of 12 warps owns 48 query rows of one head and walks over K/V tiles of 32 keys. Each row belongs to
// 8 lanes. Q, S, P, O, m and l are in shared memory, with two buffers of K and V: 49,536 bytes at D = 64,
// dynamic because static shared memory ends at 48 KB; the constants below divide it.
// S = Q K^T has 3 x 2 parts of 16 x 16, for six warps, which keep their fragments of Q.
// Softmax: a lane takes 4 of its row's 32 scores, writes P, and rescales its share of O.
// O += P V has 3 x 4 parts (D = 128: 3 x 8), one or two per warp.
// cp.async copies 16 bytes from global to shared memory, and the thread goes on. The copies of tile t + 1 are
// issued before tile t is multiplied and waited for one iteration later: a tile's arithmetic hides them.
// Rows of K and V are padded by 8 halves: the 8 rows of a fragment's load start in different banks. A row of
// S is padded by 16 floats, so a store past its keys stays in the row, but rows two apart share banks. Q, P
// and O have no padding, so their 8 rows share banks: Q pays once, P and O in every iteration.
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr int D = HEAD_DIM, ROWS = 48, KEYS = 32, THREADS = 384, BUFFERS = 2;
// Elements from one row to the next in shared memory
constexpr int Q_LD = D, KV_LD = D + 8, S_LD = KEYS + 16, P_LD = KEYS, O_LD = D;
// The memory map: bytes of each part, in this order, and where each begins
constexpr int Q_BYTES = ROWS * Q_LD * 2;               // element [ROWS, D]
constexpr int K_BYTES = BUFFERS * KEYS * KV_LD * 2;    // element [BUFFERS, KEYS, D]
constexpr int V_BYTES = BUFFERS * KEYS * KV_LD * 2;    // element [BUFFERS, KEYS, D]
constexpr int S_BYTES = ROWS * S_LD * 4;               // float   [ROWS, KEYS]
constexpr int P_BYTES = ROWS * P_LD * 2;               // element [ROWS, KEYS]
constexpr int M_BYTES = ROWS * 4;                      // float   [ROWS]
constexpr int L_BYTES = ROWS * 4;                      // float   [ROWS]
constexpr int O_BYTES = ROWS * O_LD * 4;               // float   [ROWS, D]
constexpr int Q_AT = 0, K_AT = Q_AT + Q_BYTES, V_AT = K_AT + K_BYTES, S_AT = V_AT + V_BYTES;
constexpr int P_AT = S_AT + S_BYTES, M_AT = P_AT + P_BYTES, L_AT = M_AT + M_BYTES, O_AT = L_AT + L_BYTES;
constexpr int SMEM_BYTES = O_AT + O_BYTES;
static_assert(D != 64 || SMEM_BYTES == 49536, "the memory map of the plan");

using QueryFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major>;

// 16 rows of Q, as D / 16 operands
__device__ __forceinline__ void load_queries(QueryFragment (&q_rmem)[D / 16], const element* q_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) wmma::load_matrix_sync(q_rmem[i], q_smem + 16 * i, Q_LD);
}

// s_smem[16, 16] = Q k_smem[16, D]^T, by one warp
__device__ __forceinline__ void multiply_qk(float* s_smem, const QueryFragment (&q_rmem)[D / 16],
                                            const element* k_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> s;
    wmma::fill_fragment(s, 0.0f);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> k_transposed;
        wmma::load_matrix_sync(k_transposed, k_smem + 16 * i, KV_LD);
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
        wmma::load_matrix_sync(v, v_smem + key * KV_LD, KV_LD);
        wmma::mma_sync(o, p, v, o);
    }
    wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
}

extern "C" __global__ void __launch_bounds__(THREADS, 128 / D)  // registers for two blocks per SM at D = 64
async_copy(const element* q, const element* k, const element* v, element* out,  // [B, H or H_kv, S, D]
           float* lse,                                                          // [B, H, S_q]
           PARAMS) {
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem + Q_AT);
    element* k_smem = reinterpret_cast<element*>(smem + K_AT);
    element* v_smem = reinterpret_cast<element*>(smem + V_AT);
    float* s_smem = reinterpret_cast<float*>(smem + S_AT);
    element* p_smem = reinterpret_cast<element*>(smem + P_AT);
    float* m_smem = reinterpret_cast<float*>(smem + M_AT);
    float* l_smem = reinterpret_cast<float*>(smem + L_AT);
    float* o_smem = reinterpret_cast<float*>(smem + O_AT);
    const int warp = threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x * ROWS;
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;  // 8 lanes share a row, 4 scores each
    const int s_row = warp / 2 * 16, s_col = warp % 2 * 16, o_row = warp / 4 * 16, o_col = warp % 4 * 16;
    const Mask mask(params);
    q += params.q.at(b, h, first_row);
    k += params.k.at(b, h / params.group, 0);
    v += params.v.at(b, h / params.group, 0);
    const Interval row_keys = mask.interval(min(first_row + row, params.S_q - 1));
    const int last_row = min(first_row + ROWS, params.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval tiles = block_keys.tiles(KEYS);

    const auto load_tile = tile::load_tile_async<KEYS, D, KV_LD, THREADS>;
    auto load_keys_and_values = [&](int t) {  // one group per tile, empty beyond the last: groups count tiles
        if (t < tiles.end) {
            const int first_key = t * KEYS, buffer = t % BUFFERS * KEYS * KV_LD;
            load_tile(k_smem + buffer, k + first_key * params.k.row, params.k.row, params.S_k - first_key);
            load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - first_key);
        }
        ptx::cp_async_commit();
    };
    tile::load_tile_async<ROWS, D, Q_LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
    ptx::cp_async_commit();
    load_keys_and_values(tiles.begin);
    tile::clear_row<D>(o_smem + row * O_LD, part);
    if (part == 0) m_smem[row] = -INFINITY, l_smem[row] = 0.0f;
    QueryFragment q_rmem[D / 16];
    ptx::cp_async_wait<1>();  // this thread's copies of Q have arrived; those of tile 0 need not
    __syncthreads();          // every thread's have, before a warp reads what other warps copied
    if (warp < 6) load_queries(q_rmem, q_smem + s_row * Q_LD);

    for (int t = tiles.begin; t < tiles.end; t++) {
        const element* k_tile = k_smem + t % BUFFERS * KEYS * KV_LD;
        const element* v_tile = v_smem + t % BUFFERS * KEYS * KV_LD;
        load_keys_and_values(t + 1);
        ptx::cp_async_wait<1>();  // this thread's copies of tile t have arrived; those of t + 1 need not
        __syncthreads();          // every thread's have, before a warp reads what other warps copied
        if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);
        __syncthreads();  // S is whole before a lane reads its row of it

        float p[4], m = m_smem[row];
        tile::load_scores(p, s_smem + row * S_LD, 4 * part, row_keys.from(t * KEYS), params.scale_log2);
        const float rescale = tile::online_softmax(p, m);
        const float l = l_smem[row] * rescale + tile::row_sum(p[0] + p[1] + p[2] + p[3]);
        tile::store4(p_smem + row * P_LD + 4 * part, p);
        tile::rescale_row<D>(o_smem + row * O_LD, part, rescale);
        __syncwarp();  // the row's 8 lanes have read m and l before one of them overwrites them
        if (part == 0) m_smem[row] = m, l_smem[row] = l;
        __syncthreads();  // P is whole, and O rescaled, before a warp multiplies them
#pragma unroll
        for (int c = o_col; c < D; c += 64)
            accumulate_pv(o_smem + o_row * O_LD + c, p_smem + o_row * P_LD, v_tile + c);
        __syncthreads();  // every warp is done with this buffer, P and O, which are overwritten next
    }

    if (first_row + row < params.S_q) {
        const float m = m_smem[row], l = l_smem[row];
        out += params.out.at(b, h, first_row + row);
        tile::store_row<D>(out, o_smem + row * O_LD, part, tile::inverse_sum(l));
        if (lse != nullptr && part == 0)
            lse[params.rows_before(b, h) + first_row + row] = tile::log_sum_exp(m, l);
    }
}
