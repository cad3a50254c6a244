// Stage 15: FlashAttention-3. One warp loads, CONSUMERS warpgroups multiply, and softmax hides under wgmma.
#include "warpgroup_rows.cuh"

constexpr int BLOCK_M = CONSUMERS * ROWS, THREADS = 128 * (CONSUMERS + 1), WARPS = 4 * CONSUMERS;
constexpr int Q_TILE = ROWS * D, KV_TILE = BLOCK_N * D;

// A place in a ring of STAGES slots and the parity of its mbarriers' phase, which flips with every round.
struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

// S = Q K^T of one warp alone, on mma.sync, whose registers are those of wgmma.
__device__ __forceinline__ void multiply_qk_again(Scores& s_rmem, const half* q_smem, const half* k_smem,
                                                  int warp, int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) s_rmem[i] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < D / 16; k++) {
        const int swizzle = lane % 8, chunk = k % 4 * 2;
        uint32_t q_rmem[4];
        const half* q_row = q_smem + k / 4 * ROWS * 64 + (warp * WARP_ROWS + lane % 16) * 64;
        ptx::ldmatrix_x4(q_rmem, q_row + ((chunk + lane / 16) ^ swizzle) * 8);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; n++) {
            uint32_t k_rmem[4];  // 16 keys
            const half* k_row = k_smem + k / 4 * BLOCK_N * 64 + (16 * n + lane / 16 * 8 + lane % 8) * 64;
            ptx::ldmatrix_x4(k_rmem, k_row + ((chunk + lane / 8 % 2) ^ swizzle) * 8);
            ptx::mma_m16n8k16(*(float(*)[4])(s_rmem + 8 * n), q_rmem, k_rmem[0], k_rmem[1]);
            ptx::mma_m16n8k16(*(float(*)[4])(s_rmem + 8 * n + 4), q_rmem, k_rmem[2], k_rmem[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
ping_pong(const __grid_constant__ ptx::TensorMap q_map,    // [B, H, S_q, D], boxes of 64 rows
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of BLOCK_N rows
          const __grid_constant__ ptx::TensorMap v_map,    // the same
          const __grid_constant__ ptx::TensorMap out_map,  // [B, H, S_q, D], boxes of 16 rows
          float* lse,                                      // [B, H, S_q] or null
          int S_q, int S_k, int H, int group, float scale_log2, int causal, int heads, int longest_first) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* q_smem = (half*)smem;                   // [CONSUMERS, 64, D]; in the end O
    half* k_smem = q_smem + CONSUMERS * Q_TILE;   // [STAGES, BLOCK_N, D]
    half* v_smem = k_smem + STAGES * KV_TILE;     // [STAGES, BLOCK_N, D]
    uint64_t* k_full = (uint64_t*)(v_smem + STAGES * KV_TILE);
    uint64_t *v_full = k_full + STAGES, *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;
    uint64_t* q_full = v_empty + STAGES;

    const int row_tile = longest_first ? gridDim.y - 1 - blockIdx.y : blockIdx.x;
    const int head = longest_first ? blockIdx.z * gridDim.x + blockIdx.x : blockIdx.z * gridDim.y + blockIdx.y;
    if (head >= heads) return;
    const int b = head / H, h = head % H, first_row = row_tile * BLOCK_M;
    auto keys_seen = [&](int row) { return causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k; };
    auto tiles_up_to = [&](int row) { return max(1, (keys_seen(row) + BLOCK_N - 1) / BLOCK_N); };
    const int tiles = tiles_up_to(min(first_row + BLOCK_M, S_q) - 1);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(k_full + i, 1);
            ptx::mbarrier_init(v_full + i, 1);
            ptx::mbarrier_init(k_empty + i, WARPS);
            ptx::mbarrier_init(v_empty + i, WARPS);
        }
        ptx::mbarrier_init(q_full, 1);
        ptx::fence_mbarrier_init();  // the copy engine sees the mbarriers,
    }
    __syncthreads();  // and so do all threads
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (threadIdx.x != 0) return;
        ptx::mbarrier_arrive_expect(q_full, CONSUMERS * Q_TILE * 2);
        for (int i = 0; i < CONSUMERS; i++)
            load_tile<ROWS>(q_smem + i * Q_TILE, &q_map, q_full, first_row + i * ROWS, h, b);
        Ring k_ring, v_ring;
        for (int tile = tiles; tile >= 0; tile--) {  // K of tile - 1, then V of tile
            if (tile > 0) {
                ptx::mbarrier_wait(k_empty + k_ring.slot, k_ring.parity ^ 1);  // all warps have read K
                ptx::mbarrier_arrive_expect(k_full + k_ring.slot, KV_TILE * 2);
                load_tile<BLOCK_N>(k_smem + k_ring.slot * KV_TILE, &k_map, k_full + k_ring.slot,
                                   (tile - 1) * BLOCK_N, h / group, b);
                k_ring.next();
            }
            if (tile < tiles) {
                ptx::mbarrier_wait(v_empty + v_ring.slot, v_ring.parity ^ 1);  // all warps have read V
                ptx::mbarrier_arrive_expect(v_full + v_ring.slot, KV_TILE * 2);
                load_tile<BLOCK_N>(v_smem + v_ring.slot * KV_TILE, &v_map, v_full + v_ring.slot,
                                   tile * BLOCK_N, h / group, b);
                v_ring.next();
            }
        }
        return;
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int group_row = first_row + consumer * ROWS, lane_row = group_row + warp * WARP_ROWS + lane / 4;
    const float sign = scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f;
    scale_log2 = scale_log2 == 0 ? 1.0f : fabsf(scale_log2);
    const int whole = sign == 1.0f ? keys_seen(group_row) / BLOCK_N : 0;  // tiles that need no mask
    q_smem += consumer * Q_TILE;

    auto begin_turn = [&] {
        // The tensor cores are this warpgroup's: the one before it has issued its products.
        if (PING_PONG) ptx::bar_sync(1 + consumer, 256);
    };
    auto end_turn = [&] {
        if (PING_PONG) ptx::bar_arrive(consumer + 1 == CONSUMERS ? 1 : 2 + consumer, 256);
    };
    auto release = [&](uint64_t* empty) {
        if (lane == 0) ptx::mbarrier_arrive(empty);
    };
    if (PING_PONG && consumer + 1 == CONSUMERS) ptx::bar_arrive(1, 256);  // the first turn is warpgroup 1's

    Scores s_rmem;
    Output o_rmem = {};
    Weights p_rmem;
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f};
    float scale_left = scale_log2;  // see raise_reference
    Ring k_ring, v_ring;
    int tile = tiles - 1;
    for (const int own = tiles_up_to(min(group_row + ROWS, S_q) - 1); tile >= own; tile--) {
        begin_turn();  // other warpgroups see keys of this tile, this one does not
        end_turn();
        ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);
        release(k_empty + k_ring.slot);
        k_ring.next();
        ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);
        release(v_empty + v_ring.slot);
        v_ring.next();
    }
    RowState rescale;
    auto softmax = [&] {  // with mask, maximum and rescaling
        if (tile >= whole) {
            const int first_key = tile * BLOCK_N;
            const int seen[2] = {keys_seen(lane_row) - first_key, keys_seen(lane_row + 8) - first_key};
            mask(s_rmem, seen, sign, lane);
        }
        scale_left = raise_reference(s_rmem, m, rescale, scale_log2);
        l[0] *= rescale[0], l[1] *= rescale[1];
        exponentiate(s_rmem, m, l, scale_left);
    };
    ptx::mbarrier_wait(q_full, 0);
    ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);
    begin_turn();
    issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
    end_turn();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(s_rmem);
    release(k_empty + k_ring.slot);
    softmax();
    pack(p_rmem, s_rmem);

    while (tile-- > 0) {
        k_ring.next();
        ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);
        ptx::wgmma_pin(o_rmem);
        begin_turn();
        issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
        ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);
        issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
        end_turn();
        ptx::wgmma_wait<OVERLAP>();
        ptx::wgmma_pin(s_rmem);
        if (!LAZY_MAX) release(k_empty + k_ring.slot);
        const bool lazy = LAZY_MAX && tile < whole && scale_left == scale_log2;
        const bool done = lazy && exponentiate<true, POLYNOMIALS>(s_rmem, m, l, scale_log2);
        if (!done) {
            if (lazy) {
                multiply_qk_again(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE, warp, lane);
                __syncwarp();  // all lanes have read K before lane 0 says so
            }
            softmax();
        }
        if (LAZY_MAX) release(k_empty + k_ring.slot);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(o_rmem);
        ptx::wgmma_pin(s_rmem);
        release(v_empty + v_ring.slot);
        v_ring.next();
        if (!done)
#pragma unroll
            for (int i = 0; i < D / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
        pack(p_rmem, s_rmem);
    }
    ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);
    issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(o_rmem);
    const int warp_row = group_row + warp * WARP_ROWS;
    normalise(o_rmem, m, l, lse ? lse + (int64_t)head * S_q + warp_row : nullptr, S_q - warp_row, lane);
    store_rows(q_smem, &out_map, o_rmem, warp, lane, warp_row, h, b);
}
