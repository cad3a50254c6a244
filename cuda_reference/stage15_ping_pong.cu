// Stage 15: FlashAttention-3. Loads, products and softmax run at the same time, each on its own unit.
//
// A thread of the first warpgroup loads; CONSUMERS more have most registers and 64 query rows of a head each
// (warpgroup_rows.cuh). K and V pass through rings of STAGES slots: `full` mbarriers count bytes that arrive,
// `empty` ones the warps that are done with a slot.
// Products run on while threads compute. In flight together are S = Q K^T of a tile and O += P V of the tile
// before; OVERLAP: softmax starts when S is there, under P V. So 2^S takes the place of S and is packed when
// P V has read the P before. PING_PONG: warpgroups issue in turn, and one multiplies under others' softmax.
// Tiles go from the last to the first: what a mask touches, with a true maximum, comes first. Then LAZY_MAX
// keeps m; a warp whose weights grow too great does S again alone, on mma.sync, while it still holds K.
// The special-function unit takes as long as the products of D = 64: POLYNOMIALS of 16 exponentials avoid it.
// On an H200 their instructions cost more time and energy than that saves; a fourth warpgroup brings more.
// A block does several pieces of work, BLOCK_M rows of a head, and loads the next under the end of one: O has
// memory beside Q. Under a causal mask the longest come first, and a block that is done draws the next one.
#include "warpgroup_rows.cuh"

constexpr int BLOCK_M = CONSUMERS * ROWS, THREADS = 128 * (CONSUMERS + 1), WARPS = 4 * CONSUMERS;
constexpr int Q_TILE = ROWS * D, KV_TILE = BLOCK_N * D;  // elements

// A place in a ring, and the parity of the phase that its mbarriers are in.
struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

// S = Q K^T of one warp: mma.sync leaves S where wgmma does, and does not need the other three warps.
__device__ __forceinline__ void multiply_again(Scores& s_rmem, const element* q_smem, const element* k_smem,
                                               int warp, int lane) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) s_rmem[i] = 0.0f;
#pragma unroll 1
    for (int k = 0; k < D / 16; k++) {
        const element* q_row = q_smem + k / 4 * ROWS * 64 + (warp * WARP_ROWS + lane % 16) * 64;
        const element* k_row = k_smem + k / 4 * BLOCK_N * 64 + (lane / 16 * 8 + lane % 8) * 64;
        const int q_chunk = k % 4 * 2 + lane / 16, k_chunk = k % 4 * 2 + lane / 8 % 2;
        uint32_t q_rmem[4], k_rmem[4];
        ptx::ldmatrix_x4(q_rmem, q_row + (q_chunk ^ lane % 8) * 8);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; n++) {
            ptx::ldmatrix_x4(k_rmem, k_row + 16 * n * 64 + (k_chunk ^ lane % 8) * 8);
            ptx::mma_m16n8k16(*(float(*)[4])(s_rmem + 8 * n), q_rmem, k_rmem[0], k_rmem[1]);
            ptx::mma_m16n8k16(*(float(*)[4])(s_rmem + 8 * n + 4), q_rmem, k_rmem[2], k_rmem[3]);
        }
    }
}

struct Work {
    int b, h, first_row;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
ping_pong(const __grid_constant__ ptx::TensorMap q_map,    // [B, H, S_q, D], boxes of [64, 64]
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
          const __grid_constant__ ptx::TensorMap v_map,    // the same
          const __grid_constant__ ptx::TensorMap out_map,  // [B, H, S_q, D], boxes of [16, 64]
          float* lse,                                      // [B, H, S_q] or null
          SIZES,
          int heads, int heads_together,                   // B * H, and how many of them go side by side
          unsigned* next_work) {  // 0, and 0 again at the end; or null: every gridDim.x-th piece is a block's
    const Sizes sizes = SIZES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = (element*)smem;               // [CONSUMERS, 64, D]
    element* o_smem = q_smem + CONSUMERS * Q_TILE;  // the same
    element* k_smem = o_smem + CONSUMERS * Q_TILE;  // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + STAGES * KV_TILE;    // [STAGES, BLOCK_N, D]
    uint64_t* k_full = (uint64_t*)(v_smem + STAGES * KV_TILE);
    uint64_t *v_full = k_full + STAGES, *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;  // [STAGES]
    uint64_t *q_full = v_empty + STAGES, *q_empty = q_full + 1;
    int* work_smem = (int*)(q_empty + 1);  // the number of the piece that Q is of

    const Mask mask(sizes);
    auto tiles_before = [&](int row) {  // that rows before this one see keys of; one at least, to mask
        return max(1, (mask.interval(min(row, sizes.S_q) - 1).end + BLOCK_N - 1) / BLOCK_N);
    };
    const int row_tiles = (sizes.S_q + BLOCK_M - 1) / BLOCK_M, works = heads * row_tiles;
    // Rows that fill no block are the first, which see the fewest keys: warpgroups before row 0 are idle.
    const int before_first = row_tiles * BLOCK_M - (sizes.S_q + ROWS - 1) / ROWS * ROWS;
    auto work_at = [&](int index) {
        const int first = index / (heads_together * row_tiles) * heads_together;
        const int i = index - first * row_tiles;
        const int together = min(heads_together, heads - first), head = first + i % together;
        return Work{head / sizes.H, head % sizes.H, (row_tiles - 1 - i / together) * BLOCK_M - before_first};
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
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
    }
    __syncthreads();  // the other threads see them too
    // A shuffle tells the compiler what it cannot know: the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (threadIdx.x != 0) return;
        Ring k_ring, v_ring;
        for (int n = 0, index = blockIdx.x, next;; n++, index = next) {
            auto number_next = [&] {
                ptx::mbarrier_wait(q_empty, n % 2 ^ 1);  // all warps have read the Q before, and its number
                *work_smem = index;
            };
            if (index >= works) {
                number_next();
                ptx::mbarrier_arrive(q_full);  // no Q, but the number, which says that all is done
                return;
            }
            const auto [b, h, first_row] = work_at(index);
            const int tiles = tiles_before(first_row + BLOCK_M);
            for (int tile = tiles; tile >= 0; tile--) {  // as they are used: K of a tile, Q or the V before
                if (tile > 0) {
                    const int slot = k_ring.slot;
                    ptx::mbarrier_wait(k_empty + slot, k_ring.parity ^ 1);  // all warps have read the slot
                    ptx::mbarrier_arrive_expect(k_full + slot, KV_TILE * 2);  // until all of K is there
                    load_tile<BLOCK_N>(k_smem + slot * KV_TILE, &k_map, k_full + slot, (tile - 1) * BLOCK_N,
                                       h / sizes.group, b);
                    k_ring.next();
                }
                if (tile == tiles) {
                    number_next();
                    ptx::mbarrier_arrive_expect(q_full, CONSUMERS * Q_TILE * 2);  // until all of Q is there
                    for (int i = 0; i < CONSUMERS; i++)
                        load_tile<ROWS>(q_smem + i * Q_TILE, &q_map, q_full, first_row + i * ROWS, h, b);
                    // A piece is one draw, so the launch's last draw takes the counter back to 0.
                    next = gridDim.x + (next_work ? atomicInc(next_work, works - 1) : index);
                } else {
                    const int slot = v_ring.slot;
                    ptx::mbarrier_wait(v_empty + slot, v_ring.parity ^ 1);  // all warps have read the slot
                    ptx::mbarrier_arrive_expect(v_full + slot, KV_TILE * 2);  // until all of V is there
                    load_tile<BLOCK_N>(v_smem + slot * KV_TILE, &v_map, v_full + slot, tile * BLOCK_N,
                                       h / sizes.group, b);
                    v_ring.next();
                }
            }
        }
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const Scale scale(sizes.scale_log2);
    q_smem += consumer * Q_TILE, o_smem += consumer * Q_TILE;

    auto begin_turn = [&] {
        if (PING_PONG) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products
    };
    auto end_turn = [&] {  // the next one may issue
        if (PING_PONG) ptx::bar_arrive(consumer + 1 == CONSUMERS ? 1 : 2 + consumer, 256);
    };
    auto fetched = [&](uint64_t* full, const Ring& at) {
        ptx::mbarrier_wait(full + at.slot, at.parity);  // the tile is there
    };
    auto release = [&](uint64_t* empty) {  // this warp has read it
        if (lane == 0) ptx::mbarrier_arrive(empty);
    };
    if (PING_PONG && consumer + 1 == CONSUMERS) ptx::bar_arrive(1, 256);  // the first turn is consumer 0's

    Ring k_ring, v_ring;
    for (int n = 0;; n++) {
        ptx::mbarrier_wait(q_full, n % 2);  // Q is there, and its number
        const int index = __shfl_sync(ALL_LANES, lane == 0 ? *work_smem : 0, 0);  // lane 0 releases it
        if (index >= works) return;
        const auto [b, h, first_row] = work_at(index);
        const int group_row = first_row + consumer * ROWS, warp_row = group_row + warp * WARP_ROWS;
        const int own_tiles = group_row < 0 ? 0 : tiles_before(group_row + ROWS);
        // Tiles before this one need no mask.
        const int whole_tiles = scale.sign == 1.0f ? mask.interval(group_row).end / BLOCK_N : 0;
        Scores s_rmem;
        Weights p_rmem;
        Output o_rmem = {};
        RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
        float scale_left;  // see raise_reference
        int tile = tiles_before(first_row + BLOCK_M) - 1;
        auto softmax = [&] {  // with mask and maximum; O is in flight and follows later
            if (tile >= whole_tiles) {
                const int row = warp_row + lane / 4, first_key = tile * BLOCK_N;
                mask_tile(s_rmem,
                          {mask.interval(row).from(first_key), mask.interval(row + 8).from(first_key)},
                          scale.sign, lane);
            }
            scale_left = raise_reference(s_rmem, m, rescale, scale.log2);
            l[0] *= rescale[0], l[1] *= rescale[1];
            exponentiate(s_rmem, m, l, scale_left);
        };

        for (; tile >= own_tiles; tile--) {  // only the warpgroups of later rows see keys of this tile
            begin_turn();
            end_turn();
            fetched(k_full, k_ring);  // or the slots would be released twice
            fetched(v_full, v_ring);
            __syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin
            release(k_empty + k_ring.slot);
            release(v_empty + v_ring.slot);
            k_ring.next();
            v_ring.next();
        }
        if (own_tiles == 0) {
            release(q_empty);
            continue;
        }
        fetched(k_full, k_ring);
        begin_turn();
        issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
        end_turn();
        ptx::wgmma_wait<0>();  // S is whole, K has been read
        ptx::wgmma_pin(s_rmem);
        release(k_empty + k_ring.slot);
        softmax();
        pack(p_rmem, s_rmem);

        while (tile-- > 0) {
            k_ring.next();
            const element* k_tile = k_smem + k_ring.slot * KV_TILE;
            fetched(k_full, k_ring);
            ptx::wgmma_pin(o_rmem);  // O is rescaled before anything is in flight
            begin_turn();
            issue_qk(s_rmem, q_smem, k_tile);
            fetched(v_full, v_ring);  // of the tile before
            issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
            end_turn();
            ptx::wgmma_wait<OVERLAP>();  // S is whole
            ptx::wgmma_pin(s_rmem);
            const bool lazy = LAZY_MAX && tile < whole_tiles && scale_left == scale.log2;
            const bool done = lazy && exponentiate<true, POLYNOMIALS>(s_rmem, m, l, scale.log2);
            if (!done) {
                if (lazy) {
                    multiply_again(s_rmem, q_smem, k_tile, warp, lane);
                    __syncwarp();  // all lanes have read K before lane 0 releases it
                }
                softmax();
            }
            release(k_empty + k_ring.slot);
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
        fetched(v_full, v_ring);  // of the last tile
        issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
        ptx::wgmma_wait<0>();  // O is whole, V has been read
        ptx::wgmma_pin(o_rmem);
        release(v_empty + v_ring.slot);
        v_ring.next();
        float* lse_row = lse ? lse + sizes.rows_before(b, h) + warp_row : nullptr;
        normalise(o_rmem, m, l, lse_row, sizes.S_q - warp_row, lane);
        store_rows(o_smem, &out_map, o_rmem, warp, lane, warp_row, h, b);
    }
}
