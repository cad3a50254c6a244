// Stage 13: split over K/V. Stage 12 divides only the query rows; a short problem has too few to fill a GPU.
//
// A block owns BLOCK_M query rows of one head and one of `splits` parts of their keys, in steps of KEY_WARPS
// tiles of BLOCK_N keys. KEY_WARPS warps have the same rows, and each has its own tile of a step. In a warp,
// S, softmax and P V are stage 12's (warp_rows.cuh), and so are the copies that the products hide.
// Every part ends with its own O, l and m, and parts merge as the online softmax does: with M the greatest m,
// O = sum 2^(m_i - M) O_i / sum 2^(m_i - M) l_i. A thread merges 8 components of a row.
// In a block the parts meet in shared memory, as floats. The upper 4 of each 8 components are UPPER after the
// lower 4, and rows are padded by 8: no store of fragments and no 16-byte load meets a bank twice.
// Across blocks, splits leave O / l and m + log2 l in global memory, and a second kernel merges them: its
// launch costs less than fences, a counter per tile and the last block's wait, which one launch would need.
// A launch has a block per work tile (head, batch, row tile, split), in either order of stage 12; or,
// PERSISTENT, fewer blocks, each with every gridDim.x-th work tile.
#include "warp_rows.cuh"

static_assert(D == D_V, "a thread merges 8 components of a row, of as many as its chunks of V");
constexpr int CHUNKS = D / 8;
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
    const float inv_l = l == 0 ? 0.0f : 1.0f / l;  // a row that sees no key is 0, not 0 / 0
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] *= inv_l;
    return l == 0 ? -INFINITY : m + __log2f(l);
}

// The sink of head h is one more part of a merged row: its O is 0.
__device__ __forceinline__ float merge_sink(float (&o)[8], float lse_log2, const Sizes& sizes, int h) {
    float m = fmaxf(lse_log2, LOWEST), l = lse_log2 == -INFINITY ? 0.0f : 1.0f;
    const float rescale = join_sink(m, l, sizes, h), inv_l = inverse_sum(l);
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] *= rescale * inv_l;
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
    const int row_tiles = row_tiles_at_most(params, BLOCK_M);
    const Scale scale(params.softmax_scale_log2());

    const int work = params.H * B * splits * row_tiles;
    int number = blockIdx.x;
    do {
        // Divisions take a tenth of a short launch: a grid of three dimensions saves them.
        const int h = PERSISTENT ? number % params.H : longest_first ? blockIdx.x : blockIdx.y;
        const int y = PERSISTENT ? number / params.H % B : longest_first ? blockIdx.y : blockIdx.z;
        const int z = PERSISTENT ? number / params.H / B : longest_first ? blockIdx.z : blockIdx.x;
        const int split = splits == 1 ? 0 : z % splits, rank = splits == 1 ? z : z / splits;
        RowTile row_tile{y, longest_first ? row_tiles - 1 - rank : rank};
        if (RAGGED && !find_row_tile(row_tile, params, BLOCK_M, lane)) continue;
        const Sequence sequence = params.sequence(row_tile.sequence);
        const Mask mask(params, sequence);
        const Adjustment adjustment(params, sequence, h);
        const int first_row = row_tile.tile * BLOCK_M, warp_row = first_row + my_row;
        const Interval last_sees = mask.interval(warp_row + WARP_ROWS - 1);
        const Interval first_sees = mask.interval(warp_row);
        const int last_row = min(first_row + BLOCK_M, sequence.S_q) - 1;
        const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
        const Interval all_steps = block_keys.tiles(STEP);
        const int count = all_steps.end - all_steps.begin;
        const int first_step = all_steps.begin + (splits == 1 ? 0 : count * split / splits);
        const int end_step = all_steps.begin + (splits == 1 ? count : count * (split + 1) / splits);

        const int b = sequence.batch, h_kv = h / params.group, key = first_step * STEP + chunk_row;
        const element* q_next = q + params.q.at(b, h, sequence.first_row + first_row + chunk_row) + chunk;
        const element* k_next = k + params.k.at(b, h_kv, sequence.first_key + key) + chunk;
        const element* v_next = v + params.v.at(b, h_kv, sequence.first_key + key) + chunk;
        auto load_step = [&](int step) {  // the steps in turn; one group each, empty after the last
            if (step < end_step) {
                const int slot = step % STAGES * TILE, inside = sequence.S_k - step * STEP;
                load_rows_async<D, STEP, THREADS>(k_smem + slot, k_next, params.k.row, inside, threadIdx.x);
                load_rows_async<D, STEP, THREADS>(v_smem + slot, v_next, params.v.row, inside, threadIdx.x);
                k_next += STEP * params.k.row, v_next += STEP * params.v.row;
            }
            ptx::cp_async_commit();
        };
        load_rows_async<D, BLOCK_M, THREADS>(smem, q_next, params.q.row, sequence.S_q - first_row,
                                             threadIdx.x);
        ptx::cp_async_commit();
#pragma unroll
        for (int step = 0; step < STAGES - 1; step++) load_step(first_step + step);

        Output o_rmem = {};
        Queries q_rmem;
        RowState m, l;
        float scale_left = WINDOW ? 0.0f : scale.log2;  // see raise_max; 0: some row has no maximum
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
            if (WINDOW && first_key + BLOCK_N <= first_sees.begin) continue;
            Scores s_rmem;
            P p_rmem;
            const bool masked = (last_sees.begin > 0 && first_key < last_sees.begin) ||
                                first_key + BLOCK_N > first_sees.end || scale.sign != 1.0f;
            auto scores = [&] {
                score_tile(s_rmem, q_rmem, smem + my_row * D, k_smem + slot, lane);
                if (ADJUSTED)
                    adjust_tile(s_rmem, adjustment, mask.diagonal(warp_row + lane / 4) - first_key, lane);
            };
            bool done = false;
            if (LAZY_MAX && step > first_step && !masked && scale_left == scale.log2) {  // m may be near
                scores();
                done = exponentiate(p_rmem, s_rmem, m, l, scale.log2);
            }
            if (!done) {
                scores();
                if (masked) {
                    Interval seen[LANE_ROWS];
#pragma unroll
                    for (int r = 0; r < LANE_ROWS; r++)
                        seen[r] = mask.interval(warp_row + 8 * r + lane / 4).from(first_key);
                    mask_tile(s_rmem, seen, scale.sign, lane);
                }
                scale_left = softmax_tile(p_rmem, s_rmem, o_rmem, m, l, scale.log2);
                if (WINDOW && first_key + BLOCK_N <= last_sees.begin) scale_left = 0.0f;
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
        const long long tile_index = params.rows_before(sequence, h) + first_row;  // in lse
#pragma unroll
        for (int row = chunk_row; row < BLOCK_M; row += THREADS / CHUNKS) {
            if (first_row + row >= sequence.S_q) break;
            float o[8] = {};
            float lse_log2 = merge(
                o, KEY_WARPS, [&](int i) { return m_smem[i][row]; }, [&](int i) { return l_smem[i][row]; },
                [&](int i, int upper) {
                    return o_smem + (i * BLOCK_M + row) * PART_ROW + upper * UPPER + chunk / 2;
                });
            if (SINKS && splits == 1) lse_log2 = merge_sink(o, lse_log2, params, h);
            if (splits == 1) {
                store_chunk(out + params.out.at(b, h, sequence.first_row + first_row + row) + chunk, o);
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
             STRIDES(out), int S_q, int splits FEATURES) {
    const Strides out_strides = STRIDES_GIVEN(out);
    const Sizes sizes{S_q, 0, (int)gridDim.y, 1, 0.0f, 0 FEATURES_GIVEN};
    const int row = blockIdx.x * (blockDim.x / CHUNKS) + threadIdx.x / CHUNKS;
    const int chunk = threadIdx.x % CHUNKS * 8;
    if (row >= sizes.end_row()) return;
    const int h = blockIdx.y, b = blockIdx.z, H = gridDim.y, B = gridDim.z;
    const long long index = ((long long)b * H + h) * S_q + row, rows = (long long)B * H * S_q;
    float o[8] = {};
    float lse_log2 = merge(
        o, splits, [&](int i) { return part_lse[i * rows + index]; },
        [&](int i) { return part_lse[i * rows + index] == -INFINITY ? 0.0f : 1.0f; },
        [&](int i, int upper) { return parts + (i * rows + index) * D + chunk + 4 * upper; });
    if (SINKS) lse_log2 = merge_sink(o, lse_log2, sizes, h);
    store_chunk(out + out_strides.at(b, h, row) + chunk, o);
    if (lse && chunk == 0) lse[index] = lse_log2 * LN2;
}
