// Stage 15: FlashAttention-3. One warp loads, CONSUMERS warpgroups multiply, and softmax hides under wgmma.
#include "warpgroup_rows.cuh"

constexpr int BLOCK_M = CONSUMERS * ROWS, THREADS = 128 * (CONSUMERS + 1), WARPS = 4 * CONSUMERS;
constexpr int Q_TILE = ROWS * D, KV_TILE = BLOCK_N * D;

// A place in a ring of STAGES slots, and the parity of the phase that its mbarriers are in.
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
ping_pong(const __grid_constant__ ptx::TensorMap q_map,    // [B, H, S_q, D], boxes of [64, 64]
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
          const __grid_constant__ ptx::TensorMap v_map,    // the same
          const __grid_constant__ ptx::TensorMap out_map,  // [B, H, S_q, D], boxes of [16, 64]
          float* lse,                                      // [B, H, S_q] or null
          int S_q, int S_k, int H, int group, float scale_log2, int causal, int heads, int heads_together) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* q_smem = (half*)smem;                                  // [CONSUMERS, 64, D]
    half* o_smem = q_smem + PERSISTENT * CONSUMERS * Q_TILE;     // the same; in the place of Q if that is not needed again
    half* k_smem = o_smem + CONSUMERS * Q_TILE;                  // [STAGES, BLOCK_N, D]
    half* v_smem = k_smem + STAGES * KV_TILE;                    // [STAGES, BLOCK_N, D]
    uint64_t* k_full = (uint64_t*)(v_smem + STAGES * KV_TILE);   // [STAGES], as the next three
    uint64_t *v_full = k_full + STAGES, *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;
    uint64_t *q_full = v_empty + STAGES, *q_empty = q_full + 1;

    auto keys_seen = [&](int row) { return causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k; };
    auto tiles_up_to = [&](int row) { return max(1, (keys_seen(min(row, S_q) - 1) + BLOCK_N - 1) / BLOCK_N); };
    // Pieces of work: BLOCK_M rows of a head. The last rows of `heads_together` heads, then those before them.
    const int row_tiles = (S_q + BLOCK_M - 1) / BLOCK_M, works = heads * row_tiles;
    struct Work {
        int head, first_row;
    };
    auto work_of = [&](int index) {
        const int block = heads_together * row_tiles, first = index / block * heads_together, i = index % block;
        const int together = min(heads_together, heads - first);
        return Work{first + i % together, (row_tiles - 1 - i / together) * BLOCK_M};
    };
    auto nth_work = [&](int n) {  // of this block; back and forth, so that nobody has the longest of each round
        return n * gridDim.x + (n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(k_full + i, 1);
            ptx::mbarrier_init(v_full + i, 1);
            ptx::mbarrier_init(k_empty + i, WARPS);
            ptx::mbarrier_init(v_empty + i, WARPS);
        }
        ptx::mbarrier_init(q_full, 1);
        ptx::mbarrier_init(q_empty, WARPS);
        ptx::fence_mbarrier_init();  // the copy engine sees the mbarriers,
    }
    __syncthreads();  // and so do all threads
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (threadIdx.x != 0) return;
        Ring k_ring, v_ring;
        for (int n = 0; nth_work(n) < works; n++) {
            const Work work = work_of(nth_work(n));
            const int b = work.head / H, h = work.head % H;
            const int tiles = tiles_up_to(work.first_row + BLOCK_M);
            ptx::mbarrier_wait(q_empty, n % 2 ^ 1);  // all warps have read Q for the last time
            ptx::mbarrier_arrive_expect(q_full, CONSUMERS * Q_TILE * 2);
            for (int i = 0; i < CONSUMERS; i++)
                load_tile<ROWS>(q_smem + i * Q_TILE, &q_map, q_full, work.first_row + i * ROWS, h, b);
            for (int tile = tiles; tile >= 0; tile--) {  // in the order of their use: K of a tile, V of the one before
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
        }
        return;
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const float sign = scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f;
    scale_log2 = scale_log2 == 0 ? 1.0f : fabsf(scale_log2);
    q_smem += consumer * Q_TILE, o_smem += consumer * Q_TILE;

    auto begin_turn = [&] {
        if (PING_PONG) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products
    };
    auto end_turn = [&] {
        if (PING_PONG) ptx::bar_arrive(consumer + 1 == CONSUMERS ? 1 : 2 + consumer, 256);
    };
    auto release = [&](uint64_t* empty) {
        if (lane == 0) ptx::mbarrier_arrive(empty);
    };
    if (PING_PONG && consumer + 1 == CONSUMERS) ptx::bar_arrive(1, 256);  // the first turn is warpgroup 1's

    Ring k_ring, v_ring;
    for (int n = 0; nth_work(n) < works; n++) {
        const Work work = work_of(nth_work(n));
        const int group_row = work.first_row + consumer * ROWS, warp_row = group_row + warp * WARP_ROWS;
        const int own = tiles_up_to(group_row + ROWS);
        const int whole = sign == 1.0f ? keys_seen(group_row) / BLOCK_N : 0;  // tiles that need no mask
        Scores s_rmem;
        Output o_rmem = {};
        Weights p_rmem;
        RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
        float scale_left;  // see raise_reference
        int tile = tiles_up_to(work.first_row + BLOCK_M) - 1;
        auto softmax = [&] {  // with mask, maximum and rescaling
            if (tile >= whole) {
                const int row = warp_row + lane / 4, first_key = tile * BLOCK_N;
                mask(s_rmem, {keys_seen(row) - first_key, keys_seen(row + 8) - first_key}, sign, lane);
            }
            scale_left = raise_reference(s_rmem, m, rescale, scale_log2);
            l[0] *= rescale[0], l[1] *= rescale[1];
            exponentiate(s_rmem, m, l, scale_left);
        };

        for (; tile >= own; tile--) {  // other warpgroups see keys of this tile, this one does not
            begin_turn();
            end_turn();
            ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);  // K has arrived: else it was released early
            release(k_empty + k_ring.slot);
            k_ring.next();
            ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);  // the same of V
            release(v_empty + v_ring.slot);
            v_ring.next();
        }
        ptx::mbarrier_wait(q_full, n % 2);                        // Q has arrived,
        ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);  // and K
        begin_turn();
        issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
        end_turn();
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        release(k_empty + k_ring.slot);
        softmax();
        pack(p_rmem, s_rmem);

        while (tile-- > 0) {
            k_ring.next();
            ptx::mbarrier_wait(k_full + k_ring.slot, k_ring.parity);  // K has arrived
            ptx::wgmma_pin(o_rmem);
            begin_turn();
            issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
            ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);  // V of the tile before has arrived
            issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
            end_turn();
            ptx::wgmma_wait<OVERLAP>();  // S is whole; O and P are not ours yet
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
            ptx::wgmma_wait<0>();  // O is whole, P and V have been read
            ptx::wgmma_pin(o_rmem);
            ptx::wgmma_pin(s_rmem);
            release(v_empty + v_ring.slot);
            v_ring.next();
            if (!done)
#pragma unroll
                for (int i = 0; i < D / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
            pack(p_rmem, s_rmem);
        }
        release(q_empty);
        k_ring.next();
        ptx::mbarrier_wait(v_full + v_ring.slot, v_ring.parity);  // V of the last tile has arrived
        issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
        ptx::wgmma_wait<0>();  // O is whole
        ptx::wgmma_pin(o_rmem);
        release(v_empty + v_ring.slot);
        v_ring.next();
        float* lse_row = lse ? lse + (int64_t)work.head * S_q + warp_row : nullptr;
        normalise(o_rmem, m, l, lse_row, S_q - warp_row, lane);
        store_rows(o_smem, &out_map, o_rmem, warp, lane, warp_row, work.head % H, work.head / H);
        __syncwarp();  // TMA has read o_smem, which lane 0 has waited for, before another lane writes there again
    }
}
