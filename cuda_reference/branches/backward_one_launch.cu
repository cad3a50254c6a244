// The backward pass of a short problem: dQ, dK and dV in one launch, without scratch memory or atomics.
//
// P = 2^(scale S - LSE), D = sum of dO * O along a row (less dLSE), dS = P * (dP - D). Two kinds of blocks:
// A key block owns 64 keys and walks over the query rows that see them, of every head of its group:
//     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q.
// A query block owns 64 query rows and walks over keys: S = Q K^T, dP = dO V^T, dQ += dS K.
// So S and dP are computed twice, seven products for five, and no sum has two writers. One function is both:
// two own tiles stay, pairs of tiles stream past: S = own[0] first^T, dP = own[1] second^T. P and dS are left
// operands in the registers that they are computed in, of the same two streamed tiles (warpgroup_rows.cuh).
// Of two warpgroups each takes every other pair, from a ring with STAGES slots that TMA fills at the start,
// for a short problem with everything. With CLUSTER 2 each of two blocks of a kind fetches one warpgroup's
// tiles for both; all must fit then. In the end the warpgroups add up through shared memory.
// LSE and D belong to query rows, which are rows of S and columns of S^T. For a key block O streams too: a
// warpgroup computes D of a tile, two lanes for a row, under the products of the tile before.
// Rows and keys past an end arrive as zeros: LSE = infinity makes P of such rows 0, the mask P of such keys.
#include "warpgroup_rows.cuh"

constexpr int WARPGROUPS = 2, THREADS = 128 * WARPGROUPS;
constexpr int TILE = ROWS * D, SLOT = 3 * TILE, RING = STAGES * SLOT;  // elements; the third tile is for O
constexpr int VALUES = ROWS + 16;  // of a tile's rows in shared memory: LSE and then D, in other banks
constexpr float LOG2E = 1.44269504f;
static_assert(BLOCK_N == ROWS && D == D_V, "all tiles are alike");

using Map = const ptx::TensorMap*;  // [B, heads, rows, D]: boxes of [64, 64], of the results [16, 64]

struct Arrays {
    Map q, k, v, out, dout, dq, dk, dv;
    const float *lse, *dlse;  // [B, H, S_q]; dlse may be null
};

// Of a query row: the LSE in units of log2, and D.
struct RowValues {
    float lse2, delta;
};

// Those of row `row` of 64, whose dO and O have arrived: the lane's half of the columns, then the other's.
__device__ __forceinline__ RowValues row_values(const element* do_smem, const element* o_smem, int row,
                                                int half, float lse, float dlse) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const int panel = D == 128 ? half : 0, chunk = i ^ half * 4 ^ row % 8;
        const int at = panel * (ROWS * 64) + row * 64 + chunk * 8;
        const uint4 dout = *reinterpret_cast<const uint4*>(do_smem + at);
        const uint4 out = *reinterpret_cast<const uint4*>(o_smem + at);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float2 x = Element::floats(reinterpret_cast<const element2*>(&dout)[pair]);
            const float2 y = Element::floats(reinterpret_cast<const element2*>(&out)[pair]);
            sum += x.x * y.x, sum += x.y * y.y;
        }
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    if (lse == -INFINITY) return {INFINITY, 0.0f};  // no such row, or one without keys: P = 0
    return {lse * LOG2E, sum - dlse};
}

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

template <bool KEYS>
__device__ __forceinline__ void block(const Arrays& arrays, const Sizes& sizes, int number) {
    extern __shared__ __align__(1024) unsigned char smem[];
    element* own_smem = reinterpret_cast<element*>(smem);  // K and V, or Q and dO, [64, D] each
    element* ring_smem = own_smem + 2 * TILE;              // [WARPGROUPS, STAGES, 3, 64, D]
    // [WARPGROUPS, 2, 2, VALUES]
    float* values_smem = reinterpret_cast<float*>(ring_smem + WARPGROUPS * RING);
    uint64_t* own_full = reinterpret_cast<uint64_t*>(values_smem + WARPGROUPS * 4 * VALUES);  // [2]
    uint64_t* ring_full = own_full + 2;  // [WARPGROUPS, STAGES, 2]: the first tile; the second, with O
    // The shuffle shows the compiler that the value is uniform across the warp, and so are tiles' addresses.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, kv_head = blockIdx.y, b = blockIdx.z;
    const int rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const Mask mask(sizes);

    int member = 0;  // of the group: the head of a query block
    if (!KEYS && sizes.group > 1) {
        const int row_tiles = blocks_of(sizes.S_q);
        member = number / row_tiles, number -= member * row_tiles;
    }
    const int first_own = number * ROWS, warp_own = first_own + warp * WARP_ROWS;
    const int cluster_first = first_own - rank * ROWS;
    const int cluster_last = min(cluster_first + CLUSTER * ROWS, KEYS ? sizes.S_k : sizes.S_q) - 1;
    const int own_head = KEYS ? kv_head : kv_head * sizes.group + member;
    // The query rows that see a key, or the keys that a query row sees.
    auto seen = [&](int own) { return KEYS ? mask.rows(own) : mask.interval(own); };
    const Interval tiles = Interval{seen(cluster_first).begin, seen(cluster_last).end}.tiles(BLOCK_N);
    const int count = max(0, tiles.end - tiles.begin), pairs = KEYS ? count * sizes.group : count;
    auto iterations_of = [&](int w) { return (pairs - w + WARPGROUPS - 1) / WARPGROUPS; };
    const int iterations = iterations_of(warpgroup);
    struct Pair {
        int head, first;  // of the query rows; row or key
    };
    auto pair_at = [&](int w, int iteration) {
        const int pair = iteration * WARPGROUPS + w, member = KEYS && sizes.group > 1 ? pair / count : 0;
        return Pair{KEYS ? kv_head * sizes.group + member : own_head,
                   (tiles.begin + pair - member * count) * BLOCK_N};
    };

    auto load = [&](int w, int iteration) {  // by one thread
        const int slot = w * STAGES + iteration % STAGES;
        const Pair pair = pair_at(w, iteration);
        const int head = KEYS ? pair.head : kv_head;
        element* slot_smem = ring_smem + slot * SLOT;
        uint64_t* full = ring_full + slot * 2;
        auto fetch = [&](int tile, Map map, uint64_t* tile_full) {
            element* tile_smem = slot_smem + tile * TILE;
            if (CLUSTER == 1) load_tile<BLOCK_N>(tile_smem, map, tile_full, pair.first, head, b);
            if (CLUSTER > 1 && w == rank)
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++)
                    ptx::tma_load_multicast_4d(tile_smem + panel * BLOCK_N * 64, map, tile_full, 64 * panel,
                                               pair.first, head, b, (1 << CLUSTER) - 1);
        };
        ptx::mbarrier_arrive_expect(full, TILE * 2);  // a phase ends with its bytes, not before
        fetch(0, KEYS ? arrays.q : arrays.k, full);
        ptx::mbarrier_arrive_expect(full + 1, (KEYS ? 2 : 1) * TILE * 2);  // the same
        fetch(1, KEYS ? arrays.dout : arrays.v, full + 1);
        if (KEYS) fetch(2, arrays.out, full + 1);
    };
    auto load_first = [&] {
        for (int i = 0; i < STAGES; i++)
            for (int w = 0; w < WARPGROUPS; w++)
                if (i < iterations_of(w)) load(w, i);
    };
    if (threadIdx.x == 0) {
        for (Map map : {arrays.q, arrays.k, arrays.v, arrays.out, arrays.dout}) ptx::prefetch_map(map);
        for (int i = 0; i < 2 + WARPGROUPS * STAGES * 2; i++) ptx::mbarrier_init(own_full + i, 1);
        ptx::fence_mbarrier_init();                     // TMA sees the mbarriers initialised
        if (pairs > 0) {
            ptx::mbarrier_arrive_expect(own_full, TILE * 2);  // as with the ring
            load_tile<ROWS>(own_smem, KEYS ? arrays.k : arrays.q, own_full, first_own, own_head, b);
            ptx::mbarrier_arrive_expect(own_full + 1, (KEYS ? 1 : 2) * TILE * 2);  // the same
            load_tile<ROWS>(own_smem + TILE, KEYS ? arrays.v : arrays.dout, own_full + 1, first_own, own_head,
                            b);
            if (!KEYS)  // to the place for O in the first slot
                load_tile<ROWS>(ring_smem + 2 * TILE, arrays.out, own_full + 1, first_own, own_head, b);
        }
        if (CLUSTER == 1) load_first();
    }
    __syncthreads();  // the other threads see them too
    if (CLUSTER > 1) {
        ptx::cluster_arrive_relaxed();
        ptx::cluster_wait();  // the other block's mbarriers are initialised
        if (threadIdx.x == 0) load_first();
    }

    // Two lanes for each of 64 query rows: row threadIdx.x % 128 / 2, half a row each.
    const int row = threadIdx.x % 128 / 2, half = lane % 2;
    auto values_of = [&](int first, int head, const element* do_smem, const element* o_smem, uint64_t* full,
                         int parity) {
        const bool inside = first + row < sizes.S_q;
        const long long at = sizes.rows_before(b, head) + first + row;
        const float lse = inside ? arrays.lse[at] : -INFINITY;
        const float dlse = inside && arrays.dlse ? arrays.dlse[at] : 0.0f;
        ptx::mbarrier_wait(full, parity);  // dO and O have arrived
        return row_values(do_smem, o_smem, row, half, lse, dlse);
    };
    const element* slots_smem = ring_smem + warpgroup * RING;  // of this warpgroup
    uint64_t* slots_full = ring_full + warpgroup * STAGES * 2;
    auto lse2_smem = [&](int iteration) {
        return values_smem + (warpgroup * 2 + iteration % 2) * 2 * VALUES;
    };
    auto delta_smem = [&](int iteration) { return lse2_smem(iteration) + VALUES; };

    Output first_rmem, second_rmem;  // dK and dV; or dQ alone
    Scores s_rmem, dp_rmem;
    P p_rmem, ds_rmem;
    OwnTile own_rmem[2];
    float lse2_rmem[2], delta_rmem[2];  // of the lane's two query rows, or of two columns
    auto issue_s = [&](int iteration) {
        // Q or K has arrived
        ptx::mbarrier_wait(slots_full + iteration % STAGES * 2, iteration / STAGES % 2);
        issue_scores(s_rmem, own_rmem[0], own_smem, slots_smem + iteration % STAGES * SLOT);
        if (KEYS) {  // beside it: LSE and D of the tile's rows, where no warp still reads them
            const int slot = iteration % STAGES;
            const element* slot_smem = slots_smem + slot * SLOT;
            const Pair pair = pair_at(warpgroup, iteration);
            const RowValues of_row = values_of(pair.first, pair.head, slot_smem + TILE, slot_smem + 2 * TILE,
                                               slots_full + slot * 2 + 1, iteration / STAGES % 2);
            lse2_smem(iteration)[half * VALUES + row] = half ? of_row.delta : of_row.lse2;
        }
    };
    auto use_s = [&](int iteration) {
        const int slot = iteration % STAGES;
        const element* slot_smem = slots_smem + slot * SLOT;
        ptx::mbarrier_wait(slots_full + slot * 2 + 1, iteration / STAGES % 2);  // dO or V has arrived
        issue_scores(dp_rmem, own_rmem[1], own_smem + TILE, slot_smem + TILE);
        auto of_columns = [&](const float* smem, int i, float (&x)[2]) {
            const float2 two = reinterpret_cast<const float2*>(smem)[i + lane % 4];
            x[0] = two.x, x[1] = two.y;
        };
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            if (KEYS && i % 4 == 0) of_columns(lse2_smem(iteration), i, lse2_rmem);
            s_rmem[i] = s_rmem[i] * sizes.scale_log2 - lse2_rmem[KEYS ? i % 2 : i / 2 % 2];
        }
        const int first = pair_at(warpgroup, iteration).first;
        if (first < seen(warp_own + WARP_ROWS - 1).begin || first + BLOCK_N > seen(warp_own).end) {
            const int own = warp_own + lane / 4;
            mask_tile(s_rmem, {seen(own).from(first), seen(own + 8).from(first)}, 1.0f, lane);
        }
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) s_rmem[i] = ptx::ex2(s_rmem[i]);
        if (KEYS) pack(p_rmem, s_rmem);
        if (KEYS && ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        ptx::wgmma_wait<KEYS && ROOM>();  // dP is whole
        ptx::wgmma_pin(dp_rmem);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            if (KEYS && i % 4 == 0) of_columns(delta_smem(iteration), i, delta_rmem);
            dp_rmem[i] = s_rmem[i] * (dp_rmem[i] - delta_rmem[KEYS ? i % 2 : i / 2 % 2]);
        }
        pack(ds_rmem, dp_rmem);
        if (KEYS && !ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        issue_pv(first_rmem, ds_rmem, slot_smem, iteration > 0);
    };
    auto wait_for_products = [&] {
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(s_rmem);
        ptx::wgmma_pin(first_rmem);
        ptx::wgmma_pin(ds_rmem);
        if (KEYS) ptx::wgmma_pin(second_rmem), ptx::wgmma_pin(p_rmem);
    };

    if (iterations > 0) {
        ptx::mbarrier_wait(own_full, 0);  // K or Q has arrived
        load_own(own_rmem[0], own_smem, warp, lane);
        issue_s(0);
        if (!KEYS) {  // each warpgroup for itself
            const RowValues of_row =
                values_of(first_own, own_head, own_smem + TILE, ring_smem + 2 * TILE, own_full + 1, 0);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                lse2_rmem[r] = __shfl_sync(ALL_LANES, of_row.lse2, lane / 4 * 2 + 16 * r);
                delta_rmem[r] = __shfl_sync(ALL_LANES, of_row.delta, lane / 4 * 2 + 16 * r);
            }
        }
        ptx::mbarrier_wait(own_full + 1, 0);  // V or dO has arrived
        load_own(own_rmem[1], own_smem + TILE, warp, lane);
        wait_for_products();
        if (KEYS) ptx::bar_sync(1 + warpgroup, 128);  // LSE and D of the first tile are there
    }
    for (int iteration = 0; iteration + 1 < iterations; iteration++) {
        use_s(iteration);
        issue_s(iteration + 1);
        wait_for_products();
        const bool refill = iteration + STAGES < iterations;
        // LSE and D of the next tile are there, and all warps' products have read the slot filled again.
        if (KEYS || refill) ptx::bar_sync(1 + warpgroup, 128);
        if (refill && threadIdx.x % 128 == 0) load(warpgroup, iteration + STAGES);
    }
    if (iterations > 0) use_s(iterations - 1);
    wait_for_products();
    if (iterations == 0)  // not seen, or by the other warpgroup alone
#pragma unroll
        for (int i = 0; i < D / 2; i++) first_rmem[i] = second_rmem[i] = 0.0f;

    // The first warpgroup finishes dV and the second dK; or the first dQ.
    Output &kept = first_rmem, &given = KEYS ? second_rmem : first_rmem;
    if (KEYS)
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            const float dk = first_rmem[i], dv = second_rmem[i];
            kept[i] = warpgroup ? dk : dv, given[i] = warpgroup ? dv : dk;
        }
    auto sums_smem = [&](int w) {  // [4, D / 8, 32]
        return reinterpret_cast<float4*>(ring_smem + w * RING) + warp * (D / 8) * 32 + lane;
    };
    if (CLUSTER > 1) ptx::cluster_arrive();
    ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the ring
    if (KEYS || warpgroup == 1)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            sums_smem(warpgroup)[i * 32] =
                make_float4(given[4 * i], given[4 * i + 1], given[4 * i + 2], given[4 * i + 3]);
    __syncthreads();  // the other warpgroup's part is there, and nobody reads own_smem any more
    if (CLUSTER > 1) ptx::cluster_wait();  // the other block has sent all that it sends: this one may end
    if (!KEYS && warpgroup == 1) return;
    const float factor = KEYS && warpgroup == 0 ? 1.0f : sizes.scale_log2 * LN2;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float4 x = sums_smem(warpgroup ^ 1)[i * 32];
        kept[4 * i] = (kept[4 * i] + x.x) * factor, kept[4 * i + 1] = (kept[4 * i + 1] + x.y) * factor;
        kept[4 * i + 2] = (kept[4 * i + 2] + x.z) * factor;
        kept[4 * i + 3] = (kept[4 * i + 3] + x.w) * factor;
    }
    element* panel_smem = own_smem + warpgroup * TILE + warp * WARP_ROWS * 64;
    pack_rows<false>(panel_smem, kept, lane);  // too large becomes infinite: no training step takes it
    const Map map = !KEYS ? arrays.dq : warpgroup ? arrays.dk : arrays.dv;
    store_packed(panel_smem, map, lane, warp_own, own_head, {b});
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
backward_one_launch(const __grid_constant__ ptx::TensorMap q_map,
                    const __grid_constant__ ptx::TensorMap k_map,
                    const __grid_constant__ ptx::TensorMap v_map,
                    const __grid_constant__ ptx::TensorMap out_map,
                    const __grid_constant__ ptx::TensorMap dout_map,
                    const __grid_constant__ ptx::TensorMap dq_map,
                    const __grid_constant__ ptx::TensorMap dk_map,
                    const __grid_constant__ ptx::TensorMap dv_map,
                    const float* lse, const float* dlse, SIZES) {
    const Sizes sizes = SIZES_GIVEN;
    const Arrays arrays{&q_map, &k_map, &v_map, &out_map, &dout_map, &dq_map, &dk_map, &dv_map, lse, dlse};
    const int key_blocks = blocks_of(sizes.S_k);  // first: they take longer
    if (blockIdx.x < key_blocks)
        block<true>(arrays, sizes, blockIdx.x);
    else
        block<false>(arrays, sizes, blockIdx.x - key_blocks);
}
