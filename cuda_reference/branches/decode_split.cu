// Decoding: a few query tokens over a long cache of keys, in one launch and at the speed of memory.
//
// A block has WARP_ROWS query rows of one K/V head and one part of the keys that they see (decode.cuh).
// How many parts a request makes follows from what its own rows see, so that no other request changes a bit
// of it. Blocks number the parts of all requests, and each takes every gridDim.x-th: the grid depends on no
// length, and no block is spent on keys that do not exist. Where lengths have room for no more parts than there
// are blocks, no block looks for a second one.
// The warps of a block merge in shared memory. Parts of a request leave O / l and m + log2 l in global
// memory, and the block that arrives last at their counter merges them. The counter wraps to 0 by itself.
#include "decode.cuh"

static_assert(16 * MAX_PARTS * THREADS <= sizeof(stored) * WARPS * RING, "the parts fit: a float4 per thread");

// The parts of a request: `count` of them, each of `tiles` tiles, the last one of what remains.
struct Parts {
    int tiles, count;

    // As many as `at_least`, where every warp has a tile; more if they had more than `longest` tiles.
    __device__ __forceinline__ Parts(Interval seen, int at_least, int longest) {
        const int all = seen.end - seen.begin;
        const int share = max(min(ceil_div(all, at_least), longest), ceil_div(all, MAX_PARTS));
        tiles = max(1, ceil_div(share, WARPS)) * WARPS;
        count = max(1, ceil_div(all, tiles));
    }
};

// The part with this number among those of all requests: one of request `b`, of which `number` becomes the
// number there; false if there is none. For a whole warp: a lane has a request, 32 at a time.
template <class Count>
__device__ __forceinline__ bool find_part(int& b, int& number, int requests, int lane, Count count_of) {
    for (b = 0; b < requests; b += 32) {
        const int count = b + lane < requests ? count_of(b + lane) : 0;
        int end = count;  // of the parts of these requests up to this one
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(ALL_LANES, end, lanes);
            if (lane >= lanes) end += before;
        }
        const unsigned after = __ballot_sync(ALL_LANES, number < end);
        if (after) {
            const int found = __ffs(after) - 1;
            number -= __shfl_sync(ALL_LANES, end - count, found), b += found;
            return true;
        }
        number -= __shfl_sync(ALL_LANES, end, 31);
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
decode_split(const element* q,                    // [B, H, S_q, D]
             const stored* k, const stored* v,    // [pages, H / group, page, D], as their strides say
             element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
             PARAMS, CACHE_PARAMS,   // ...
             int B, int at_least, int longest, int most,  // parts of a request, tiles of one, parts of all
             float* parts, float* part_lse,  // [B, H / group, MAX_PARTS, S_q * group, D], and without D: log2
             uint32_t* arrived) {            // [B, H / group, gridDim.z], 0 before and after a launch
    const Params params = PARAMS_GIVEN;
    const Table cache CACHE_GIVEN;
    extern __shared__ __align__(128) stored smem[];     // [WARPS, STAGES, 2, 16, D]
    element* q_smem = (element*)(smem + WARPS * RING);  // [WARP_ROWS, D]
    __shared__ float m_smem[WARPS][WARP_ROWS], l_smem[WARPS][WARP_ROWS], lse_smem[MAX_PARTS][WARP_ROWS];
    __shared__ bool last_smem;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    const int h_kv = blockIdx.y;
    const BlockRows rows(params, cache, inverse_group, h_kv, blockIdx.z);
    const auto mask_of = [&](int b) { return Mask(params, params.sequence(b)); };
    const auto count_of = [&](int b) { return Parts(rows.see(mask_of(b)).tiles(16), at_least, longest).count; };

    for (int work = blockIdx.x, b, part; work < most; work += gridDim.x) {
        part = work;
        if (!find_part(b, part, B, lane, count_of)) return;
        const Mask mask = mask_of(b);
        const Interval seen = rows.see(mask), tiles = seen.tiles(16);
        const Parts cut(tiles, at_least, longest);
        const int first_tile = tiles.begin + part * cut.tiles + warp;  // of this warp
        const int turns = ceil_div(min(tiles.end - first_tile, cut.tiles - warp), WARPS);
        WarpKeys keys{cache, smem + warp * RING, b, first_tile, turns, lane, seen};
        rows.load_async(q_smem, q, b);
        ptx::cp_async_commit();
        attend(keys, rows, mask, k, v, q_smem, m_smem[warp], l_smem[warp], [] {});
        __syncthreads();  // the warps' parts are whole before threads merge what others wrote

        const long long head = (long long)b * gridDim.y + h_kv;
        const auto part_row = [&](int number, int row) {
            return (head * MAX_PARTS + number) * rows.all + rows.first + row;
        };
#pragma unroll 1
        for (int i = threadIdx.x; i < rows.inside * QUADS; i += THREADS) {
            const int row = i / QUADS, column = i % QUADS * 4;
            float o[4] = {};
            const float lse_log2 = merge(
                o, WARPS, [&](int w) { return m_smem[w][row]; }, [&](int w) { return l_smem[w][row]; },
                [&](int w) { return (const float*)(smem + w * RING) + row * PART_ROW + column; });
            if (cut.count == 1) {
                rows.store(out, lse, b, row, column, o, lse_log2);
            } else {
                *(float4*)(parts + part_row(part, row) * D + column) = make_float4(o[0], o[1], o[2], o[3]);
                if (column == 0) part_lse[part_row(part, row)] = lse_log2;
            }
        }
        __syncthreads();  // the block's part is whole; O of all warps has been read and may be written over
        if (cut.count == 1) continue;
        if (threadIdx.x == 0)
            last_smem = ptx::arrive_wrapping(arrived + head * gridDim.z + blockIdx.z, cut.count - 1) ==
                        cut.count - 1;
        __syncthreads();  // all threads know whether it was the last, and see the parts that came before
        if (!last_smem) continue;

        float* own_smem = (float*)smem + 4 * threadIdx.x;  // [MAX_PARTS, THREADS, 4]: a thread's place
        auto fetch = [&](int i) {
            if (i >= rows.inside * QUADS) return;
            const float* from = parts + part_row(0, i / QUADS) * D + i % QUADS * 4;
#pragma unroll 4
            for (int number = 0; number < cut.count; number++)
                ptx::cp_async_16(own_smem + number * 4 * THREADS, from + (long long)number * rows.all * D);
        };
        fetch(threadIdx.x);  // the log-sum-exps come meanwhile
#pragma unroll 1
        for (int i = threadIdx.x; i < cut.count * WARP_ROWS; i += THREADS) {
            const int number = i / WARP_ROWS, row = i % WARP_ROWS;
            if (row < rows.inside) lse_smem[number][row] = part_lse[part_row(number, row)];
        }
        __syncthreads();  // the parts' log-sum-exps are there
#pragma unroll 1
        for (int i = threadIdx.x; i < rows.inside * QUADS; i += THREADS) {
            const int row = i / QUADS, column = i % QUADS * 4;
            ptx::cp_async_wait_all();  // what this thread has fetched, and no other reads
            float o[4] = {};
            const float lse_log2 = merge(
                o, cut.count, [&](int number) { return lse_smem[number][row]; }, [](int) { return 1.0f; },
                [&](int number) { return own_smem + number * 4 * THREADS; });
            fetch(i + THREADS);
            rows.store(out, lse, b, row, column, o, lse_log2);
        }
        __syncthreads();  // the parts have been read before the next tiles take their place
    }
}
