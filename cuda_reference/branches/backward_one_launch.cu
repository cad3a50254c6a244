// The backward pass of a short problem: dQ, dK and dV in one launch, without scratch memory or atomics.
//
// What blocks own and how they multiply is in pairs_of_tiles.cuh. Pairs of tiles come through a ring with
// STAGES slots per warpgroup that TMA fills at the start, for a short problem with everything. With CLUSTER 2
// each of two blocks of a kind fetches one warpgroup's tiles for both; all must fit then. The warpgroups of a
// key block compute D of a tile, two lanes for a row, under the products of the tile before.
#include "pairs_of_tiles.cuh"

constexpr int THREADS = 128 * WARPGROUPS;

struct Arrays {
    Map q, k, v, out, dout, dq, dk, dv;
    const float *lse, *dlse;  // [B, H, S_q]; dlse may be null
};

// Of a query row: the LSE in units of log2, and D.
struct RowValue {
    float lse2, delta;
};

// Those of row `row` of 64, whose dO and O have arrived: the lane's half of the columns, then the other's.
__device__ __forceinline__ RowValue row_value(const element* do_smem, const element* o_smem, int row,
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
    const int lane = threadIdx.x % 32, b = blockIdx.z;
    const int rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const Walk<KEYS> walk(sizes, number, rank);
    const int first_own = walk.first_own, warp_own = first_own + warp * WARP_ROWS, own_head = walk.own_head;
    const int iterations = walk.iterations(warpgroup);

    auto load = [&](int w, int iteration) {  // by one thread
        const int slot = w * STAGES + iteration % STAGES;
        const auto pair = walk.at(w, iteration);
        const int head = KEYS ? pair.head : walk.kv_head;
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
                if (i < walk.iterations(w)) load(w, i);
    };
    if (threadIdx.x == 0) {
        for (Map map : {arrays.q, arrays.k, arrays.v, arrays.out, arrays.dout}) ptx::prefetch_map(map);
        for (int i = 0; i < 2 + WARPGROUPS * STAGES * 2; i++) ptx::mbarrier_init(own_full + i, 1);
        ptx::fence_mbarrier_init();                     // TMA sees the mbarriers initialised
        if (walk.pairs > 0) {
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
        return row_value(do_smem, o_smem, row, half, lse, dlse);
    };
    const element* slots_smem = ring_smem + warpgroup * RING;  // of this warpgroup
    uint64_t* slots_full = ring_full + warpgroup * STAGES * 2;
    auto lse2_smem = [&](int iteration) {
        return values_smem + (warpgroup * 2 + iteration % 2) * 2 * VALUES;
    };

    Output first_rmem, second_rmem;  // dK and dV; or dQ alone
    Scores s_rmem, dp_rmem;
    P p_rmem, ds_rmem;
    OwnTile own_rmem[2];
    RowValues lse2, delta;
    auto issue_s = [&](int iteration) {
        // Q or K has arrived
        ptx::mbarrier_wait(slots_full + iteration % STAGES * 2, iteration / STAGES % 2);
        issue_scores(s_rmem, own_rmem[0], own_smem, slots_smem + iteration % STAGES * SLOT);
        if (KEYS) {  // beside it: LSE and D of the tile's rows, where no warp still reads them
            const int slot = iteration % STAGES;
            const element* slot_smem = slots_smem + slot * SLOT;
            const auto pair = walk.at(warpgroup, iteration);
            const RowValue of_row = values_of(pair.first, pair.head, slot_smem + TILE, slot_smem + 2 * TILE,
                                              slots_full + slot * 2 + 1, iteration / STAGES % 2);
            lse2_smem(iteration)[half * VALUES + row] = half ? of_row.delta : of_row.lse2;
        }
    };
    auto use_s = [&](int iteration) {
        const int slot = iteration % STAGES;
        const element* slot_smem = slots_smem + slot * SLOT;
        ptx::mbarrier_wait(slots_full + slot * 2 + 1, iteration / STAGES % 2);  // dO or V has arrived
        issue_scores(dp_rmem, own_rmem[1], own_smem + TILE, slot_smem + TILE);
        lse2.columns_smem = lse2_smem(iteration), delta.columns_smem = lse2.columns_smem + VALUES;
        const int first = walk.at(warpgroup, iteration).first;
        make_p(s_rmem, s_rmem, lse2, walk, first, warp_own, sizes.scale_log2, lane);
        if (KEYS) pack(p_rmem, s_rmem);
        if (KEYS && ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        ptx::wgmma_wait<KEYS && ROOM>();  // dP is whole
        ptx::wgmma_pin(dp_rmem);
        make_ds<KEYS>(dp_rmem, s_rmem, delta, lane);
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
            const RowValue of_row =
                values_of(first_own, own_head, own_smem + TILE, ring_smem + 2 * TILE, own_full + 1, 0);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                lse2.own_rmem[r] = __shfl_sync(ALL_LANES, of_row.lse2, lane / 4 * 2 + 16 * r);
                delta.own_rmem[r] = __shfl_sync(ALL_LANES, of_row.delta, lane / 4 * 2 + 16 * r);
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

    if (CLUSTER > 1) ptx::cluster_arrive();
    ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the ring
    give_sums<KEYS>(first_rmem, second_rmem, ring_smem, warpgroup, warp, lane);
    __syncthreads();  // the other warpgroup's part is there, and nobody reads own_smem any more
    if (CLUSTER > 1) ptx::cluster_wait();  // the other block has sent all that it sends: this one may end
    if (!KEYS && warpgroup == 1) return;
    take_sums<KEYS>(first_rmem, ring_smem, warpgroup, warp, lane, sizes.scale_log2);
    element* panel_smem = own_smem + warpgroup * TILE + warp * WARP_ROWS * 64;
    pack_rows<false>(panel_smem, first_rmem, lane);  // too large becomes infinite: no training step takes it
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
