// Stage 08: both products on the tensor core.
//
// A block of 8 warps owns 32 query rows of one head and walks over K/V tiles of 32 keys. Each row belongs to
// 8 lanes, which have m and their parts of l in registers. Q, K, V, S, P and O are in static shared memory.
// S = Q K^T has four parts of 16 x 16, one for each of four warps.
// Softmax: a lane reads 4 of its row's 32 scores in S, writes P as halves, and rescales its share of O.
// O += P V has eight parts, one per warp. WMMA does not say which lane holds which row of an accumulator, so
// O cannot be rescaled in a fragment: each P V loads its part of O from shared memory, adds, and stores it.
// The warps divide the work differently in each of the four phases (load, Q K^T, softmax, P V), so four
// barriers per tile separate them. Only blocks on the same SM hide each other's waits.
// Row strides (72 halves, 40 floats, 40 halves, 72 floats) put the 8 rows that one step of a fragment's load
// touches into different banks.
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr int D = 64, ROWS = 32, KEYS = 32, THREADS = 256;
// Elements from one row to the next in shared memory
constexpr int LD = D + 8, S_LD = KEYS + 8, P_LD = KEYS + 8, O_LD = D + 8;

// s_smem[16, 16] = q_smem[16, D] k_smem[16, D]^T, by one warp
__device__ __forceinline__ void multiply_qk(float* s_smem, const element* q_smem, const element* k_smem) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> s;
    wmma::fill_fragment(s, 0.0f);
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> q;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> k_transposed;
        wmma::load_matrix_sync(q, q_smem + c, LD);
        wmma::load_matrix_sync(k_transposed, k_smem + c, LD);
        wmma::mma_sync(s, q, k_transposed, s);
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
wmma_full(const element* q, const element* k, const element* v, element* out,  // [B, H or H_kv, S, D]
          float* lse,                                                          // [B, H, S_q]
          PARAMS) {
    const Params params = PARAMS_GIVEN;
    __shared__ __align__(32) element q_smem[ROWS * LD], k_smem[KEYS * LD], v_smem[KEYS * LD];
    __shared__ __align__(32) float s_smem[ROWS * S_LD];    // [ROWS, KEYS]
    __shared__ __align__(32) element p_smem[ROWS * P_LD];  // [ROWS, KEYS]
    __shared__ __align__(32) float o_smem[ROWS * O_LD];    // [ROWS, D]
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

    tile::load_tile<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
    tile::clear_row<D>(o_smem + row * O_LD, part);
    float m = -INFINITY, l = 0.0f;
    for (int first_key = block_keys.begin; first_key < block_keys.end; first_key += KEYS) {
        tile::load_tile<KEYS, D, LD, THREADS>(k_smem, k + first_key * params.k.row, params.k.row,
                                              params.S_k - first_key);
        tile::load_tile<KEYS, D, LD, THREADS>(v_smem, v + first_key * params.v.row, params.v.row,
                                              params.S_k - first_key);
        __syncthreads();  // Q, K and V are whole before a warp reads what other warps stored
        if (warp < 4) multiply_qk(s_smem + s_row * S_LD + s_col, q_smem + s_row * LD, k_smem + s_col * LD);
        __syncthreads();  // S is whole before a lane reads its row of it

        float p[4];
        tile::load_scores(p, s_smem + row * S_LD, 4 * part, row_keys.from(first_key), params.scale_log2);
        const float rescale = tile::online_softmax(p, m);
        l = l * rescale + (p[0] + p[1] + p[2] + p[3]);
        tile::store4(p_smem + row * P_LD + 4 * part, p);
        tile::rescale_row<D>(o_smem + row * O_LD, part, rescale);
        __syncthreads();  // P is whole, and O rescaled, before a warp multiplies them
        accumulate_pv(o_smem + o_row * O_LD + o_col, p_smem + o_row * P_LD, v_smem + o_col);
        __syncthreads();  // every warp has left K, V, P and O before the next tile overwrites them
    }

    l = tile::row_sum(l);
    __syncwarp();  // in a block without tiles the row's zeros come from its other lanes
    if (first_row + row < params.S_q) {
        out += params.out.at(b, h, first_row + row);
        tile::store_row<D>(out, o_smem + row * O_LD, part, tile::inverse_sum(l));
        if (lse != nullptr && part == 0)
            lse[params.rows_before(b, h) + first_row + row] = tile::log_sum_exp(m, l);
    }
}
