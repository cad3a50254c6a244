// Attention, the residual and LayerNorm or RMSNorm over all heads of a row, in one launch.
//
// A cluster owns 64 query rows of all HEADS heads, and a head has CLUSTER of its blocks, each of two
// warpgroups. These PARTS of a head divide its K/V tiles and merge as in stage 16: lane 4g + t of warp w has
// rows 16w + g and 16w + g + 8. In the end a warp has D / PARTS columns of 16 rows of O, and adds the
// residual's: x. It stays in registers, is normalised there and written once.
// Norm: SHARES warps have parts of a row. Each sends the mean and M2 of its columns to every block, through
// distributed shared memory, 16 bytes for two rows; an mbarrier per 16 rows counts the bytes (row_norm.cuh).
// A block is written to only after it has started (cluster barrier), and it ends after all its messages have
// come. Each message has a place of its own, so no warp waits to send.
// EARLY: launched so that it may begin under the end of the kernel before, for which every thread then waits.
#include "row_norm.cuh"
#include "warpgroup_rows.cuh"

constexpr int WARPGROUPS = 2, WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS, PARTS = CLUSTER * WARPGROUPS;
constexpr int TILE = BLOCK_N * D, RING = STAGES * TILE, HALF = BLOCK_N / 2;
constexpr int LEFT = D / 2 / WARPGROUPS, OWN = LEFT / CLUSTER;  // accumulators after the two sums
constexpr int BLOCKS = HEADS * CLUSTER, SHARES = HEADS * PARTS;  // of a cluster; warps that share a row
static_assert(CLUSTER <= 2 && BLOCKS <= 16, "a sum in the block and one across; all that a cluster holds");

extern "C" __global__ void __cluster_dims__(CLUSTER, HEADS, 1) __launch_bounds__(THREADS, 1)
epilogue_norm(const __grid_constant__ ptx::TensorMap q_map,  // [B, H, S_q, D], boxes of [64, 64]
              const __grid_constant__ ptx::TensorMap k_map,  // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
              const __grid_constant__ ptx::TensorMap v_map,  // the same
              const element* residual,                       // [B, S_q, H * D], or null
              const element* weight, const element* bias,    // [H * D]; bias may be null
              element* out, element* sum,                    // [B, S_q, H * D]; sum, before the norm, or null
              ROW_STRIDES(residual), ROW_STRIDES(out), ROW_STRIDES(sum), SIZES, float eps) {
    const Sizes sizes = SIZES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [64, D]
    element* ring_smem = q_smem + ROWS * D;              // [WARPGROUPS, K and V, STAGES, BLOCK_N, D]
    float4* sum_smem = reinterpret_cast<float4*>(ring_smem + WARPGROUPS * 2 * RING);  // [WARPS, LEFT / 4, 32]
    float4* share_smem = sum_smem + WARPS * LEFT * 8;                  // [WARPS, OWN / 4, 32]
    float4* near_smem = share_smem + (CLUSTER - 1) * WARPS * OWN * 8;  // [WARPS, 8]: m, l of the same block
    float4* far_smem = near_smem + WARPS * 8;                          // [WARPS, 8]: of the head's other one
    float4* moments_smem = far_smem + (CLUSTER - 1) * WARPS * 8;       // [4, SHARES, 8]: mean, M2 of two rows
    uint64_t* q_full = reinterpret_cast<uint64_t*>(moments_smem + 4 * SHARES * 8);
    uint64_t* ring_full = q_full + 1;                              // [WARPGROUPS, K and V, STAGES]
    uint64_t* moments_full = ring_full + WARPGROUPS * 2 * STAGES;  // [4], by 16 rows
    uint64_t* far_full = moments_full + 4;                         // [WARPS], for far_smem
    uint64_t* share_full = far_full + WARPS;                       // [WARPS], for share_smem
    // The shuffle shows the compiler that the value is uniform across the warp, and so are tiles' addresses.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, cluster_rank = ptx::cluster_rank(), rank = cluster_rank % CLUSTER;
    const int h = blockIdx.y, b = blockIdx.z, kv_head = sizes.group == 1 ? h : h / sizes.group;
    const int first_row = blockIdx.x / CLUSTER * ROWS, warp_row = first_row + warp * WARP_ROWS;
    const Mask mask(sizes);
    const int tiles = mask.interval(min(first_row + ROWS, sizes.S_q) - 1).tiles(BLOCK_N).end;
    auto first_tile = [&](int warpgroup) { return warpgroup * CLUSTER + rank; };
    auto iterations_of = [&](int w) { return (tiles - first_tile(w) + PARTS - 1) / PARTS; };
    const int iterations = iterations_of(warpgroup);

    element* k_smem = ring_smem + warpgroup * 2 * RING;  // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + RING;                     // the same
    uint64_t *k_full = ring_full + warpgroup * 2 * STAGES, *v_full = k_full + STAGES;
    auto load = [&](int warpgroup, bool is_v, int iteration) {
        const int slot = iteration % STAGES, ring = warpgroup * 2 + is_v;
        uint64_t* full = ring_full + ring * STAGES + slot;
        ptx::mbarrier_arrive_expect(full, TILE * 2);  // a phase ends with its bytes, not before
        load_tile<BLOCK_N>(ring_smem + ring * RING + slot * TILE, is_v ? &v_map : &k_map, full,
                           (first_tile(warpgroup) + iteration * PARTS) * BLOCK_N, kv_head, b);
    };
    if (threadIdx.x == 0) {
        for (const ptx::TensorMap* map : {&q_map, &k_map, &v_map}) ptx::prefetch_map(map);
        for (int i = 0; i < 1 + WARPGROUPS * 2 * STAGES; i++) ptx::mbarrier_init(q_full + i, 1);
        ptx::fence_mbarrier_init();                         // TMA sees the mbarriers initialised
        ptx::mbarrier_arrive_expect(q_full, ROWS * D * 2);  // as with the ring
        if (EARLY) ptx::grid_dependency_wait();             // kernels before have written Q, K, V
        load_tile<ROWS>(q_smem, &q_map, q_full, first_row, h, b);
#pragma unroll
        for (int i = 0; i < STAGES * 2 * WARPGROUPS; i++) {
            const int to = i % WARPGROUPS, is_v = i / WARPGROUPS % 2, iteration = i / WARPGROUPS / 2;
            if (iteration < iterations_of(to)) load(to, is_v, iteration);
        }
    }
    if (threadIdx.x == 32) {
        for (int i = 0; i < 4 + (CLUSTER - 1) * 2 * WARPS; i++) ptx::mbarrier_init(moments_full + i, 1);
        ptx::fence_mbarrier_init();  // the other blocks see these
        for (int i = 0; i < 4; i++) ptx::mbarrier_arrive_expect(moments_full + i, SHARES * 128);  // as above
        for (int i = 0; i < (CLUSTER - 1) * WARPS; i++) {
            ptx::mbarrier_arrive_expect(far_full + i, 128);          // the same
            ptx::mbarrier_arrive_expect(share_full + i, OWN * 128);  // the same
        }
    }
    __syncthreads();  // the other threads see the mbarriers too
    ptx::cluster_arrive_relaxed();
    const Scale scale(sizes.softmax_scale_log2());

    if (EARLY) ptx::grid_dependency_wait();  // kernels before have written the residual and read out
    const int column = h * D + 2 * (warpgroup * LEFT + rank * OWN);  // the warp's first
    const int inside = sizes.S_q - warp_row;                         // rows from the warp's first on
    uint32_t residual_rmem[OWN / 2] = {};                            // fetched under the attention
    if (residual)
        load_columns<OWN>(residual_rmem, residual + b * residual_batch + warp_row * residual_row + column,
                          residual_row, inside, lane);

    Scores s_rmem;
    P p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    ptx::mbarrier_wait(q_full, 0);             // Q has arrived
    if (EARLY) ptx::grid_dependency_launch();  // the next kernel may begin where blocks of this one end
    auto one_iteration = [&](int iteration) {
        const int slot = iteration % STAGES, parity = iteration / STAGES % 2;
        const int first_key = (first_tile(warpgroup) + iteration * PARTS) * BLOCK_N;
        ptx::mbarrier_wait(k_full + slot, parity);  // K has arrived
        issue_qk(s_rmem, q_smem, k_smem + slot * TILE);
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        if (first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f) {
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

    // Under the last P V: m and l, in the block and across.
    const int box = threadIdx.x / 32, other_box = (box + 4) % WARPS;
    RowState factor, other_factor = {};
    l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);
    if (lane % 4 == 0) near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);
    ptx::bar_sync(3 + warp, 64);  // the two warps have told each other
    join(m, l, near_smem[box * 8 + lane / 4], factor, other_factor);
    ptx::cluster_wait();  // the other blocks have started, their mbarriers are initialised
    if (CLUSTER > 1 && lane % 4 == 0) {
        const float state[4] = {m[0], m[1], l[0], l[1]};
        ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, cluster_rank ^ 1);
    }
    ptx::wgmma_wait<0>();  // O is whole
    ptx::wgmma_pin(o_rmem);
#pragma unroll
    for (int i = 0; i < D / 2; i++) o_rmem[i] *= factor[i / 2 % 2];
    trade_halves<LEFT>(o_rmem, warpgroup, [&](int i, const float (&x)[4]) {
        sum_smem[(other_box * LEFT / 4 + i) * 32 + lane] = make_float4(x[0], x[1], x[2], x[3]);
    });
    ptx::bar_sync(3 + warp, 64);  // the two warps have stored what they give away
#pragma unroll
    for (int i = 0; i < LEFT; i += 4) {
        const float4 x = sum_smem[(box * LEFT / 4 + i / 4) * 32 + lane];
        o_rmem[i] += x.x, o_rmem[i + 1] += x.y, o_rmem[i + 2] += x.z, o_rmem[i + 3] += x.w;
    }
    factor[0] = factor[1] = 1.0f;
    if (CLUSTER > 1) {
        trade_halves<OWN>(o_rmem, rank, [&](int i, const float (&x)[4]) {
            ptx::store_async(share_smem + (box * OWN / 4 + i) * 32 + lane, x, share_full + box,
                             cluster_rank ^ 1);
        });
        ptx::mbarrier_wait_cluster(far_full + box, 0);  // m and l of the head's other block have come
        join(m, l, far_smem[box * 8 + lane / 4], factor, other_factor);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) factor[r] *= inverse_sum(l[r]), other_factor[r] *= inverse_sum(l[r]);
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

    add_columns<OWN>(o_rmem, residual_rmem);  // O is x now
    float moments[4];
    moments_of<OWN, !RMS>(moments, o_rmem);
    float4* rows_smem = moments_smem + warp * SHARES * 8;
    const int share = cluster_rank * WARPGROUPS + warpgroup;
    for (int to = lane % 4; to < BLOCKS; to += 4)
        ptx::store_async(rows_smem + moments_at(share, lane / 4), moments, moments_full + warp, to);
    if (sum)
        store_columns<OWN>(sum + b * sum_batch + warp_row * sum_row + column, sum_row, o_rmem, inside, lane);
    uint32_t weight_rmem[OWN / 4], bias_rmem[OWN / 4] = {};  // fetched under the messages
    load_row<OWN>(weight_rmem, weight + column, lane);
    if (bias) load_row<OWN>(bias_rmem, bias + column, lane);
    ptx::mbarrier_wait_cluster(moments_full + warp, 0);  // the moments of all shares of these rows have come
    normalise_rows<OWN, SHARES, !RMS>(o_rmem, rows_smem, eps, lane);
    scale_columns<OWN>(o_rmem, weight_rmem, bias_rmem);
    store_columns<OWN>(out + b * out_batch + warp_row * out_row + column, out_row, o_rmem, inside, lane);
}
