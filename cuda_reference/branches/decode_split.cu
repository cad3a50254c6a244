// Decoding: a few query tokens over a long cache of keys, in one launch and at the speed of memory.
//
// A block has WARP_ROWS query rows of one K/V head and one part of the keys that they see (decode.cuh).
// How many parts a request makes follows from what its own rows see, so that no other request changes a bit
// of it. Blocks number the parts of all requests, and each takes every gridDim.x-th: the grid depends on no
// length, and no block is spent on keys that do not exist. Where lengths have room for no more parts than there
// are blocks, no block looks for a second one.
#include "decode_parts.cuh"

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
    __shared__ float m_smem[WARPS][WARP_ROWS], l_smem[WARPS][WARP_ROWS];
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
        const long long head = (long long)b * gridDim.y + h_kv;
        const auto part_row = [&](int number, int row) {
            return (head * MAX_PARTS + number) * rows.all + rows.first + row;
        };
        finish_part(rows, smem, m_smem, l_smem, out, lse, b, part, cut.count, parts, part_lse, part_row,
                    arrived + head * gridDim.z + blockIdx.z);
    }
}
