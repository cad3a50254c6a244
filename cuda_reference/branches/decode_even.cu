// Decoding where all blocks read as many keys, however long each request is.
//
// The tiles that the requests see, WARPS at a time, are one row of steps: those of request 0, then those of
// request 1. Block x has the stretch of `share` steps from x * share on, so it may end one request, do others
// whole and begin one more. Every block adds up the lengths by itself: the host knows none.
// To end a request and begin another takes as long as reading START steps, so each request has as many more
// in the row, before its own. Where it is no slower, as for requests of one length, no request is cut inside
// a block's stretch: each has as many blocks as the others.
#include "decode_parts.cuh"

// The greatest of a warp's numbers, and their sum.
__device__ __forceinline__ void join(int& greatest, int& sum) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        greatest = max(greatest, __shfl_xor_sync(ALL_LANES, greatest, lanes));
        sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
    }
}

// How the row of steps is divided among `blocks` blocks.
struct Division {
    int share, lead;  // steps of a block; those before a request's own
    int room, all;    // of each request if they are apart, or 0; of the row

    __device__ __forceinline__ Division(int requests, int blocks, int longest, int sum) {
        const int each = blocks / requests, together = sum + requests * START;
        const int apart = max(ceil_div(longest, max(each, 1)), ceil_div(longest, MAX_PARTS));
        share = max(ceil_div(together, blocks), ceil_div(longest, MAX_PARTS - 1));  // one is cut on both sides
        lead = START, room = 0, all = together;
        if (each > 0 && apart <= share) share = apart, lead = 0, room = each * share, all = requests * room;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
decode_even(const element* q,                    // [B, H, S_q, D]
            const stored* k, const stored* v,    // [pages, H / group, page, D], as their strides say
            element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
            PARAMS, CACHE_PARAMS,   // ...
            int B, float* parts, float* part_lse,  // [2 * gridDim.x, H / group, S_q * group, D], and without D
            uint32_t* arrived) {            // [B, H / group, gridDim.z], 0 before and after a launch
    const Params params = PARAMS_GIVEN;
    const Table cache CACHE_GIVEN;
    extern __shared__ __align__(128) stored smem[];     // [WARPS, STAGES, 2, 16, D]
    element* q_smem = (element*)(smem + WARPS * RING);  // [WARP_ROWS, D]
    __shared__ float m_smem[WARPS][WARP_ROWS], l_smem[WARPS][WARP_ROWS];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    const int h_kv = blockIdx.y;
    const BlockRows rows(params, cache, inverse_group, h_kv, blockIdx.z);
    const auto mask_of = [&](int b) { return Mask(params, params.sequence(b)); };
    // At least one: where nothing is seen zeros are stored in it.
    const auto steps_of = [&](Interval tiles) { return max(1, ceil_div(tiles.end - tiles.begin, WARPS)); };
    const auto steps_seen = [&](int b) { return steps_of(rows.see(mask_of(b)).tiles(16)); };
    int longest = 0, sum = 0;
    for (int b = lane; b < B; b += 32) {
        const int steps = steps_seen(b);
        longest = max(longest, steps), sum += steps;
    }
    join(longest, sum);
    const Division row(B, gridDim.x, longest, sum);
    const auto room_of = [&](int steps) { return row.room ? row.room : row.lead + steps; };
    const int end = min(row.all, ((int)blockIdx.x + 1) * row.share);

    for (int at = blockIdx.x * row.share, next, b, first; at < end; at = next) {
        first = at;
        find_part(b, first, B, lane, [&](int b) { return room_of(steps_seen(b)); });
        const Mask mask = mask_of(b);
        const Interval seen = rows.see(mask), tiles = seen.tiles(16);
        const int steps = steps_of(tiles), begin = at - first + row.lead;  // of the request
        const int from = max(0, at - begin), to = min(steps, end - begin);  // the block's own
        next = at - first + room_of(steps);
        if (from >= to) continue;
        const int first_block = begin / row.share, count = (begin + steps - 1) / row.share - first_block + 1;
        const int first_tile = tiles.begin + from * WARPS + warp;  // of this warp
        const int turns = ceil_div(min(tiles.end - first_tile, (to - from) * WARPS - warp), WARPS);
        WarpKeys keys{cache, smem + warp * RING, b, first_tile, turns, lane, seen};
        rows.load_async(q_smem, q, b);
        ptx::cp_async_commit();
        attend(keys, rows, mask, k, v, q_smem, m_smem[warp], l_smem[warp], [] {});
        // A block has two places: for the first part of a request that it begins, and for any other one.
        const auto part_row = [&](int number, int row) {
            const int place = 2 * (first_block + number) + (number == 0);
            return ((long long)place * gridDim.y + h_kv) * rows.all + rows.first + row;
        };
        finish_part(rows, smem, m_smem, l_smem, out, lse, b, blockIdx.x - first_block, count, parts, part_lse,
                    part_row, arrived + ((long long)b * gridDim.y + h_kv) * gridDim.z + blockIdx.z);
    }
}
