// The backward pass of a short problem in one launch, as in backward_one_launch.cu, with a third warpgroup.
//
// The third asks for all tiles, the first pair of each ring before the rest, and has few registers. It brings
// the LSE of query rows, and D of each tile as soon as dO and O are there, two lanes for a row. Each slot has
// two mbarriers for these, so that the two warpgroups that multiply wait for the LSE before the exponentials,
// for D after them, and never for loads from global memory. They have no barrier in their walk.
// Their tile: dP is asked for; P; dV and, with AHEAD, S of the next tile are asked for; dS; dK or dQ is asked
// for and runs under the next tile's exponentials. What blocks own is in pairs_of_tiles.cuh.
// With CLUSTER 2 each of two blocks of a kind fetches half of the tiles for both, all but the first ones: for
// these no block waits until the other has begun.
#include "pairs_of_tiles.cuh"

constexpr int MULTIPLYING = 128 * WARPGROUPS, THREADS = MULTIPLYING + 128;
constexpr int FULL = 2 + 4 * STAGES, MBARRIERS = FULL + 4 * STAGES;  // mbarriers of tiles; of values too
constexpr int STARTED = 1 + WARPGROUPS, SUMMED = STARTED + 1;        // barriers; 1 and 2 are the warpgroups'
static_assert(!AHEAD || ROOM && STAGES > 2, "S of the next tile beside P, from a slot filled long before");

struct Arrays {
    Map q, k, v, out, dout;
    element *dq, *dk, *dv;
    Strides dq_strides, dk_strides, dv_strides;
    const float *lse, *dlse;  // [B, H, S_q]; dlse may be null
};

// A lane's half of the sum of dO * O along a row: of its half of every panel's columns.
__device__ __forceinline__ float half_delta(const element* do_smem, const element* o_smem, int row,
                                            int half) {
    float sum = 0.0f;
#pragma unroll ROOM ? 2 : 1
    for (int k = 0; k < D / 16; k++) {
        const int at = k / 4 * (ROWS * 64) + row * 64 + (half * 4 + k % 4 ^ row % 8) * 8;
        const uint4 out = *reinterpret_cast<const uint4*>(o_smem + at);
        const uint4 dout = *reinterpret_cast<const uint4*>(do_smem + at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 x = Element::floats(reinterpret_cast<const element2*>(&out)[i]);
            const float2 y = Element::floats(reinterpret_cast<const element2*>(&dout)[i]);
            sum += x.x * y.x + x.y * y.y;
        }
    }
    return sum;
}

template <bool KEYS>
__device__ __forceinline__ void block(const Arrays& arrays, const Sizes& sizes, int number) {
    extern __shared__ __align__(1024) unsigned char smem[];
    element* own_smem = reinterpret_cast<element*>(smem);  // K and V, or Q and dO, [64, D] each
    element* ring_smem = own_smem + 2 * TILE;              // [WARPGROUPS, STAGES, 3, 64, D]
    // [WARPGROUPS, STAGES, 2, VALUES]
    float* values_smem = reinterpret_cast<float*>(ring_smem + WARPGROUPS * RING);
    uint64_t* own_full = reinterpret_cast<uint64_t*>(values_smem + WARPGROUPS * STAGES * 2 * VALUES);  // [2]
    uint64_t* ring_full = own_full + 2;       // [WARPGROUPS, STAGES, 2]: the first tile; the second, with O
    uint64_t* values_full = own_full + FULL;  // [WARPGROUPS, STAGES, 2]: the LSE; D
    // The shuffle shows the compiler that the value is uniform across the warp, and so are tiles' addresses.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, b = blockIdx.z;
    const int rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const Walk<KEYS> walk(sizes, number, rank);
    const int first_own = walk.first_own, warp_own = first_own + warp * WARP_ROWS, own_head = walk.own_head;
    const int iterations = walk.iterations(warpgroup);

    auto fetch = [&](int w, int iteration) {  // by one thread of each block of the cluster
        const int slot = w * STAGES + iteration % STAGES;
        const auto pair = walk.at(w, iteration);
        const int head = KEYS ? pair.head : walk.kv_head;
        uint64_t* full = ring_full + slot * 2;
        // A phase ends with its bytes, not before; some may come from the other block first.
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::mbarrier_arrive_expect(full + 1, (KEYS ? 2 : 1) * TILE * 2);
        auto fetch_tile = [&](int tile, Map map) {
            element* tile_smem = ring_smem + slot * SLOT + tile * TILE;
            uint64_t* tile_full = full + (tile > 0);
            if (CLUSTER == 1 || iteration == 0)
                load_tile<BLOCK_N>(tile_smem, map, tile_full, pair.first, head, b);
            else if ((iteration + w) % CLUSTER == rank)
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++)
                    ptx::tma_load_multicast_4d(tile_smem + panel * BLOCK_N * 64, map, tile_full, 64 * panel,
                                               pair.first, head, b, (1 << CLUSTER) - 1);
        };
        fetch_tile(0, KEYS ? arrays.q : arrays.k);
        fetch_tile(1, KEYS ? arrays.dout : arrays.v);
        if (KEYS) fetch_tile(2, arrays.out);
    };
    auto fetch_own = [&](int tile) {
        const bool and_out = !KEYS && tile == 1;
        uint64_t* full = own_full + tile;
        ptx::mbarrier_arrive_expect(full, (and_out ? 2 : 1) * TILE * 2);  // as in the ring
        const Map map = tile ? KEYS ? arrays.v : arrays.dout : KEYS ? arrays.k : arrays.q;
        load_tile<ROWS>(own_smem + tile * TILE, map, full, first_own, own_head, b);
        if (and_out)  // O, to its place in the first slot
            load_tile<ROWS>(ring_smem + 2 * TILE, arrays.out, full, first_own, own_head, b);
    };
    auto lse2_smem = [&](int slot) { return values_smem + slot * 2 * VALUES; };  // of both rings' slots
    auto delta_smem = [&](int slot) { return lse2_smem(slot) + VALUES; };

    if (warpgroup == WARPGROUPS) {
        ptx::registers_down<FEW_REGISTERS>();
        if (warp == 0) {
            for (int i = lane; i < MBARRIERS; i += 32) ptx::mbarrier_init(own_full + i, i < FULL ? 1 : 4);
            ptx::fence_mbarrier_init();  // TMA and the other block see them initialised
        }
        ptx::bar_sync(STARTED, THREADS);  // so do the other threads
        // Two warps ask for an own tile and a first pair each, the others for the rest: one warp would take
        // longer than the first tiles do.
        if (lane == 0 && warp < min(WARPGROUPS, walk.pairs)) {
            fetch_own(warp);
            if (walk.pairs == 1) fetch_own(1);
            fetch(warp, 0);
        }
        // Two lanes for each of 64 query rows: the LSE, and its gradient.
        const int row = warp * WARP_ROWS + lane / 2, half = lane % 2;
        auto value_of = [&](int n) {
            const auto pair = walk.at(n % WARPGROUPS, n / WARPGROUPS);
            const int at = (KEYS ? pair.first : first_own) + row;
            const float* values = half ? arrays.dlse : arrays.lse;
            if (!values) return 0.0f;
            const float value = values[sizes.rows_before(b, pair.head) + min(at, sizes.S_q - 1)];
            return half || at < sizes.S_q ? value : -INFINITY;
        };
        const int owned = KEYS ? walk.pairs : min(walk.pairs, 1);  // tiles that need values
        constexpr int AT_ONCE = !KEYS ? 1 : ROOM ? WARPGROUPS * STAGES : 0;
        float value_rmem[AT_ONCE > 0 ? AT_ONCE : 1];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            if (n < owned) value_rmem[n] = value_of(n);
        if (CLUSTER > 1) {
            ptx::cluster_arrive_relaxed();
            ptx::cluster_wait();  // the other block's mbarriers are initialised
        }
        if (lane == 0 && warp >= WARPGROUPS)
            for (int i = 1; i < min(walk.iterations(warp - WARPGROUPS), STAGES); i++)
                fetch(warp - WARPGROUPS, i);
        auto slot_of = [&](int n) { return n % WARPGROUPS * STAGES + n / WARPGROUPS % STAGES; };
        auto put = [&](int n, float value) {
            // No such row, or one without keys: P = 0.
            const float lse2 = value == -INFINITY ? INFINITY : value * LOG2E;
            lse2_smem(slot_of(n))[half * VALUES + row] = half ? value : lse2;
        };
        auto tell = [&](uint64_t* full) {
            __syncwarp();  // all lanes have written
            if (lane == 0) ptx::mbarrier_arrive(full);
        };
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
            if (n < owned) put(n, value_rmem[n]), tell(values_full + slot_of(n) * 2);
        for (int n = 0; n < owned; n++) {
            const int slot = slot_of(n), parity = n / WARPGROUPS / STAGES % 2;
            if (KEYS && n >= AT_ONCE) {
                const float value = value_of(n);
                ptx::mbarrier_wait(ring_full + slot * 2, parity);  // the values before are read no more
                put(n, value);
                tell(values_full + slot * 2);
            }
            ptx::mbarrier_wait(KEYS ? ring_full + slot * 2 + 1 : own_full + 1, parity);  // dO and O are here
            const element* slot_smem = ring_smem + slot * SLOT;
            float sum = half_delta((KEYS ? slot_smem : own_smem) + TILE, slot_smem + 2 * TILE, row, half);
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            if (half == 0) {
                const float dlse = delta_smem(slot)[row];
                delta_smem(slot)[row] = lse2_smem(slot)[row] == INFINITY ? 0.0f : sum - dlse;
            }
            tell(values_full + slot * 2 + 1);
        }
        // This block stays until the other one has sent all; threads that have ended count as arrived.
        if (CLUSTER > 1) ptx::cluster_arrive(), ptx::cluster_wait();
        return;
    }
    ptx::registers_up<MANY_REGISTERS>();
    ptx::bar_sync(STARTED, THREADS);  // the mbarriers are initialised
    if (CLUSTER > 1) ptx::cluster_arrive_relaxed();  // and waits for no other block

    const element* slots_smem = ring_smem + warpgroup * RING;  // of this warpgroup
    uint64_t *slots_full = ring_full + warpgroup * STAGES * 2, *slots_values = slots_full + FULL - 2;
    Output first_rmem, second_rmem;  // dK and dV; or dQ alone
    Scores s_rmem, dp_rmem, beside_rmem;
    Scores& powers_rmem = AHEAD ? beside_rmem : s_rmem;
    P p_rmem, ds_rmem;
    OwnTile own_rmem[2];
    RowValues lse2, delta;
    auto issue_s = [&](int iteration) {
        const int slot = iteration % STAGES;
        ptx::mbarrier_wait(slots_full + slot * 2, iteration / STAGES % 2);  // Q or K has arrived
        issue_scores(s_rmem, own_rmem[0], own_smem, slots_smem + slot * SLOT);
    };
    auto use_s = [&](int iteration, bool more) {
        const int slot = iteration % STAGES, parity = iteration / STAGES % 2;
        const element* slot_smem = slots_smem + slot * SLOT;
        ptx::mbarrier_wait(slots_full + slot * 2 + 1, parity);  // dO or V has arrived
        issue_scores(dp_rmem, own_rmem[1], own_smem + TILE, slot_smem + TILE);
        lse2.columns_smem = lse2_smem(warpgroup * STAGES + slot);
        delta.columns_smem = lse2.columns_smem + VALUES;
        if (KEYS) ptx::mbarrier_wait(slots_values + slot * 2, parity);  // so has the LSE
        const int first = walk.at(warpgroup, iteration).first;
        make_p(powers_rmem, s_rmem, lse2, walk, first, warp_own, sizes.scale_log2, lane);
        if (KEYS) pack(p_rmem, powers_rmem);
        if (KEYS && ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        if (AHEAD && more) issue_s(iteration + 1);
        if (KEYS) ptx::mbarrier_wait(slots_values + slot * 2 + 1, parity);  // D is known
        constexpr int UNDER = KEYS && ROOM;
        if (AHEAD && more)
            ptx::wgmma_wait<UNDER + 1>();  // dP is whole, and the last product of the tile before
        else
            ptx::wgmma_wait<UNDER>();  // the same
        if (AHEAD) ptx::wgmma_pin(first_rmem), ptx::wgmma_pin(ds_rmem);
        ptx::wgmma_pin(dp_rmem);
        make_ds<KEYS>(dp_rmem, powers_rmem, delta, lane);
        pack(ds_rmem, dp_rmem);
        if (KEYS && !ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        issue_pv(first_rmem, ds_rmem, slot_smem, iteration > 0);
    };
    auto wait_for_products = [&](bool last) {  // with AHEAD, unless `last`, for all but dS's
        if (AHEAD && !last)
            ptx::wgmma_wait<1>();
        else
            ptx::wgmma_wait<0>();
        ptx::wgmma_pin(s_rmem);
        if (KEYS) ptx::wgmma_pin(second_rmem), ptx::wgmma_pin(p_rmem);
        if (!AHEAD || last) ptx::wgmma_pin(first_rmem), ptx::wgmma_pin(ds_rmem);
    };

    if (iterations > 0) {
        ptx::mbarrier_wait(own_full, 0);  // K or Q has arrived
        load_own(own_rmem[0], own_smem, warp, lane);
        issue_s(0);
        ptx::mbarrier_wait(own_full + 1, 0);  // V has arrived, or dO
        load_own(own_rmem[1], own_smem + TILE, warp, lane);
        if (!KEYS) {
            for (int i = 0; i < 2; i++) ptx::mbarrier_wait(values_full + i, 0);  // LSE and D are known
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = warp * WARP_ROWS + lane / 4 + 8 * r;
                lse2.own_rmem[r] = lse2_smem(0)[row], delta.own_rmem[r] = delta_smem(0)[row];
            }
        }
        wait_for_products(true);
    }
    for (int iteration = 0; iteration + 1 < iterations; iteration++) {
        use_s(iteration, true);
        if (!AHEAD) issue_s(iteration + 1);
        wait_for_products(false);
        const int next = iteration + STAGES - AHEAD;  // to the slot whose products are all done
        if (next < STAGES || next >= iterations) continue;
        ptx::bar_sync(1 + warpgroup, 128);  // all warps and their products have read the slot
        if (threadIdx.x % 128 == 0) fetch(warpgroup, next);
    }
    if (iterations > 0) use_s(iterations - 1, false);
    wait_for_products(true);
    if (iterations == 0)  // not seen, or by the other warpgroup alone
#pragma unroll
        for (int i = 0; i < D / 2; i++) first_rmem[i] = second_rmem[i] = 0.0f;

    ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the ring
    give_sums<KEYS>(first_rmem, second_rmem, ring_smem, warpgroup, warp, lane);
    ptx::bar_sync(SUMMED, MULTIPLYING);  // the other's part is there, and nobody reads own_smem any more
    if (!KEYS && warpgroup == 1) return;
    take_sums<KEYS>(first_rmem, ring_smem, warpgroup, warp, lane, sizes.scale_log2);
    element* panel_smem = own_smem + warpgroup * TILE + warp * WARP_ROWS * 64;
    pack_rows<false>(panel_smem, first_rmem, lane);  // too large becomes infinite: no training step takes it
    __syncwarp();  // all lanes have written
    const Strides strides = !KEYS ? arrays.dq_strides : warpgroup ? arrays.dk_strides : arrays.dv_strides;
    element* gmem = !KEYS ? arrays.dq : warpgroup ? arrays.dk : arrays.dv;
    gmem += strides.at(b, own_head, warp_own);
    const int inside = (KEYS ? sizes.S_k : sizes.S_q) - warp_own;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {  // 16 bytes of a line per lane, without what a copy by TMA waits for
        const int row = i % 4 * 4 + lane / 8, chunk = lane % 8;
        const element* row_smem = panel_smem + i / 4 * ROWS * 64 + row * 64;
        const uint4 x = *reinterpret_cast<const uint4*>(row_smem + (chunk ^ row % 8) * 8);
        if (row < inside)
            ptx::store_16(gmem + row * strides.row + i / 4 * 64 + chunk * 8, x.x, x.y, x.z, x.w);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
backward_one_launch_roles(const __grid_constant__ ptx::TensorMap q_map,
                          const __grid_constant__ ptx::TensorMap k_map,
                          const __grid_constant__ ptx::TensorMap v_map,
                          const __grid_constant__ ptx::TensorMap out_map,
                          const __grid_constant__ ptx::TensorMap dout_map,
                          element* dq, element* dk, element* dv, STRIDES(dq), STRIDES(dk), STRIDES(dv),
                          const float* lse, const float* dlse, SIZES) {
    const Sizes sizes = SIZES_GIVEN;
    const Arrays arrays{&q_map, &k_map, &v_map, &out_map, &dout_map,
                        dq, dk, dv, STRIDES_GIVEN(dq), STRIDES_GIVEN(dk), STRIDES_GIVEN(dv), lse, dlse};
    const int key_blocks = blocks_of(sizes.S_k);  // first: they take longer
    if (blockIdx.x < key_blocks)
        block<true>(arrays, sizes, blockIdx.x);
    else
        block<false>(arrays, sizes, blockIdx.x - key_blocks);
}
