// Stage 07: the tensor core multiplies Q by K; softmax and P V stay scalar.
//
// A block of 8 warps owns 32 query rows of one head and walks over K/V tiles of 32 keys. A warp owns 4 of the
// rows, and 8 of its lanes share each: a lane has m, its part of l, and 8 of the 64 components of O, all in
// registers. Q, K, V and S are in shared memory.
// S: each of four warps computes one 16 x 16 part of Q K^T by WMMA, four products along D. WMMA does not say
// which lane holds which element of a fragment, so S goes to shared memory and is read back by rows.
// Softmax: a lane takes 4 of its row's 32 scores, three shuffles give the row's maximum, and P replaces S.
// P V: a lane multiplies its row of P by its 8 columns of V. Between softmax and P V data passes only between
// lanes of one warp, so no barrier of the block is needed there. While a block waits at one of its three
// barriers per tile, a second block on the same SM works.
// Rows of Q, K and V are 72 halves apart and rows of S 40 floats, so that the 8 rows which one step of a
// fragment's load touches start in different banks.
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr int D = 64, ROWS = 32, KEYS = 32, THREADS = 256;
constexpr int LD = D + 8, S_LD = KEYS + 8;  // elements from one row to the next in shared memory

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

// o[c] += P[row, :] V[:, c] for the 8 components of V that start at `v_smem`
__device__ __forceinline__ void accumulate_pv(float (&o)[8], const float* p_row, const element* v_smem) {
#pragma unroll
    for (int key = 0; key < KEYS; key += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p_row + key);
        const float p[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[8];
            tile::load8(v, v_smem + (key + i) * LD);
#pragma unroll
            for (int c = 0; c < 8; c++) o[c] += p[i] * v[c];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
wmma_qk(const element* q, const element* k, const element* v, element* out,  // [B, H or H_kv, S, D]
        float* lse,                                                          // [B, H, S_q]
        PARAMS) {
    const Params params = PARAMS_GIVEN;
    __shared__ __align__(32) element q_smem[ROWS * LD], k_smem[KEYS * LD], v_smem[KEYS * LD];
    __shared__ __align__(32) float s_smem[ROWS * S_LD];  // [ROWS, KEYS]: S, then P
    const int warp = threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x * ROWS;
    const int row = threadIdx.x / 8, part = threadIdx.x % 8;  // scores 4 part.., components 8 part..
    const int s_tile = warp / 2 * 16, s_col = warp % 2 * 16;
    float* s_row = s_smem + row * S_LD;
    const Mask mask(params);
    q += params.q.at(b, h, first_row);
    k += params.k.at(b, h / params.group, 0);
    v += params.v.at(b, h / params.group, 0);
    const Interval row_keys = mask.interval(min(first_row + row, params.S_q - 1));
    const int last_row = min(first_row + ROWS, params.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};

    tile::load_tile<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
    float m = -INFINITY, l = 0.0f, o[8] = {};
    for (int first_key = block_keys.begin; first_key < block_keys.end; first_key += KEYS) {
        tile::load_tile<KEYS, D, LD, THREADS>(k_smem, k + first_key * params.k.row, params.k.row,
                                              params.S_k - first_key);
        tile::load_tile<KEYS, D, LD, THREADS>(v_smem, v + first_key * params.v.row, params.v.row,
                                              params.S_k - first_key);
        __syncthreads();  // Q, K and V are whole before a warp reads what other warps stored
        if (warp < 4)
            multiply_qk(s_smem + s_tile * S_LD + s_col, q_smem + s_tile * LD, k_smem + s_col * LD);
        __syncthreads();  // S is whole before a lane reads its row of it

        float p[4];
        tile::load_scores(p, s_row, 4 * part, row_keys.from(first_key), params.scale_log2);
        const float rescale = tile::online_softmax(p, m);
        l = l * rescale + (p[0] + p[1] + p[2] + p[3]);
#pragma unroll
        for (int c = 0; c < 8; c++) o[c] *= rescale;
        *reinterpret_cast<float4*>(s_row + 4 * part) = make_float4(p[0], p[1], p[2], p[3]);
        __syncwarp();  // the row of P is whole before its 8 lanes read all of it
        accumulate_pv(o, s_row, v_smem + 8 * part);
        __syncthreads();  // every warp has left K, V and P before the next tile overwrites them
    }

    l = tile::row_sum(l);
    if (first_row + row < params.S_q) {
#pragma unroll
        for (int c = 0; c < 8; c++) o[c] *= tile::inverse_sum(l);
        tile::store8(out + params.out.at(b, h, first_row + row) + 8 * part, o);
        if (lse != nullptr && part == 0)
            lse[params.rows_before(b, h) + first_row + row] = tile::log_sum_exp(m, l);
    }
}
