// Decoding without scratch memory: the parts of a request are the blocks of a cluster.
//
// A cluster has BLOCK_ROWS query rows of one K/V head of one request, and each of its CLUSTER blocks a part
// of the keys that they see (decode_keys.cuh), even if none is left for it. All blocks merge: float4 i of the
// rows belongs to block i % CLUSTER. The warps of a block, or its warpgroups, merge in shared memory; the
// block then sends O / l of each float4 to its owner and m + log2 l of each row to all, itself included,
// through distributed shared memory. An mbarrier of the owner counts the bytes. Each message has a place of
// its own, so no warp waits to send. A block is written to only after it has started (cluster barrier), and
// ends after all messages to it have come.
// EARLY: launched so that it may begin under the end of the kernel before, for which every thread then waits.
// Included after decode.cuh or decode_wgmma.cuh, whose `attend` multiplies the rows.
#pragma once
#include "decode_keys.cuh"

constexpr int FLOAT4S = BLOCK_ROWS * QUADS / CLUSTER;  // that a block owns, of all its rows
static_assert(QUADS % CLUSTER == 0, "every block owns as many float4s of a row");

// The whole kernel, with its dynamic shared memory `smem`: the rings [SHARES, RING], then Q.
__device__ __forceinline__ void decode_in_cluster(stored* smem, const element* q, const stored* k,
                                                  const stored* v, element* out, float* lse,
                                                  const Params& params, const Table& cache,
                                                  unsigned inverse_group) {
    __shared__ float m_smem[SHARES][BLOCK_ROWS], l_smem[SHARES][BLOCK_ROWS];
    __shared__ __align__(16) float4 o_smem[CLUSTER][FLOAT4S];       // what this block merges, of every part
    __shared__ __align__(16) float4 lse_smem[CLUSTER][BLOCK_ROWS];  // of every part: its x
    __shared__ uint64_t full;
    element* q_smem = (element*)(smem + SHARES * RING);  // [BLOCK_ROWS, D]
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    const int rank = ptx::cluster_rank(), b = blockIdx.z;
    const int tile = blockIdx.x / CLUSTER, inside = BlockRows::of_tile(params, tile);
    const int float4s = inside * (QUADS / CLUSTER);
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&full, 1);
        ptx::fence_mbarrier_init();  // the other blocks see it once the cluster's barrier is passed
        ptx::mbarrier_arrive_expect(&full, CLUSTER * (float4s + inside) * 16);
    }
    __syncwarp();  // the warp's lanes arrive together
    ptx::cluster_arrive_relaxed();
    if (EARLY) ptx::grid_dependency_wait();  // kernels before have written all inputs and read out

    const BlockRows rows(params, cache, inverse_group, blockIdx.y, tile);  // reads scales, which are inputs
    const Mask mask(params, params.sequence(b));
    const Interval seen = rows.see(mask), tiles = seen.tiles(16);
    const int part_tiles = ceil_div(ceil_div(tiles.end - tiles.begin, CLUSTER), WARPS) * WARPS;
    const int first_tile = tiles.begin + rank * part_tiles + warp;  // of this warp
    // As many for all warps that share a ring, of which some may have no keys at the end.
    const int share = warp / SHARERS, later = warp % SHARERS;
    const int turns = ceil_div(min(tiles.end - first_tile + later, part_tiles - warp + later), WARPS);
    WarpKeys keys{cache, smem + share * RING, b, first_tile, turns, lane, seen};
    rows.load_async(q_smem, q, b);
    ptx::cp_async_commit();
    attend(keys, rows, mask, k, v, q_smem, m_smem[share], l_smem[share], [] {
        if (EARLY) ptx::grid_dependency_launch();  // the next kernel may begin where blocks of this one end
    });
    __syncthreads();      // the warps' parts are whole before threads merge what others wrote
    ptx::cluster_wait();  // the other blocks have started, and their mbarriers are initialised

#pragma unroll 1
    for (int i = threadIdx.x; i < rows.inside * QUADS; i += THREADS) {
        const int row = i / QUADS, column = i % QUADS * 4;
        float o[4] = {};
        const float lse_log2 = merge(
            o, SHARES, [&](int s) { return m_smem[s][row]; }, [&](int s) { return l_smem[s][row]; },
            [&](int s) { return (const float*)(smem + s * RING) + row * PART_ROW + column; });
        ptx::store_async(&o_smem[rank][i / CLUSTER], o, &full, i % CLUSTER);
        const float sent[4] = {lse_log2};
        if (SHARERS > 1 && i % QUADS < CLUSTER)  // of all its threads one for each owner
            ptx::store_async(&lse_smem[rank][row], sent, &full, i % QUADS);
        if (SHARERS == 1 && column == 0)
#pragma unroll 1
            for (int owner = 0; owner < CLUSTER; owner++)
                ptx::store_async(&lse_smem[rank][row], sent, &full, owner);
    }
    ptx::mbarrier_wait_cluster(&full, 0);  // what this block merges has come, of every part

#pragma unroll 1
    for (int own = threadIdx.x; own < float4s; own += THREADS) {
        const int i = own * CLUSTER + rank, row = i / QUADS;
        float o[4] = {};
        const float lse_log2 = merge(
            o, CLUSTER, [&](int part) { return lse_smem[part][row].x; }, [](int) { return 1.0f; },
            [&](int part) { return (const float*)&o_smem[part][own]; });
        rows.store(out, lse, b, row, i % QUADS * 4, o, lse_log2);
    }
}
