// The backward pass of a problem so short that a block has room for all tiles that it streams: dQ, dK and dV in
// one launch, without scratch memory or atomics. Where there is no room, backward_one_launch.cu does the same.
//
// P = 2^(scale S - LSE), D = sum of dO * O along a row (less dLSE), dS = P * (dP - D). Two kinds of blocks:
// A key block owns 64 keys and walks over the query rows that see them, of every head of its group:
//     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q.
// A query block owns 64 query rows and walks over keys: S = Q K^T, dP = dO V^T, dQ += dS K.
// One function is both: two own tiles stay, pairs of tiles stream past: S = own[0] first^T, dP = own[1]
// second^T. P and dS are left operands in the registers that they are computed in (warpgroup_rows.cuh).
// Of two warpgroups each takes every other pair; two blocks of a kind fetch every other pair for both. So a
// round is two pairs, one for each warpgroup and one for each block. The first round each block fetches for
// itself, before the two have met. In the end the warpgroups add up.
//
// dV of a tile, the next S, the next dP and dK are issued in this order, and the next P is computed under the last
// two. The wait for them begins the next step: at the end of a step the assembler would move it before the
// exponentials, though not across a branch.
// LSE and D belong to query rows, which are rows of S and columns of S^T. LSE of all rows is loaded in the
// beginning. D of a round is computed one round ahead: a block computes the pair that it fetches, eight rows in
// a warp, of dO in shared memory and O in registers, and sends it to both by distributed shared memory.
// Rows and keys past an end arrive as zeros: LSE = infinity makes P of such rows 0, the mask P of such keys.
// A block ends without waiting for the other one: all that is sent to it is waited for where it is used.
#include "warpgroup_rows.cuh"

constexpr int WARPGROUPS = 2, WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS;
constexpr int TILE = ROWS * D, SLOT = 2 * TILE;  // elements
constexpr int LSE_EACH = (PAIRS * ROWS + THREADS - 1) / THREADS;
constexpr int CHUNKS = D / 8, AT_ONCE = 32 / CHUNKS, SUMS = 2;  // of 16 bytes in a row; rows in a request
constexpr float LOG2E = 1.44269504f;
static_assert(BLOCK_N == ROWS && D == D_V, "all tiles are alike");
static_assert(CLUSTER == 2 && D == 64 && ROWS == WARPS * AT_ONCE * SUMS, "what registers hold");

using Map = const ptx::TensorMap*;  // [B, heads, rows, D]: boxes of [64, 64]

struct Gradient {
    element* rows;
    Strides strides;
};

struct Arrays {
    Map q, k, v, dout;
    const element* out;  // [B, H, S_q, D]
    Strides out_strides;
    const float *lse, *dlse;  // [B, H, S_q]; dlse may be null
    Gradient dq, dk, dv;
};

// A tile of the block's own as left operand: IN_REGISTERS the lane holds its part, since shared memory would
// else deliver both operands of a product, at its full rate.
template <bool IN_REGISTERS> struct OwnTile {
    uint32_t rmem[IN_REGISTERS ? D / 16 : 1][4];

    __device__ __forceinline__ void load(const element* own_smem, int warp, int lane) {
        const int row = warp * WARP_ROWS + lane % 16;
        if (IN_REGISTERS)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                ptx::ldmatrix_x4(rmem[k], own_smem + row * 64 + (k * 2 + lane / 16 ^ row % 8) * 8);
    }
    // The own tile times `tile_smem`, transposed: S or dP, in flight until a wgmma_wait.
    __device__ __forceinline__ void issue(Scores& s_rmem, const element* own_smem,
                                          const element* tile_smem) const {
        if (!IN_REGISTERS) return issue_qk(s_rmem, own_smem, tile_smem);
        const uint64_t tile = ptx::wgmma_tile(tile_smem);
        ptx::wgmma_fence();  // the last use of these registers is over
#pragma unroll
        for (int k = 0; k < D / 16; k++) ptx::wgmma_rs<BLOCK_N>(s_rmem, rmem[k], tile + k * 2, k > 0);
        ptx::wgmma_commit();
    }
};

// For so many keys, or query rows of a head: whole clusters.
__device__ __forceinline__ int blocks_of(int rows) {
    return (rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * CLUSTER;
}

template <bool KEYS>
__device__ __forceinline__ void block(const Arrays& arrays, const Sizes& sizes, int number) {
    extern __shared__ __align__(1024) unsigned char smem[];
    element* own_smem = reinterpret_cast<element*>(smem);  // K and V, or Q and dO, [64, D] each
    element* slots_smem = own_smem + 2 * TILE;             // [PAIRS, 2, 64, D]
    float* lse2_smem = reinterpret_cast<float*>(slots_smem + PAIRS * SLOT);  // [PAIRS, 64]; or of its own rows
    float* delta_smem = lse2_smem + PAIRS * ROWS;                            // the same
    uint64_t* own_full = reinterpret_cast<uint64_t*>(delta_smem + PAIRS * ROWS);  // [2]
    uint64_t *slots_full = own_full + 2, *delta_full = slots_full + 2 * PAIRS;    // [PAIRS, 2] and [PAIRS]
    // The shuffle shows the compiler that the value is uniform across the warp, and so are tiles' addresses.
    const int block_warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    const int warpgroup = block_warp / 4, warp = block_warp % 4;
    const int lane = threadIdx.x % 32, kv_head = blockIdx.y, b = blockIdx.z, rank = ptx::cluster_rank();
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
    const int iterations = (pairs - warpgroup + WARPGROUPS - 1) / WARPGROUPS;
    struct Place {
        int head, first;  // row or key
    };
    auto place_of = [&](int pair) {
        const int member = KEYS && sizes.group > 1 ? pair / count : 0;
        return Place{KEYS ? kv_head * sizes.group + member : kv_head,
                    (tiles.begin + pair - member * count) * BLOCK_N};
    };

    // Each warp initialises the mbarriers of the pairs that it asks for.
    if (ptx::elect_one()) {
        if (block_warp < 2) ptx::mbarrier_init(own_full + block_warp, 1);
        for (int pair = block_warp; pair < PAIRS; pair += WARPS) {
            ptx::mbarrier_init(slots_full + pair * 2, 1);
            ptx::mbarrier_init(slots_full + pair * 2 + 1, 1);
            ptx::mbarrier_init(delta_full + pair, 1);
        }
        ptx::fence_mbarrier_init();  // TMA and the other block see the mbarriers initialised
        if (block_warp < 2 && pairs > 0) {
            const Map map = KEYS ? (block_warp ? arrays.v : arrays.k) : (block_warp ? arrays.dout : arrays.q);
            ptx::mbarrier_arrive_expect(own_full + block_warp, TILE * 2);  // as with the pairs
            load_tile<ROWS>(own_smem + block_warp * TILE, map, own_full + block_warp, first_own, own_head, b);
        }
    }
    auto fetch = [&](int pair, bool for_both) {  // by one thread
        const Place at = place_of(pair);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Map map = KEYS ? (i ? arrays.dout : arrays.q) : (i ? arrays.v : arrays.k);
            uint64_t* full = slots_full + pair * 2 + i;
            element* tile_smem = slots_smem + pair * SLOT + i * TILE;
            ptx::mbarrier_arrive_expect(full, TILE * 2);  // a phase ends with its bytes, not before
            if (!for_both)
                load_tile<BLOCK_N>(tile_smem, map, full, at.first, at.head, b);
            else if (pair % CLUSTER == rank)
                ptx::tma_load_multicast_4d(tile_smem, map, full, 0, at.first, at.head, b, (1 << CLUSTER) - 1);
        }
        if (KEYS || pair == 0) ptx::mbarrier_arrive_expect(delta_full + pair, ROWS * 4);  // the same
    };
    if (block_warp < min(pairs, WARPGROUPS) && ptx::elect_one()) fetch(block_warp, false);
    ptx::cluster_arrive_relaxed();

    // LSE and D, of the query rows of a pair; or of the block's own, which count as one pair.
    const int row_pairs = KEYS ? pairs : min(pairs, 1);
    auto rows_of = [&](int pair) { return KEYS ? place_of(pair) : Place{own_head, first_own}; };
    float lse_rmem[LSE_EACH];
#pragma unroll
    for (int i = 0; i < LSE_EACH; i++) {
        const int at = i * THREADS + threadIdx.x;
        lse_rmem[i] = -INFINITY;  // no such row
        if (at < row_pairs * ROWS) {
            const Place rows = rows_of(at / ROWS);
            const int row = rows.first + at % ROWS;
            const float lse = arrays.lse[sizes.rows_before(b, rows.head) + min(row, sizes.S_q - 1)];
            if (row < sizes.S_q) lse_rmem[i] = lse;
        }
    }
    // Of the pair that the block computes for a round, the warp's rows 8 * block_warp to + 7: AT_ONCE rows in a
    // request, 16 bytes per lane.
    const int first_sum = AT_ONCE * SUMS * block_warp + lane / CHUNKS, chunk = lane % CHUNKS;
    uint4 out_rmem[SUMS];
    auto computed = [&](int round) { return KEYS ? round * CLUSTER + rank : round; };
    auto load_out = [&](int round) {
        const int pair = computed(round);
        if (pair >= row_pairs) return;
        const Place rows = rows_of(pair);
        const int first_row = rows.first + first_sum;
        const element* out_lane = arrays.out + arrays.out_strides.at(b, rows.head, first_row) + 8 * chunk;
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            out_rmem[i] = make_uint4(0, 0, 0, 0);
            if (first_row + AT_ONCE * i < sizes.S_q)
                out_rmem[i] =
                    *reinterpret_cast<const uint4*>(out_lane + AT_ONCE * i * arrays.out_strides.row);
        }
    };
    load_out(0);

    ptx::cluster_wait();  // the mbarriers of both blocks are initialised
#pragma unroll 1
    for (int pair = block_warp; pair < pairs; pair += WARPS)
        if (pair >= WARPGROUPS && ptx::elect_one()) fetch(pair, true);

    auto send_delta = [&](int round) {
        const int pair = computed(round);
        if (pair >= row_pairs) return;
        const element* do_smem = KEYS ? slots_smem + pair * SLOT + TILE : own_smem + TILE;
        ptx::mbarrier_wait(KEYS ? slots_full + pair * 2 + 1 : own_full + 1, 0);  // dO has arrived
        float sums[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int row = first_sum + AT_ONCE * i;
            const uint4 dout = *reinterpret_cast<const uint4*>(do_smem + row * 64 + (chunk ^ row % 8) * 8);
            sums[i] = 0.0f;
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                const float2 x = Element::floats(reinterpret_cast<const element2*>(&dout)[pair]);
                const float2 y = Element::floats(reinterpret_cast<const element2*>(&out_rmem[i])[pair]);
                sums[i] += x.x * y.x, sums[i] += x.y * y.y;
            }
        }
        // Two lanes trade: an even one goes on with the first row, an odd one with the second.
        const bool odd = lane % 2;
        float mine = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(ALL_LANES, odd ? sums[0] : sums[1], 1);
#pragma unroll
        for (int lanes = 2; lanes < CHUNKS; lanes *= 2) mine += __shfl_xor_sync(ALL_LANES, mine, lanes);
        // Four rows in a lane, for one block: 16 bytes.
        const int i = lane % 2, to = lane / 2, first_row = AT_ONCE * (SUMS * block_warp + i);
        const Place rows = rows_of(pair);
        float delta[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = first_row + j;
            delta[j] = __shfl_sync(ALL_LANES, mine, j * CHUNKS + i);
            if (arrays.dlse && rows.first + row < sizes.S_q)
                delta[j] -= arrays.dlse[sizes.rows_before(b, rows.head) + rows.first + row];
            if (lse2_smem[pair * ROWS + row] == INFINITY) delta[j] = 0.0f;  // whatever O and dLSE are
        }
        if (KEYS ? to < CLUSTER : to == rank)
            ptx::store_async(delta_smem + pair * ROWS + first_row, delta, delta_full + pair, to);
    };

    Output first_rmem, second_rmem;  // dK and dV; or dQ alone
    Scores s_rmem, dp_rmem;  // S becomes P, dP becomes dS
    P p_rmem, ds_rmem;
    OwnTile<true> own_first;
    OwnTile<!KEYS> own_second;
    auto slot_of = [&](int iteration) {
        return slots_smem + (iteration * WARPGROUPS + warpgroup) * SLOT;
    };
    auto full_of = [&](int iteration) { return slots_full + (iteration * WARPGROUPS + warpgroup) * 2; };
    auto issue_s = [&](int iteration) {
        ptx::mbarrier_wait(full_of(iteration), 0);  // Q or K has arrived
        own_first.issue(s_rmem, own_smem, slot_of(iteration));
    };
    auto issue_dp = [&](int iteration) {
        ptx::mbarrier_wait(full_of(iteration) + 1, 0);  // dO or V has arrived
        own_second.issue(dp_rmem, own_smem + TILE, slot_of(iteration) + TILE);
    };
    // LSE or D of a lane's two rows g and g + 8, or of the two columns of S^T that score i is one of.
    auto values_at = [&](const float* values_smem, int pair, int i, float (&x)[2]) {
        if (KEYS) {
            const float2 two = reinterpret_cast<const float2*>(values_smem + pair * ROWS)[i + lane % 4];
            x[0] = two.x, x[1] = two.y;
        } else if (i == 0) {
            const float* row_smem = values_smem + warp * WARP_ROWS + lane / 4;
            x[0] = row_smem[0], x[1] = row_smem[8];
        }
    };
    // What all rows of the warp see, or all keys of it are seen by.
    const Interval all_see{seen(warp_own + WARP_ROWS - 1).begin, seen(warp_own).end};
    auto exponentiate = [&](int iteration) {  // S is whole
        const int pair = iteration * WARPGROUPS + warpgroup, first = place_of(pair).first;
        float lse2[2];
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            if (i % 4 == 0) values_at(lse2_smem, pair, i, lse2);
            s_rmem[i] = s_rmem[i] * sizes.scale_log2 - lse2[KEYS ? i % 2 : i / 2 % 2];
        }
        if (first < all_see.begin || first + BLOCK_N > all_see.end) {
            const int own = warp_own + lane / 4;
            mask_tile(s_rmem, {seen(own).from(first), seen(own + 8).from(first)}, 1.0f, lane);
        }
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) s_rmem[i] = ptx::ex2(s_rmem[i]);
        if (KEYS) pack(p_rmem, s_rmem);
    };
    // A tile from P on, to P of the next one, if there are `more`.
    auto step = [&](int iteration, bool more) {
        const int pair = iteration * WARPGROUPS + warpgroup;
        const element* slot_smem = slots_smem + pair * SLOT;
        load_out(KEYS ? iteration + 1 : 1);
        ptx::wgmma_wait<0>();  // dP is whole, and dS has been read
        ptx::wgmma_pin(dp_rmem);
        ptx::wgmma_pin(first_rmem);
        ptx::wgmma_pin(ds_rmem);
        if (KEYS || iteration == 0) ptx::mbarrier_wait_cluster(delta_full + pair * KEYS, 0);  // D has come
        float delta[2];
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            if (i % 4 == 0) values_at(delta_smem, pair, i, delta);
            dp_rmem[i] = s_rmem[i] * (dp_rmem[i] - delta[KEYS ? i % 2 : i / 2 % 2]);
        }
        pack(ds_rmem, dp_rmem);
        if (KEYS) issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0);
        if (more) issue_s(iteration + 1), issue_dp(iteration + 1);
        issue_pv(first_rmem, ds_rmem, slot_smem, iteration > 0);
        send_delta(KEYS ? iteration + 1 : 1);
        if (more) {
            ptx::wgmma_wait<2>();  // the next S is whole, and P has been read
            ptx::wgmma_pin(s_rmem);
            if (KEYS) ptx::wgmma_pin(p_rmem);
            exponentiate(iteration + 1);
        }
    };

    if (iterations > 0) {
        ptx::mbarrier_wait(own_full, 0);  // K or Q has arrived
        own_first.load(own_smem, warp, lane);
        issue_s(0);
        ptx::mbarrier_wait(own_full + 1, 0);  // V or dO has arrived
        own_second.load(own_smem + TILE, warp, lane);
        issue_dp(0);
    }
#pragma unroll
    for (int i = 0; i < LSE_EACH; i++) {
        const int at = i * THREADS + threadIdx.x;
        if (at < row_pairs * ROWS)  // of a row without keys: P = 0
            lse2_smem[at] = lse_rmem[i] == -INFINITY ? INFINITY : lse_rmem[i] * LOG2E;
    }
    __syncthreads();  // the LSE of all rows is there
    send_delta(0);
    if (iterations > 0) {
        ptx::wgmma_wait<1>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        exponentiate(0);
        for (int iteration = 0; iteration + 1 < iterations; iteration++) step(iteration, true);
        step(iterations - 1, false);
    }
    ptx::wgmma_wait<0>();  // all sums are whole
    ptx::wgmma_pin(first_rmem);
    ptx::wgmma_pin(ds_rmem);
    if (KEYS) ptx::wgmma_pin(second_rmem), ptx::wgmma_pin(p_rmem);
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
    // [2, 4, D / 16, 32]: in the first tiles of two slots, which only this warpgroup has read
    auto sums_smem = [&](int w, int i) {
        element* first_smem = slots_smem + (w + i / (D / 16) * WARPGROUPS) * SLOT;
        return reinterpret_cast<float4*>(first_smem) + (warp * (D / 16) + i % (D / 16)) * 32 + lane;
    };
    ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the slots
    if (KEYS || warpgroup == 1)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *sums_smem(warpgroup, i) =
                make_float4(given[4 * i], given[4 * i + 1], given[4 * i + 2], given[4 * i + 3]);
    __syncthreads();  // the other warpgroup's part is there, and nobody reads own_smem any more
    if (!KEYS && warpgroup == 1) return;
    const float factor = KEYS && warpgroup == 0 ? 1.0f : sizes.scale_log2 * LN2;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float4 x = *sums_smem(warpgroup ^ 1, i);
        kept[4 * i] = (kept[4 * i] + x.x) * factor, kept[4 * i + 1] = (kept[4 * i + 1] + x.y) * factor;
        kept[4 * i + 2] = (kept[4 * i + 2] + x.z) * factor;
        kept[4 * i + 3] = (kept[4 * i + 3] + x.w) * factor;
    }
    element* panel_smem = own_smem + warpgroup * TILE + warp * WARP_ROWS * 64;
    pack_rows<false>(panel_smem, kept, lane);  // too large becomes infinite: no training step takes it
    __syncwarp();  // the rows are whole before lanes read what others wrote
    auto store = [&](const Gradient& to) {
#pragma unroll
        for (int first = 0; first < WARP_ROWS; first += AT_ONCE) {
            const int row = first + lane / CHUNKS;
            if (warp_own + row < (KEYS ? sizes.S_k : sizes.S_q))
                *reinterpret_cast<uint4*>(to.rows + to.strides.at(b, own_head, warp_own + row) + 8 * chunk) =
                    *reinterpret_cast<const uint4*>(panel_smem + row * 64 + (chunk ^ row % 8) * 8);
        }
    };
    if (!KEYS)
        store(arrays.dq);
    else if (warpgroup)
        store(arrays.dk);
    else
        store(arrays.dv);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
backward_resident(const __grid_constant__ ptx::TensorMap q_map,
                  const __grid_constant__ ptx::TensorMap k_map,
                  const __grid_constant__ ptx::TensorMap v_map,
                  const __grid_constant__ ptx::TensorMap dout_map,
                  const element* out, const float* lse, const float* dlse, element* dq, element* dk,
                  element* dv, STRIDES(out), STRIDES(dq), STRIDES(dk), STRIDES(dv), SIZES) {
    const Sizes sizes = SIZES_GIVEN;
    const Arrays arrays{&q_map, &k_map, &v_map, &dout_map, out, STRIDES_GIVEN(out), lse, dlse, {dq, STRIDES_GIVEN(dq)}, {dk, STRIDES_GIVEN(dk)}, {dv, STRIDES_GIVEN(dv)}};
    const int key_blocks = blocks_of(sizes.S_k);  // first: they take longer
    if (blockIdx.x < key_blocks)
        block<true>(arrays, sizes, blockIdx.x);
    else
        block<false>(arrays, sizes, blockIdx.x - key_blocks);
}
