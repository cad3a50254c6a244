// Stage 13: split over K/V. Stage 12 divides only the query rows; a short problem has too few to fill a GPU.
//
// The keys of a row tile are divided twice. Inside a block KEY_WARPS warps hold the same rows and share the
// keys of a step: each multiplies its own tile of BLOCK_N of them (warp_rows.cuh). Across blocks the steps
// are cut into `splits`. Every part ends with its own O, l and m, and parts merge as the online softmax does:
// with M the greatest m, O = sum 2^(m_i - M) O_i / sum 2^(m_i - M) l_i.
// In a block the parts meet in shared memory, as floats. The upper 4 of each 8 components lie UPPER behind
// the lower 4, and rows are padded by 8: no store of fragments and no 16-byte load meets a bank twice.
// Splits leave O / l and m + log2 l in global memory, and a second kernel merges them: its launch costs less
// than fences, a counter a tile and the last block's wait, which one launch would need.
// A launch has a block for every (head, batch, row tile, split), in either order of stage 12; or, PERSISTENT,
// fewer blocks, each taking every gridDim-th piece of the work.
#include "warp_rows.cuh"

constexpr int WARPS = ROW_WARPS * KEY_WARPS, THREADS = 32 * WARPS, BLOCK_M = ROW_WARPS * WARP_ROWS;
constexpr int STEP = KEY_WARPS * BLOCK_N, TILE = STEP * D;
constexpr int PART_ROW = D + 8, UPPER = D / 2 + 4;

// One chunk of a row of O, and the row's log2 of the sum of exponentials, from `count` parts.
template <class M, class L, class O>
__device__ __forceinline__ float merge(float (&o)[8], int count, M m_of, L l_of, O o_of) {
    float m = LOWEST, l = 0.0f;
    for (int i = 0; i < count; i++) m = fmaxf(m, m_of(i));
    for (int i = 0; i < count; i++) {
        const float weight = ptx::ex2(m_of(i) - m);
        const float4 lower = *(const float4*)o_of(i, 0), upper = *(const float4*)o_of(i, 1);
        const float x[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
        l += weight * l_of(i);
#pragma unroll
        for (int j = 0; j < 8; j++) o[j] += weight * x[j];
    }
    const float inv_l = inverse_sum(l);
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] *= inv_l;
    return l == 0 ? -INFINITY : m + __log2f(l);
}

__device__ __forceinline__ void store_chunk(element* out, const float (&o)[8]) {
    uint32_t pairs[4];
    pack_output<8>(pairs, o);
    ptx::store_16(out, pairs[0], pairs[1], pairs[2], pairs[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
split_kv(const element* q,                    // [B, H, S_q, D]
         const element* k, const element* v,  // [B, H / group, S_k, D]
         element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
         PARAMS, int longest_first, int B, int splits,
         float* parts, float* part_lse) {  // if splits > 1: [splits, B, H, S_q, D]; [splits, B, H, S_q], log2
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(128) element smem[];
    __shared__ float m_smem[KEY_WARPS][BLOCK_M], l_smem[KEY_WARPS][BLOCK_M];
    element* k_smem = smem + BLOCK_M * D;      // [STAGES, STEP, D]
    element* v_smem = k_smem + STAGES * TILE;  // [STAGES, STEP, D]
    float* o_smem = (float*)smem;           // [KEY_WARPS, BLOCK_M, PART_ROW], once Q, K and V have been read
    const int lane = threadIdx.x % 32, key_warp = threadIdx.x / 32 / ROW_WARPS;
    const int my_row = threadIdx.x / 32 % ROW_WARPS * WARP_ROWS;  // the warp's first row in the block
    const int chunk_row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS * 8;  // what the thread copies
    const int row_tiles = (params.S_q + BLOCK_M - 1) / BLOCK_M;
    const Scale scale(params.scale_log2);
    const Mask mask(params);

    const int work = params.H * B * splits * row_tiles;
    int number = blockIdx.x;
    do {
        // Divisions take a tenth of a short launch: a grid of three dimensions saves them.
        const int h = PERSISTENT ? number % params.H : longest_first ? blockIdx.x : blockIdx.y;
        const int b = PERSISTENT ? number / params.H % B : longest_first ? blockIdx.y : blockIdx.z;
        const int z = PERSISTENT ? number / params.H / B : longest_first ? blockIdx.z : blockIdx.x;
        const int split = splits == 1 ? 0 : z % splits, rank = splits == 1 ? z : z / splits;
        const int first_row = (longest_first ? row_tiles - 1 - rank : rank) * BLOCK_M;
        const int warp_row = first_row + my_row;
        const Interval last_sees = mask.interval(warp_row + WARP_ROWS - 1);
        const Interval first_sees = mask.interval(warp_row);
        const int last_row = min(first_row + BLOCK_M, params.S_q) - 1;
        const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
        const Interval all_steps = block_keys.tiles(STEP);
        const int count = all_steps.end - all_steps.begin;
        const int first_step = all_steps.begin + (splits == 1 ? 0 : count * split / splits);
        const int end_step = all_steps.begin + (splits == 1 ? count : count * (split + 1) / splits);

        const int h_kv = h / params.group, key = first_step * STEP + chunk_row;
        const element* q_next = q + params.q.at(b, h, first_row + chunk_row) + chunk;
        const element* k_next = k + params.k.at(b, h_kv, key) + chunk;
        const element* v_next = v + params.v.at(b, h_kv, key) + chunk;
        auto load_step = [&](int step) {  // the steps in turn; one group each, empty after the last
            if (step < end_step) {
                const int slot = step % STAGES * TILE, inside = params.S_k - step * STEP;
                load_rows_async<STEP, THREADS>(k_smem + slot, k_next, params.k.row, inside, threadIdx.x);
                load_rows_async<STEP, THREADS>(v_smem + slot, v_next, params.v.row, inside, threadIdx.x);
                k_next += STEP * params.k.row, v_next += STEP * params.v.row;
            }
            ptx::cp_async_commit();
        };
        load_rows_async<BLOCK_M, THREADS>(smem, q_next, params.q.row, params.S_q - first_row, threadIdx.x);
        ptx::cp_async_commit();
#pragma unroll
        for (int step = 0; step < STAGES - 1; step++) load_step(first_step + step);

        Output o_rmem = {};
        Queries q_rmem;
        RowState m, l;
        float scale_left = scale.log2;  // see raise_reference
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) m[r] = LOWEST, l[r] = 0.0f;
        ptx::cp_async_wait<STAGES - 1>();  // Q, the oldest group: this thread's part has arrived
        __syncthreads();                   // so have the other threads' parts
        if (Q_IN_REGISTERS) load_queries(q_rmem, smem + my_row * D, lane);

        for (int step = first_step; step < end_step; step++) {
            ptx::cp_async_wait<STAGES - 2>();  // this thread's part of the step has arrived
            __syncthreads();                   // so have all, and every warp has left the slot filled next
            load_step(step + STAGES - 1);
            const int first_key = step * STEP + key_warp * BLOCK_N;
            const int slot = step % STAGES * TILE + key_warp * BLOCK_N * D;
            if (first_key >= last_sees.end) continue;
            Scores s_rmem;
            Weights p_rmem;
            const bool masked = (last_sees.begin > 0 && first_key < last_sees.begin) ||
                                first_key + BLOCK_N > first_sees.end || scale.sign != 1.0f;
            bool done = false;
            if (LAZY_MAX && step > first_step && !masked && scale_left == scale.log2) {  // m may be near
                score_tile(s_rmem, q_rmem, smem + my_row * D, k_smem + slot, lane);
                done = exponentiate(p_rmem, s_rmem, m, l, scale.log2);
            }
            if (!done) {
                score_tile(s_rmem, q_rmem, smem + my_row * D, k_smem + slot, lane);
                if (masked) {
                    Interval seen[LANE_ROWS];
#pragma unroll
                    for (int r = 0; r < LANE_ROWS; r++)
                        seen[r] = mask.interval(warp_row + 8 * r + lane / 4).from(first_key);
                    mask_tile(s_rmem, seen, scale.sign, lane);
                }
                scale_left = softmax_tile(p_rmem, s_rmem, o_rmem, m, l, scale.log2);
            }
            accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);
        }

        __syncthreads();  // every warp has read Q, K and V for the last time before O takes their place
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const int row = my_row + 8 * r + lane / 4;
            const float total = quad_sum(l[r]);
            if (lane % 4 == 0) m_smem[key_warp][row] = m[r], l_smem[key_warp][row] = total;
            float* o_row = o_smem + (key_warp * BLOCK_M + row) * PART_ROW;
            o_row += lane % 4 / 2 * UPPER + lane % 2 * 2;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                const float* pair = &o_rmem[r / 2][d][r % 2 * 2];
                *(float2*)(o_row + 4 * d) = make_float2(pair[0], pair[1]);
            }
        }
        __syncthreads();  // the parts are whole before threads merge what others wrote
        const long long tile_index = params.rows_before(b, h) + first_row;  // the tile's first row in lse
#pragma unroll
        for (int row = chunk_row; row < BLOCK_M; row += THREADS / CHUNKS) {
            if (first_row + row >= params.S_q) break;
            float o[8] = {};
            const float lse_log2 = merge(
                o, KEY_WARPS, [&](int i) { return m_smem[i][row]; }, [&](int i) { return l_smem[i][row]; },
                [&](int i, int upper) {
                    return o_smem + (i * BLOCK_M + row) * PART_ROW + upper * UPPER + chunk / 2;
                });
            if (splits == 1) {
                store_chunk(out + params.out.at(b, h, first_row + row) + chunk, o);
                if (lse && chunk == 0) lse[tile_index + row] = lse_log2 * LN2;
            } else {
                const long long part = (long long)split * B * params.H * params.S_q + tile_index + row;
#pragma unroll
                for (int j = 0; j < 8; j += 4) {
                    float* part_of_row = parts + part * D + chunk + j;
                    *(float4*)part_of_row = make_float4(o[j], o[j + 1], o[j + 2], o[j + 3]);
                }
                if (chunk == 0) part_lse[part] = lse_log2;
            }
        }
        if (PERSISTENT) __syncthreads();  // the parts have been read before the next Q, K and V replace them
    } while (PERSISTENT && (number += gridDim.x) < work);
}

// After split_kv with splits > 1: a block for blockDim.x / CHUNKS rows of one head and batch, a thread for 8
// components of a row. A part is O / l and m + log2 l, that is, its l is 1; if it saw no key, it weighs 0.
extern "C" __global__ void
merge_splits(const float* parts, const float* part_lse,  // [splits, B, H, S_q, D], [splits, B, H, S_q]: log2
             element* out, float* lse,                      // [B, H, S_q, D]; [B, H, S_q] or null
             STRIDES(out), int S_q, int splits) {
    const Strides out_strides = STRIDES_GIVEN(out);
    const int row = blockIdx.x * (blockDim.x / CHUNKS) + threadIdx.x / CHUNKS;
    const int chunk = threadIdx.x % CHUNKS * 8;
    if (row >= S_q) return;
    const int h = blockIdx.y, b = blockIdx.z, H = gridDim.y, B = gridDim.z;
    const long long index = ((long long)b * H + h) * S_q + row, rows = (long long)B * H * S_q;
    float o[8] = {};
    const float lse_log2 = merge(
        o, splits, [&](int i) { return part_lse[i * rows + index]; },
        [&](int i) { return part_lse[i * rows + index] == -INFINITY ? 0.0f : 1.0f; },
        [&](int i, int upper) { return parts + (i * rows + index) * D + chunk + 4 * upper; });
    store_chunk(out + out_strides.at(b, h, row) + chunk, o);
    if (lse && chunk == 0) lse[index] = lse_log2 * LN2;
}
