// Stage 11: warp specialization. Multiplying, softmax and loading get warps of their own.
//
// A block of 16 warps owns 32 query rows of one head and walks over K/V tiles of 64 keys (32 where D = 128).
// S, P V: warps 0 to 7 each own a 16 x 16 part of S = Q K^T and D / 64 parts of O, which stay in fragments.
// Softmax: warps 8 to 11 own 8 rows each, with m and l in registers. S and P pass through shared memory.
// Loads: warps 12 to 15.
// WMMA does not say which lane holds which row of a fragment, but fragments of one type agree: O is rescaled
// by a second fragment, which has each row's factor in all 16 columns.
// PHASE 0: all warps load, then the roles take turns: four barriers per tile. __syncwarp could not replace
//   one, because it orders only the lanes of one warp.
// PHASE 1: one barrier. Step i: Q K^T of tile i, softmax of i - 1 and P V of i - 2 hide each other, and the
//   loads of K i + 1 and V i - 1. S, P, K and V exist twice: no warp reads what another one is writing.
// PHASE 2: only the load warps load. PHASE 3: they load 16 bytes at a time, not 2. PHASE 4: by cp.async, two
//   steps ahead: three slots, and a copy may pass a barrier. PHASE 5: fragments of Q are loaded once.
#include <mma.h>

#include "tile.cuh"

using namespace nvcuda;

constexpr bool ONE_BARRIER = PHASE >= 1, LOAD_WARPS_ONLY = PHASE >= 2, VECTORS = PHASE >= 3;
constexpr bool ASYNC = PHASE >= 4, Q_IN_REGISTERS = PHASE >= 5;
constexpr int D = HEAD_DIM, ROWS = 32, KEYS = 4096 / D, THREADS = 512;
constexpr int FIRST_SOFTMAX_WARP = 8, FIRST_LOAD_WARP = 12, WARP_COLS = 4;  // multiplying warps: 2 x 4
constexpr int LOADERS = LOAD_WARPS_ONLY ? THREADS - 32 * FIRST_LOAD_WARP : THREADS;
constexpr int AHEAD = ASYNC ? 2 : 1;                // steps from a load to its use
constexpr int SLOTS = ONE_BARRIER ? AHEAD + 1 : 1;  // of K and V tiles
constexpr int BUFFERS = ONE_BARRIER ? 2 : 1;        // of S, P and factors
constexpr int O_PARTS = D / 16 / WARP_COLS;         // of a multiplying warp
constexpr int LANE_ROWS = 2, LANE_SCORES = KEYS / tile::LANES_A_ROW;  // of a softmax lane
// From one row to the next in shared memory: 8 rows, a step of a fragment's load, start in different banks.
constexpr int LD = D + 8, P_LD = KEYS + 8, S_LD = KEYS + 8, FACTOR_LD = 16 + 8, O_LD = D + 8;
constexpr int TILE = KEYS * LD, BLOCKS_PER_SM = VECTORS && (D == 64 || !Q_IN_REGISTERS) ? 2 : 1;

using LeftFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major>;  // of Q or P
using KeyFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major>;   // of K^T
using ValueFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major>;
using ResultFragment = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

template <class T> __device__ __forceinline__ void copy(element* to, const element* from, bool valid) {
    const T bits = *(const T*)from;
    *(T*)to = valid ? bits : T{};
}

// KEYS rows into a tile by LOADERS threads. Rows from `inside` on become zero: what they held could be NaN,
// and 0 * NaN is NaN.
__device__ __forceinline__ void load_tile(element* tile_smem, const element* source, int64_t row_stride,
                                          int inside) {
    constexpr int WIDTH = VECTORS ? 8 : 1;  // elements per load
#pragma unroll 16  // loads in flight: 32 would not fit the registers
    for (int n = threadIdx.x % LOADERS * WIDTH; n < KEYS * D; n += LOADERS * WIDTH) {
        const int row = n / D, c = n % D;
        const bool valid = row < inside;
        const element* from = source + (valid ? row : 0) * row_stride + c;  // it exists, so no branch
        element* to = tile_smem + row * LD + c;
        if constexpr (ASYNC) ptx::cp_async_16(to, from, valid);
        else if constexpr (VECTORS) copy<uint4>(to, from, valid);
        else copy<unsigned short>(to, from, valid);
    }
}

__device__ __forceinline__ void load_queries(LeftFragment (&q_rmem)[D / 16], const element* q_smem) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) wmma::load_matrix_sync(q_rmem[k], q_smem + 16 * k, LD);
}

// s_smem[16, 16] = Q[16, D] k_smem[16, D]^T
__device__ __forceinline__ void multiply_qk(float* s_smem, LeftFragment (&q_rmem)[D / 16],
                                            const element* q_smem, const element* k_smem) {
    ResultFragment s_rmem;
    wmma::fill_fragment(s_rmem, 0.0f);
    if constexpr (!Q_IN_REGISTERS) load_queries(q_rmem, q_smem);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        KeyFragment k_rmem;
        wmma::load_matrix_sync(k_rmem, k_smem + 16 * k, LD);
        wmma::mma_sync(s_rmem, q_rmem[k], k_rmem, s_rmem);
    }
    wmma::store_matrix_sync(s_smem, s_rmem, S_LD, wmma::mem_row_major);
}

// The warp's parts of O[16, D] = factor * O + p_smem[16, KEYS] v_smem[KEYS, D]: every WARP_COLS-th 16 columns
__device__ __forceinline__ void accumulate_pv(ResultFragment (&o_rmem)[O_PARTS], const float* factor_smem,
                                              const element* p_smem, const element* v_smem) {
    ResultFragment factor_rmem;
    wmma::load_matrix_sync(factor_rmem, factor_smem, FACTOR_LD, wmma::mem_row_major);
#pragma unroll
    for (int n = 0; n < O_PARTS; n++)
#pragma unroll
        for (int i = 0; i < factor_rmem.num_elements; i++) o_rmem[n].x[i] *= factor_rmem.x[i];
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        LeftFragment p_rmem;
        wmma::load_matrix_sync(p_rmem, p_smem + 16 * k, P_LD);
#pragma unroll
        for (int n = 0; n < O_PARTS; n++) {
            ValueFragment v_rmem;
            wmma::load_matrix_sync(v_rmem, v_smem + 16 * k * LD + 16 * WARP_COLS * n, LD);
            wmma::mma_sync(o_rmem[n], p_rmem, v_rmem, o_rmem[n]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
warp_specialized(const element* q, const element* k, const element* v,  // [B, H or H / group, S, D]
                 element* out, float* lse,                              // [B, H, S_q, D], [B, H, S_q]
                 PARAMS) {
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = (element*)smem;                                    // [ROWS, D]
    element* k_smem = q_smem + ROWS * LD;                             // [SLOTS, KEYS, D]
    element* v_smem = k_smem + SLOTS * TILE;                          // [SLOTS, KEYS, D]
    element* p_smem = v_smem + SLOTS * TILE;                          // [BUFFERS, ROWS, KEYS]
    float* s_smem = (float*)(p_smem + BUFFERS * ROWS * P_LD);      // [BUFFERS, ROWS, KEYS]
    float* factor_smem = s_smem + BUFFERS * ROWS * S_LD;           // [BUFFERS, ROWS, 16]: 16 times the row's
    float* inv_l_smem = factor_smem + BUFFERS * ROWS * FACTOR_LD;  // [ROWS]
    float* o_smem = (float*)k_smem;                                // [ROWS, D], at the end
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.y, b = blockIdx.z;
    const int first_row = blockIdx.x * ROWS;
    const bool multiplies = warp < FIRST_SOFTMAX_WARP, exponentiates = !multiplies && warp < FIRST_LOAD_WARP;
    const bool loads = !LOAD_WARPS_ONLY || warp >= FIRST_LOAD_WARP;
    const int warp_row = warp / WARP_COLS * 16, warp_col = warp % WARP_COLS * 16;  // of a multiplying warp
    const int lane_row = (warp - FIRST_SOFTMAX_WARP) * 8 + lane / 8 * LANE_ROWS;   // of a softmax lane
    const int part = threadIdx.x % 8;                                              // of its row's 8 lanes
    const Mask mask(params);
    const int last_row = min(first_row + ROWS, params.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const int first_tile = block_keys.tiles(KEYS).begin, tiles = block_keys.tiles(KEYS).end - first_tile;
    q += params.q.at(b, h, first_row);
    k += params.k.at(b, h / params.group, 0);
    v += params.v.at(b, h / params.group, 0);

    ResultFragment o_rmem[O_PARTS];
    LeftFragment q_rmem[D / 16];
    float m[LANE_ROWS] = {-INFINITY, -INFINITY}, l[LANE_ROWS] = {};
#pragma unroll
    for (int n = 0; n < O_PARTS; n++) wmma::fill_fragment(o_rmem[n], 0.0f);

    auto load_k_and_v = [&](int k_tile, int v_tile, int slot) {
        const int k_first = (first_tile + k_tile) * KEYS, v_first = (first_tile + v_tile) * KEYS;
        if (k_tile < tiles)
            load_tile(k_smem + slot * TILE, k + k_first * params.k.row, params.k.row, params.S_k - k_first);
        if (v_tile >= 0 && v_tile < tiles)
            load_tile(v_smem + slot * TILE, v + v_first * params.v.row, params.v.row, params.S_k - v_first);
    };
    auto multiply_qk_of = [&](int tile, int slot) {
        float* s_part = s_smem + (tile % BUFFERS * ROWS + warp_row) * S_LD + warp_col;
        const element* k_part = k_smem + slot * TILE + warp_col * LD;
        if (warp_col < KEYS) multiply_qk(s_part, q_rmem, q_smem + warp_row * LD, k_part);
    };
    auto softmax_of = [&](int tile) {  // P = 2^(s - m), and the factor by which older tiles' l and O shrink
        const int top = tile % BUFFERS * ROWS + lane_row;
        float s[LANE_ROWS][LANE_SCORES];
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const Interval seen = mask.interval(first_row + lane_row + r).from((first_tile + tile) * KEYS);
            tile::load_scores(s[r], s_smem + (top + r) * S_LD, 4 * part, seen, params.scale_log2);
        }
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float factor = tile::online_softmax(s[r], m[r]);
            *(float2*)(factor_smem + (top + r) * FACTOR_LD + 2 * part) = make_float2(factor, factor);
            l[r] *= factor;
#pragma unroll
            for (int i = 0; i < LANE_SCORES; i += 4) {
                const float p[4] = {s[r][i], s[r][i + 1], s[r][i + 2], s[r][i + 3]};
                l[r] += p[0] + p[1] + p[2] + p[3];
                tile::store4(p_smem + (top + r) * P_LD + 8 * i + 4 * part, p);
            }
        }
    };
    auto accumulate_pv_of = [&](int tile, int slot) {
        const int row = tile % BUFFERS * ROWS + warp_row;
        const element* v_part = v_smem + slot * TILE + warp_col;
        accumulate_pv(o_rmem, factor_smem + row * FACTOR_LD, p_smem + row * P_LD, v_part);
    };

    if constexpr (!ONE_BARRIER) {
        tile::load_tile<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
        for (int tile = 0; tile < tiles; tile++) {
            load_k_and_v(tile, tile, 0);
            __syncthreads();  // Q, K and V are whole before a warp multiplies what others stored
            if (multiplies) multiply_qk_of(tile, 0);
            __syncthreads();  // S is whole before the softmax warps read it
            if (exponentiates) softmax_of(tile);
            __syncthreads();  // P and the factors are whole before a warp multiplies them
            if (multiplies) accumulate_pv_of(tile, 0);
            __syncthreads();  // every warp has left K, V, S and P before the next tile overwrites them
        }
    } else {
        auto load_for = [&](int step) {  // K and V of one step, to slot step % SLOTS
            load_k_and_v(step, step - 2, step % SLOTS);
            if constexpr (ASYNC) ptx::cp_async_commit();  // one group per step, empty after the last
        };
        for (int step = 0; step < AHEAD; step++)
            if (loads) load_for(step);
        tile::load_tile<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);
        if constexpr (ASYNC) ptx::cp_async_wait<AHEAD - 1>();  // this thread's part of the first K is there
        __syncthreads();                                       // so are all parts, and Q
        if (Q_IN_REGISTERS && multiplies) load_queries(q_rmem, q_smem + warp_row * LD);
        for (int step = 0; step < tiles + 2; step++) {
            if (loads) load_for(step + AHEAD);
            if (multiplies && step >= 2) accumulate_pv_of(step - 2, step % SLOTS);
            if (multiplies && step < tiles) multiply_qk_of(step, step % SLOTS);
            if (exponentiates && step >= 1 && step <= tiles) softmax_of(step - 1);
            if constexpr (ASYNC) ptx::cp_async_wait<AHEAD - 1>();  // this thread's part of the next is there
            __syncthreads();  // so are all parts, S and P; and what this step has read may be overwritten
        }
    }

    if (multiplies)
#pragma unroll
        for (int n = 0; n < O_PARTS; n++)
            wmma::store_matrix_sync(o_smem + warp_row * O_LD + warp_col + 16 * WARP_COLS * n, o_rmem[n], O_LD,
                                    wmma::mem_row_major);
    if (exponentiates)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const int row = lane_row + r;
            l[r] = tile::row_sum(l[r]);
            if (part == 0) inv_l_smem[row] = tile::inverse_sum(l[r]);
            if (lse != nullptr && part == 0 && first_row + row < params.S_q)
                lse[params.rows_before(b, h) + first_row + row] = tile::log_sum_exp(m[r], l[r]);
        }
    __syncthreads();  // O and 1 / l are complete before 8 neighbouring threads write each row
    const int row = threadIdx.x / 8;
    out += params.out.at(b, h, first_row + row);
    if (row < ROWS && first_row + row < params.S_q)
        tile::store_row<D>(out, o_smem + row * O_LD, part, inv_l_smem[row]);
}
