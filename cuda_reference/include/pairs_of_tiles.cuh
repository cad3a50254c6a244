// The blocks of a backward pass in one launch: what its two kernels, which differ in who does what, share.
//
// P = 2^(scale S - LSE), D = sum of dO * O along a row (less dLSE), dS = P * (dP - D). Two kinds of blocks:
// A key block owns 64 keys and walks over the query rows that see them, of every head of its group:
//     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q.
// A query block owns 64 query rows and walks over keys: S = Q K^T, dP = dO V^T, dQ += dS K.
// So S and dP are computed twice, seven products for five, and no sum has two writers. One function is both:
// two own tiles stay, pairs of tiles stream past: S = own[0] first^T, dP = own[1] second^T. P and dS are left
// operands in the registers that they are computed in, of the same two streamed tiles (warpgroup_rows.cuh).
// Of two warpgroups each takes every other pair. In the end they add up through shared memory.
// LSE and D belong to query rows, which are rows of S and columns of S^T. For a key block O streams too.
// Rows and keys past an end arrive as zeros: LSE = infinity makes P of such rows 0, the mask P of such keys.
#pragma once
#include "warpgroup_rows.cuh"

constexpr int WARPGROUPS = 2;
constexpr int TILE = ROWS * D, SLOT = 3 * TILE, RING = STAGES * SLOT;  // elements; the third tile is for O
constexpr int VALUES = ROWS + 16;  // of a tile's rows in shared memory: LSE and then D, in other banks
constexpr float LOG2E = 1.44269504f;
static_assert(BLOCK_N == ROWS && D == D_V, "all tiles are alike");

using Map = const ptx::TensorMap*;  // [B, heads, rows, D]: boxes of [64, 64], of the results [16, 64]

constexpr bool ROOM = D == 64;  // in registers, beside all sums

// A tile of the block's own as left operand, the lane's part: with ROOM in registers, since shared memory
// would else deliver both operands of S and dP, at its full rate.
using OwnTile = uint32_t[ROOM ? D / 16 : 1][4];

__device__ __forceinline__ void load_own(OwnTile& own_rmem, const element* own_smem, int warp, int lane) {
    const int row = warp * WARP_ROWS + lane % 16;
    if (ROOM)
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            ptx::ldmatrix_x4(own_rmem[k], own_smem + row * 64 + (k * 2 + lane / 16 ^ row % 8) * 8);
}

// The own tile times `tile_smem`, transposed: S or dP, in flight until the next wgmma_wait.
__device__ __forceinline__ void issue_scores(Scores& s_rmem, const OwnTile& own_rmem, const element* own_smem,
                                             const element* tile_smem) {
    if (!ROOM) return issue_qk(s_rmem, own_smem, tile_smem);
    const uint64_t tile = ptx::wgmma_tile(tile_smem);
    ptx::wgmma_fence();  // the last use of these registers is over
#pragma unroll
    for (int k = 0; k < D / 16; k++) ptx::wgmma_rs<BLOCK_N>(s_rmem, own_rmem[k], tile + k * 2, k > 0);
    ptx::wgmma_commit();
}

// For so many keys, or query rows of a head: whole clusters.
__device__ __forceinline__ int blocks_of(int rows) {
    return (rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * CLUSTER;
}

// What a block owns, and the pairs of tiles that pass it and the others of its cluster.
template <bool KEYS> struct Walk {
    const Mask mask;
    const int group, kv_head;
    int own_head, first_own, first_tile, count, pairs;

    struct Pair {
        int head, first;  // of the query rows; row or key
    };

    // `number`: of the block among those of its kind. `rank`: in its cluster.
    __device__ __forceinline__ Walk(const Sizes& sizes, int number, int rank)
        : mask(sizes), group(sizes.group), kv_head(blockIdx.y) {
        int member = 0;  // of the group: the head of a query block
        if (!KEYS && group > 1) {
            const int row_tiles = blocks_of(sizes.S_q);
            member = number / row_tiles, number -= member * row_tiles;
        }
        own_head = KEYS ? kv_head : kv_head * group + member;
        first_own = number * ROWS;
        const int cluster_first = first_own - rank * ROWS;
        const int cluster_last = min(cluster_first + CLUSTER * ROWS, KEYS ? sizes.S_k : sizes.S_q) - 1;
        const Interval tiles = Interval{seen(cluster_first).begin, seen(cluster_last).end}.tiles(BLOCK_N);
        first_tile = tiles.begin, count = max(0, tiles.end - tiles.begin);
        pairs = KEYS ? count * group : count;
    }
    // The query rows that see a key, or the keys that a query row sees.
    __device__ __forceinline__ Interval seen(int own) const {
        return KEYS ? mask.rows(own) : mask.interval(own);
    }
    __device__ __forceinline__ int iterations(int warpgroup) const {
        return (pairs - warpgroup + WARPGROUPS - 1) / WARPGROUPS;
    }
    __device__ __forceinline__ Pair at(int warpgroup, int iteration) const {
        const int pair = iteration * WARPGROUPS + warpgroup, member = KEYS && group > 1 ? pair / count : 0;
        return {KEYS ? kv_head * group + member : own_head, (first_tile + pair - member * count) * BLOCK_N};
    }
};

// Of query rows the LSE in units of log2, or D: of the lane's own two, or for S^T of all columns.
struct RowValues {
    float own_rmem[2];
    const float* columns_smem;

    template <bool KEYS> __device__ __forceinline__ void next(int i, int lane) {
        if (!KEYS || i % 4) return;
        const float2 two = reinterpret_cast<const float2*>(columns_smem)[i + lane % 4];
        own_rmem[0] = two.x, own_rmem[1] = two.y;
    }
    template <bool KEYS> __device__ __forceinline__ float of(int i) const {
        return own_rmem[KEYS ? i % 2 : i / 2 % 2];
    }
};

// P of S, for a tile from row or key `first` on and the warp's rows from `warp_own` on.
template <bool KEYS>
__device__ __forceinline__ void make_p(Scores& p_rmem, const Scores& s_rmem, RowValues lse2,
                                       const Walk<KEYS>& walk, int first, int warp_own, float scale_log2,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) {
        lse2.next<KEYS>(i, lane);
        p_rmem[i] = s_rmem[i] * scale_log2 - lse2.of<KEYS>(i);
    }
    if (first < walk.seen(warp_own + WARP_ROWS - 1).begin || first + BLOCK_N > walk.seen(warp_own).end) {
        const int own = warp_own + lane / 4;
        mask_tile(p_rmem, {walk.seen(own).from(first), walk.seen(own + 8).from(first)}, 1.0f, lane);
    }
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) p_rmem[i] = ptx::ex2(p_rmem[i]);
}

// dP becomes dS.
template <bool KEYS>
__device__ __forceinline__ void make_ds(Scores& dp_rmem, const Scores& p_rmem, RowValues delta, int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) {
        delta.next<KEYS>(i, lane);
        dp_rmem[i] = p_rmem[i] * (dp_rmem[i] - delta.of<KEYS>(i));
    }
}

// Of what a warpgroup has summed up, what the other one finishes, in its own ring: [4, D / 8, 32].
__device__ __forceinline__ float4* given_smem(element* ring_smem, int warpgroup, int warp, int lane) {
    return reinterpret_cast<float4*>(ring_smem + warpgroup * RING) + warp * (D / 8) * 32 + lane;
}

// The first warpgroup keeps dV and the second dK, in the place of dK; or the first dQ.
template <bool KEYS>
__device__ __forceinline__ void give_sums(Output& dk_rmem, Output& dv_rmem, element* ring_smem, int warpgroup,
                                          int warp, int lane) {
    Output& given = KEYS ? dv_rmem : dk_rmem;
    if (KEYS)
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const float dk = dk_rmem[i], dv = dv_rmem[i];
            dk_rmem[i] = warpgroup ? dk : dv, given[i] = warpgroup ? dv : dk;
        }
    float4* sums_smem = given_smem(ring_smem, warpgroup, warp, lane);
    if (KEYS || warpgroup == 1)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            sums_smem[i * 32] =
                make_float4(given[4 * i], given[4 * i + 1], given[4 * i + 2], given[4 * i + 3]);
}

// What was kept and what the other warpgroup has given, scaled.
template <bool KEYS>
__device__ __forceinline__ void take_sums(Output& kept, element* ring_smem, int warpgroup, int warp, int lane,
                                          float scale_log2) {
    const float factor = KEYS && warpgroup == 0 ? 1.0f : scale_log2 * LN2;
    const float4* sums_smem = given_smem(ring_smem, warpgroup ^ 1, warp, lane);
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float4 x = sums_smem[i * 32];
        kept[4 * i] = (kept[4 * i] + x.x) * factor, kept[4 * i + 1] = (kept[4 * i + 1] + x.y) * factor;
        kept[4 * i + 2] = (kept[4 * i + 2] + x.z) * factor;
        kept[4 * i + 3] = (kept[4 * i + 3] + x.w) * factor;
    }
}
