// Stage 16: a short problem on the whole GPU, in one launch and without scratch memory.
//
// A cluster owns 64 query rows of one head. K/V tiles of BLOCK_N keys are dealt to its PARTS = CLUSTER *
// WARPGROUPS warpgroups, first across blocks. Each has S, P, O, m and l of all 64 rows for its own tiles:
// lane 4g + t of warp w has rows 16w + g and 16w + g + 8 (warpgroup_rows.cuh). One thread asks for the tiles
// in the order of use, into rings of STAGES slots. With 512 keys and 4 parts all loads are in flight at once,
// and the loop has one iteration.
// S = Q K^T, then softmax: P V of a tile's first half hides the exponentials of the second.
// Merge: under the last P V the parts exchange m and l, in the block and then across: M = max(m, m'),
// l = 2^(m - M) l + 2^(m' - M) l'. O is then only scaled and added: half of a warp's columns go to the same
// warp of the other warpgroup, half of the rest to that of the other block, through distributed shared
// memory. In the end a warp has D / PARTS columns of 16 rows. Mbarriers count the bytes that cross. Each
// message has a place of its own, so no warp waits to send. A block is written to only after it has started
// (cluster barrier), and it ends after all its messages have come.
// EARLY: launched so that it may begin under the end of the kernel before, which one thread then waits for.
#include "warpgroup_rows.cuh"

constexpr int WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS, PARTS = CLUSTER * WARPGROUPS;
constexpr int TILE = BLOCK_N * D, RING = STAGES * TILE, HALF = BLOCK_N / 2;
constexpr int LEFT = D / 2 / WARPGROUPS, OWN = LEFT / CLUSTER;  // accumulators after the two sums
static_assert(WARPGROUPS <= 2 && CLUSTER <= 2, "a sum in the block and one across");

// m and l become those of both parts; `mine` and `theirs`: what O of each has to be scaled by.
__device__ __forceinline__ void join(RowState& m, RowState& l, const float4& other, RowState& mine,
                                     RowState& theirs) {
    const float m_other[2] = {other.x, other.y}, l_other[2] = {other.z, other.w};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m_new = fmaxf(m[r], m_other[r]);
        mine[r] = ptx::ex2(m[r] - m_new), theirs[r] = ptx::ex2(m_other[r] - m_new);
        l[r] = mine[r] * l[r] + theirs[r] * l_other[r], m[r] = m_new;
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
cluster_split(const __grid_constant__ ptx::TensorMap q_map,  // [B, H, S_q, D], boxes of [64, 64]
              const __grid_constant__ ptx::TensorMap k_map,  // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
              const __grid_constant__ ptx::TensorMap v_map,  // the same
              element* out, float* lse,                      // [B, H, S_q, D]; [B, H, S_q] or null
              STRIDES(out), SIZES BATCHES_PARAMS) {
    const Strides out_strides = STRIDES_GIVEN(out);
    const Sizes sizes = SIZES_GIVEN;
    const Batches batches = BATCHES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [64, D]
    element* ring_smem = q_smem + ROWS * D;           // [WARPGROUPS, K and V, STAGES, BLOCK_N, D]
    float4* sum_smem = reinterpret_cast<float4*>(ring_smem + WARPGROUPS * 2 * RING);  // [WARPS, LEFT / 4, 32]
    float4* share_smem = sum_smem + (WARPGROUPS - 1) * WARPS * LEFT * 8;  // [WARPS, OWN / 4, 32]
    float4* near_smem = share_smem + (CLUSTER - 1) * WARPS * OWN * 8;  // [WARPS, 8]: m, l from the same block
    float4* far_smem = near_smem + WARPS * 8;                          // [WARPS, 8]: and from the other one
    float4* norm_smem = far_smem + (CLUSTER - 1) * WARPS * 8;  // [WARPS, 8]: squares from there
    uint64_t* q_full = reinterpret_cast<uint64_t*>(norm_smem + HEAD_NORM * (CLUSTER - 1) * WARPS * 8);
    uint64_t* ring_full = q_full + 1;                          // [WARPGROUPS, K and V, STAGES]
    uint64_t* far_full = ring_full + WARPGROUPS * 2 * STAGES;  // [WARPS], for far_smem
    uint64_t* share_full = far_full + WARPS;                   // [WARPS], for share_smem
    uint64_t* norm_full = share_full + WARPS;                  // [WARPS], for norm_smem
    // The shuffle shows the compiler that the value is uniform across the warp, and so are tiles' addresses.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const int h = blockIdx.y;
    // Where kernels before may have written the lengths, all threads wait before they read them.
    if (EARLY && BOUNDED_KV) ptx::grid_dependency_wait();
    RowTile row_tile{int(blockIdx.z), int(blockIdx.x / CLUSTER)};
    // A cluster of packed sequences has a row tile, or none: then both blocks end here.
    if (RAGGED && !find_row_tile(row_tile, sizes, ROWS, lane)) return;
    const Sequence sequence = sizes.sequence(row_tile.sequence);
    const int b = sequence.batch, first_row = row_tile.tile * ROWS;
    // A division takes longer than all that K waits for here.
    const int kv_head = sizes.group == 1 ? h : h / sizes.group;
    const Mask mask(sizes, sequence);
    const int last_row = min(first_row + ROWS, sequence.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval tiles = block_keys.tiles(BLOCK_N);
    auto first_tile = [&](int warpgroup) { return tiles.begin + warpgroup * CLUSTER + rank; };
    auto iterations_of = [&](int w) { return (tiles.end - first_tile(w) + PARTS - 1) / PARTS; };
    const int iterations = iterations_of(warpgroup);

    element* k_smem = ring_smem + warpgroup * 2 * RING;  // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + RING;                     // the same
    uint64_t *k_full = ring_full + warpgroup * 2 * STAGES, *v_full = k_full + STAGES;
    auto load = [&](int warpgroup, bool is_v, int iteration) {
        const int slot = iteration % STAGES, ring = warpgroup * 2 + is_v;
        uint64_t* full = ring_full + ring * STAGES + slot;
        ptx::mbarrier_arrive_expect(full, TILE * 2);  // a phase ends with its bytes, not before
        Place place{b};
        if (BOUNDED_KV) place = {b, b * (is_v ? batches.v : batches.k) + sequence.first_key, sequence.S_k};
        load_rows<BLOCK_N, BOUNDED_KV>(ring_smem + ring * RING + slot * TILE, is_v ? &v_map : &k_map, full,
                                      (first_tile(warpgroup) + iteration * PARTS) * BLOCK_N, kv_head, place);
    };
    if (threadIdx.x == 0) {
        for (const ptx::TensorMap* map : {&q_map, &k_map, &v_map}) ptx::prefetch_map(map);
        for (int i = 0; i < 1 + WARPGROUPS * 2 * STAGES; i++) ptx::mbarrier_init(q_full + i, 1);
        ptx::fence_mbarrier_init();                          // TMA sees the mbarriers initialised
        ptx::mbarrier_arrive_expect(q_full, ROWS * D * 2);  // as with the ring
        if (EARLY) ptx::grid_dependency_wait();  // kernels before have written Q, K, V and read out
        load_rows<ROWS, BOUNDED_Q>(q_smem, &q_map, q_full, first_row, h,
                                   {b, sequence.first_row, sequence.S_q});
#pragma unroll
        for (int i = 0; i < STAGES * 2 * WARPGROUPS; i++) {
            const int to = i % WARPGROUPS, is_v = i / WARPGROUPS % 2, iteration = i / WARPGROUPS / 2;
            if (iteration < iterations_of(to)) load(to, is_v, iteration);
        }
    }
    if (CLUSTER > 1 && threadIdx.x == 32) {
        for (int i = 0; i < (2 + HEAD_NORM) * WARPS; i++) ptx::mbarrier_init(far_full + i, 1);
        ptx::fence_mbarrier_init();  // the other block sees these
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            ptx::mbarrier_arrive_expect(far_full + i, 128);          // as with the ring
            ptx::mbarrier_arrive_expect(share_full + i, OWN * 128);  // the same
            if (HEAD_NORM) ptx::mbarrier_arrive_expect(norm_full + i, 128);  // the same
        }
    }
    __syncthreads();  // the other threads see the mbarriers too
    if (CLUSTER > 1) ptx::cluster_arrive_relaxed();
    const Scale scale(sizes.softmax_scale_log2());

    Scores s_rmem;
    P p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    const int warp_row = first_row + warp * WARP_ROWS;
    ptx::mbarrier_wait(q_full, 0);  // Q has arrived, and kernels before have ended
    if (EARLY) ptx::grid_dependency_launch();  // the next kernel may begin where blocks of this one end
    const Adjustment adjustment(sizes, sequence, h);
    auto one_iteration = [&](int iteration) {
        const int slot = iteration % STAGES, parity = iteration / STAGES % 2;
        const int first_key = (first_tile(warpgroup) + iteration * PARTS) * BLOCK_N;
        ptx::mbarrier_wait(k_full + slot, parity);  // K has arrived
        issue_qk(s_rmem, q_smem, k_smem + slot * TILE);
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        if (ADJUSTED)
            adjust_tile(s_rmem, adjustment, mask.diagonal(warp_row + lane / 4) - first_key, lane);
        const Interval first_sees = mask.interval(warp_row);
        const Interval last_sees = mask.interval(warp_row + WARP_ROWS - 1);
        const bool left_edge = last_sees.begin > 0 && first_key < last_sees.begin;
        if (left_edge || first_key + BLOCK_N > first_sees.end || scale.sign != 1.0f) {
            const int row = warp_row + lane / 4;
            mask_tile(s_rmem, {mask.interval(row).from(first_key), mask.interval(row + 8).from(first_key)},
                      scale.sign, lane);
        }
        const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);
        if (iteration > 0) rescale_o_and_l(o_rmem, l, rescale);
        exponentiate<false, 0, 0, HALF>(p_rmem, s_rmem, m, l, scale_left);
        ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived
        issue_pv<0, HALF>(o_rmem, p_rmem, v_smem + slot * TILE);
        exponentiate<false, 0, HALF, BLOCK_N>(p_rmem, s_rmem, m, l, scale_left);  // under the first half's
        issue_pv<HALF, BLOCK_N>(o_rmem, p_rmem, v_smem + slot * TILE);
    };
    for (int iteration = 0; iteration + 1 < iterations; iteration++) {
        one_iteration(iteration);
        ptx::wgmma_wait<0>();  // O is whole
        ptx::wgmma_pin(o_rmem);
        if (iteration + STAGES < iterations) {
            ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the slots filled again
            if (threadIdx.x % 128 == 0)
                for (int is_v = 0; is_v < 2; is_v++) load(warpgroup, is_v, iteration + STAGES);
        }
    }
    if (iterations > 0) one_iteration(iterations - 1);

    auto first_column = [&] { return 2 * (warpgroup * LEFT + rank * OWN); };  // of the warp's part of O
    uint2 gate_rmem[OWN / 4];  // fetched while the parts merge
    if (GATE) load_gate<OWN>(gate_rmem, sizes.features, sequence, h, warp_row, first_column(), lane);

    // Under the last P V: m and l, in the block and across.
    const int box = threadIdx.x / 32, other_box = (box + 4) % WARPS;
    RowState factor, other_factor = {};
    l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);
    if (WARPGROUPS > 1) {
        if (lane % 4 == 0) near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);
        ptx::bar_sync(1 + WARPGROUPS + warp, 64);  // the two warps have told each other
        const float4 other = near_smem[box * 8 + lane / 4];
        join(m, l, other, factor, other_factor);
    }
    if (CLUSTER > 1) {
        ptx::cluster_wait();  // the other block has started, its mbarriers are initialised
        const float state[4] = {m[0], m[1], l[0], l[1]};
        if (lane % 4 == 0)
            ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank ^ 1);
    }
    ptx::wgmma_wait<0>();  // O is whole
    ptx::wgmma_pin(o_rmem);
    if (WARPGROUPS > 1) {
#pragma unroll
        for (int i = 0; i < LEFT; i += 4) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float low = o_rmem[i + j] * factor[j / 2], high = o_rmem[i + j + LEFT] * factor[j / 2];
                o_rmem[i + j] = warpgroup ? high : low;
                x[j] = warpgroup ? low : high;
            }
            sum_smem[(other_box * LEFT / 4 + i / 4) * 32 + lane] = make_float4(x[0], x[1], x[2], x[3]);
        }
        ptx::bar_sync(1 + WARPGROUPS + warp, 64);  // the two warps have stored what they give away
#pragma unroll
        for (int i = 0; i < LEFT; i += 4) {
            const float4 x = sum_smem[(box * LEFT / 4 + i / 4) * 32 + lane];
            o_rmem[i] += x.x, o_rmem[i + 1] += x.y, o_rmem[i + 2] += x.z, o_rmem[i + 3] += x.w;
        }
    }
    factor[0] = factor[1] = 1.0f;
    if (CLUSTER > 1) {
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float low = o_rmem[i + j], high = o_rmem[i + j + OWN];
                o_rmem[i + j] = rank ? high : low;
                x[j] = rank ? low : high;
            }
            ptx::store_async(share_smem + (box * OWN / 4 + i / 4) * 32 + lane, x, share_full + box, rank ^ 1);
        }
        ptx::mbarrier_wait_cluster(far_full + box, 0);  // m and l of the other block have come
        const float4 other = far_smem[box * 8 + lane / 4];
        join(m, l, other, factor, other_factor);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row + lane / 4 + 8 * r;
        const float beside_sink = join_sink(m[r], l[r], sizes, h);  // m and l are of all parts
        if (lse && rank == 0 && warpgroup == 0 && lane % 4 == 0 && row < sequence.S_q)  // one part
            lse[sizes.rows_before(sequence, h) + row] = log_sum_exp(m[r], l[r]);
        // Of a row without keys: 0, not 0 / 0.
        const float inv_l = l[r] == 0 ? 0.0f : __fdividef(1.0f, l[r]) * beside_sink;
        factor[r] *= inv_l, other_factor[r] *= inv_l;
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) o_rmem[i] *= factor[i / 2 % 2];
    if (CLUSTER > 1) {
        ptx::mbarrier_wait_cluster(share_full + box, 0);  // the other block's part of these columns has come
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            const float4 x = share_smem[(box * OWN / 4 + i / 4) * 32 + lane];
            o_rmem[i] += other_factor[0] * x.x, o_rmem[i + 1] += other_factor[0] * x.y;
            o_rmem[i + 2] += other_factor[1] * x.z, o_rmem[i + 3] += other_factor[1] * x.w;
        }
    }
    if (HEAD_NORM) {
        RowState squares;  // of the warp's columns, then of all
        sum_squares<OWN>(squares, o_rmem);
        if (WARPGROUPS > 1) {
            // The two warps have read the m and l of near_smem: they met since, to trade O.
            if (lane % 4 == 0)
                near_smem[other_box * 8 + lane / 4] = make_float4(squares[0], squares[1], 0, 0);
            ptx::bar_sync(1 + WARPGROUPS + warp, 64);  // the two warps have told each other
            const float4 other = near_smem[box * 8 + lane / 4];
            squares[0] += other.x, squares[1] += other.y;
        }
        if (CLUSTER > 1) {
            const float mine[4] = {squares[0], squares[1]};
            if (lane % 4 == 0)
                ptx::store_async(norm_smem + box * 8 + lane / 4, mine, norm_full + box, rank ^ 1);
            ptx::mbarrier_wait_cluster(norm_full + box, 0);  // the squares of the other block have come
            const float4 other = norm_smem[box * 8 + lane / 4];
            squares[0] += other.x, squares[1] += other.y;
        }
        norm_columns<OWN, D>(o_rmem, squares, sizes.features, h, first_column(), lane);
    }
    if (GATE) gate_columns<OWN>(o_rmem, gate_rmem, lane);
    out += out_strides.at(b, h, sequence.first_row) + first_column();
    const bool odd = lane % 2;
    uint32_t pairs[OWN / 2];
    pack_output<OWN>(pairs, o_rmem);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row + lane / 4 + 8 * r;
#pragma unroll
        for (int i = 2 * r; i < OWN; i += 8) {  // two lanes trade: each has 4 columns in a row then, of 16
            const uint32_t low = pairs[i / 2], high = pairs[i / 2 + 2];
            const uint32_t other = __shfl_xor_sync(ALL_LANES, odd ? low : high, 1);
            const int column = i / 8 * 16 + odd * 8 + lane % 4 / 2 * 4;
            if (row < sequence.S_q)
                *reinterpret_cast<uint2*>(out + row * out_strides.row + column) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
        }
    }
}
