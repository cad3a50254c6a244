// Stage 14: Hopper's two engines. One thread asks the copy engine for whole tiles, and four warps together
// ask the tensor core for whole products.
//
// A block is one warpgroup. It owns 64 query rows of one head and walks over K/V tiles of BLOCK_N keys: lane
// 4g + t of warp w holds rows 16w + g and 16w + g + 8 of S, P, O, m and l (warpgroup_rows.cuh). Shared memory
// has Q, and O at the end, and a ring of STAGES slots of K and V.
// Loads: TMA fills a slot from a tensor map: no thread computes an address, and rows past the end of K arrive
// as zeros. One mbarrier per slot and tensor counts the bytes, so V need not be there when Q K^T starts.
// S = Q K^T: both operands are read from shared memory. Softmax: P takes the registers of S.
// O += P V: P is read from registers, V from shared memory as it arrived.
// The products run while the threads go on, but here each is waited for at once. Blocks hide each other:
// several share an SM, and one multiplies while another computes its exponentials. TMA also stores O.
#include "warpgroup_rows.cuh"

constexpr int TILE = BLOCK_N * D;  // elements

extern "C" __global__ void __launch_bounds__(128, BLOCKS_PER_SM)
tma_wgmma(const __grid_constant__ ptx::TensorMap q_map,    // [B, H, S_q, D], boxes of [64, 64]
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
          const __grid_constant__ ptx::TensorMap v_map,    // the same
          const __grid_constant__ ptx::TensorMap out_map,  // [B, H, S_q, D], boxes of [16, 64]
          float* lse,                                      // [B, H, S_q] or null
          SIZES) {
    const Sizes sizes = SIZES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);                          // [64, D], at the end O
    element* k_smem = q_smem + ROWS * D;                                      // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + STAGES * TILE;                                 // [STAGES, BLOCK_N, D]
    uint64_t* q_full = reinterpret_cast<uint64_t*>(v_smem + STAGES * TILE);
    uint64_t *k_full = q_full + 1, *v_full = k_full + STAGES;              // [STAGES] each
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.y, b = blockIdx.z;
    const int first_row = blockIdx.x * ROWS, warp_row = first_row + warp * WARP_ROWS;
    const Mask mask(sizes);
    const int last_row = min(first_row + ROWS, sizes.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval tiles = block_keys.tiles(BLOCK_N);
    const Scale scale(sizes.scale_log2);

    auto load_keys = [&](int tile) {  // by one thread
        const int slot = tile % STAGES;
        ptx::mbarrier_arrive_expect(k_full + slot, TILE * 2);  // a phase ends with its bytes, not before
        load_tile<BLOCK_N>(k_smem + slot * TILE, &k_map, k_full + slot, tile * BLOCK_N, h / sizes.group, b);
        ptx::mbarrier_arrive_expect(v_full + slot, TILE * 2);  // the same
        load_tile<BLOCK_N>(v_smem + slot * TILE, &v_map, v_full + slot, tile * BLOCK_N, h / sizes.group, b);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < 1 + 2 * STAGES; i++) ptx::mbarrier_init(q_full + i, 1);
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
        ptx::mbarrier_arrive_expect(q_full, ROWS * D * 2);
        load_tile<ROWS>(q_smem, &q_map, q_full, first_row, h, b);
        for (int tile = tiles.begin; tile < min(tiles.begin + STAGES, tiles.end); tile++) load_keys(tile);
    }
    __syncthreads();  // the other threads see them too

    Scores s_rmem;
    P p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    ptx::mbarrier_wait(q_full, 0);  // Q has arrived
    for (int tile = tiles.begin; tile < tiles.end; tile++) {
        const int slot = tile % STAGES, parity = tile / STAGES % 2, first_key = tile * BLOCK_N;
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
        rescale_o_and_l(o_rmem, l, rescale);
        exponentiate(p_rmem, s_rmem, m, l, scale_left);
        ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived
        issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);
        ptx::wgmma_wait<0>();  // O is whole
        ptx::wgmma_pin(o_rmem);
        __syncthreads();  // every warp's products have read the slot that is filled again, and at the end Q
        if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);
    }

    float* lse_row = lse ? lse + sizes.rows_before(b, h) + warp_row : nullptr;
    normalise(o_rmem, m, l, sizes, sizes.sequence(b), h, lse_row, warp_row, lane);
    store_rows(q_smem, &out_map, o_rmem, warp, lane, warp_row, h, {b});
}
