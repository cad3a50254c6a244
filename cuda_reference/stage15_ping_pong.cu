// Stage 15: FlashAttention-3. Loads, products and softmax run at the same time, each on its own unit.
//
// A block takes work tiles of BLOCK_M query rows of one head. A thread of warpgroup 0 loads. Each of the
// CONSUMERS other warpgroups owns 64 of the rows: lane 4g + t of its warp w has rows 16w + g and 16w + g + 8
// (warpgroup_rows.cuh). K and V pass through rings of STAGES slots: mbarriers `full` count the bytes that
// arrive, `empty` the warps that have read a slot. The last tile comes first, since it may need the mask.
// S = Q K^T of a tile and O += P V of the tile before are issued together, on registers of their own.
// Softmax starts when S is there, with OVERLAP under P V. 2^S stays in the registers of S until P V has read
// the P before. LAZY_MAX: m stays as long as P is safe; else the warp computes S again alone, on mma.sync,
// while it still holds K. POLYNOMIALS of every 16 exponentials do not use the special-function unit.
// PING_PONG: warpgroups issue in turn, so that one multiplies while others are in their softmax.
// The next work tile's loads run under the end of this one: O has memory beside Q. With TWO_Q its Q comes
// early too, and O leaves from its own Q's place. Under a causal mask the longest work tiles come first, and
// a block that has finished draws the next one.
// Of sequences whose lengths only the GPU knows, the loading thread tells the others the work tile itself.
#include "q_registers.cuh"
#include "warpgroup_rows.cuh"

static_assert(!(LAZY_MAX && ADJUSTED), "what is exponentiated at once is S as it was multiplied");
constexpr int BLOCK_M = CONSUMERS * ROWS, THREADS = 128 * (CONSUMERS + 1), WARPS = 4 * CONSUMERS;
constexpr bool TOLD = BOUNDED_KV || TWO_Q;
// 16 * Q_CHUNKS columns of Q are also in registers. Q_KEPT: all are, and its tile is not read again.
constexpr bool Q_KEPT = Q_CHUNKS == D / 16 && !LAZY_MAX;
constexpr int Q_TILE = ROWS * PITCH, KV_TILE = BLOCK_N * PITCH;  // elements
constexpr int Q_SLOTS = TWO_Q ? 2 : 1;  // the second is where O would be
constexpr int WORDS = TOLD ? 6 : 1;     // that tell of a work tile
constexpr int APART = ((CONSUMERS - 1) * ROWS + BLOCK_N - 1) / BLOCK_N;  // tiles between two warpgroups
static_assert(!(WINDOW && PING_PONG) || APART <= STAGES, "the first would wait for the slot of the last");

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
            ptx::mma_m16n8k16(*(float (*)[4])(s_rmem + 8 * n), q_rmem, k_rmem[0], k_rmem[1]);
            ptx::mma_m16n8k16(*(float (*)[4])(s_rmem + 8 * n + 4), q_rmem, k_rmem[2], k_rmem[3]);
        }
    }
}

struct Work {
    Sequence sequence;
    int h, first_row;
};

// The work tile with number `index` of packed sequences: all of a sequence, head after head, its last rows
// first. A block's numbers rise, so that the search goes on where it ended.
struct Cursor {
    int index = 0, before = 0;  // a sequence, and the work tiles before it: all of them, when none is left

    __device__ __forceinline__ bool find(Work& work, const Sizes& sizes, int number) {
        for (; index < sizes.features.sequences; index++) {
            const Sequence sequence = sizes.sequence(index);
            const int row_tiles = (sequence.S_q + BLOCK_M - 1) / BLOCK_M, inside = number - before;
            if (inside < sizes.H * row_tiles) {
                work = {sequence, inside / row_tiles, (row_tiles - 1 - inside % row_tiles) * BLOCK_M};
                return true;
            }
            before += sizes.H * row_tiles;
        }
        return false;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
ping_pong(const __grid_constant__ ptx::TensorMap q_map,    // [B, H, S_q, D], boxes of [64, 64]
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
          const __grid_constant__ ptx::TensorMap v_map,    // the same
          OUT_ROWS_PARAM,                                  // [B, H, S_q, D], boxes of [16, 64]
          float* lse,                                      // [B, H, S_q] or null
          SIZES BATCHES_PARAMS,
          int heads, int heads_together,                   // B * H, and how many of them go side by side
          unsigned* next_work) {  // 0, and 0 again at the end; or null: a block has every gridDim.x-th tile
    const Sizes sizes = SIZES_GIVEN;
    const Batches batches = BATCHES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* q_smem = (element*)smem;               // [CONSUMERS, 64, PITCH]
    element* o_smem = q_smem + CONSUMERS * Q_TILE;  // the same
    element* k_smem = o_smem + CONSUMERS * Q_TILE;  // [STAGES, BLOCK_N, PITCH]
    element* v_smem = k_smem + STAGES * KV_TILE;     // [STAGES, BLOCK_N, PITCH]
    uint64_t* k_full = (uint64_t*)(v_smem + STAGES * KV_TILE);
    uint64_t *v_full = k_full + STAGES, *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;  // [STAGES]
    uint64_t *q_full = v_empty + STAGES, *q_empty = q_full + Q_SLOTS;  // [Q_SLOTS]
    int* works_smem = (int*)(q_empty + Q_SLOTS);  // [Q_SLOTS, WORDS]: the number of Q's work tile, or it

    // The tiles that these rows see keys of; one at least, to mask.
    auto tiles_of = [](const Mask& mask, int first_row, int end_row) {
        const Interval keys{mask.interval(max(first_row, 0)).begin,
                            mask.interval(min(end_row, mask.S_q) - 1).end};
        Interval tiles = keys.tiles(BLOCK_N);
        if (WINDOW) tiles.begin = min(tiles.begin, max(mask.S_k - 1, 0) / BLOCK_N);
        tiles.end = max(tiles.begin + 1, tiles.end);
        return tiles;
    };
    const int row_tiles = (sizes.S_q + BLOCK_M - 1) / BLOCK_M;
    const int works = RAGGED ? 0x7fffffff : heads * row_tiles;  // of packed sequences only a Cursor knows
    // Rows that fill no block are the first, which see the fewest keys: warpgroups before row 0 are idle.
    const int before_first = row_tiles * BLOCK_M - (sizes.S_q + ROWS - 1) / ROWS * ROWS;
    auto work_at = [&](int index) {
        const int base = index / (heads_together * row_tiles) * heads_together, i = index - base * row_tiles;
        const int together = min(heads_together, heads - base), number = base + i % together;
        const int head = KEYS_FROM ? heads - 1 - number : number;  // the last sequence sees the most keys
        return Work{sizes.sequence(head / sizes.H), head % sizes.H,
                    (row_tiles - 1 - i / together) * BLOCK_M - before_first};
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(k_full + i, 1);
            ptx::mbarrier_init(v_full + i, 1);
            ptx::mbarrier_init(k_empty + i, WARPS);
            ptx::mbarrier_init(v_empty + i, WARPS);
        }
        for (int i = 0; i < Q_SLOTS; i++) {
            ptx::mbarrier_init(q_full + i, 1);
            ptx::mbarrier_init(q_empty + i, WARPS);
        }
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
    }
    __syncthreads();  // the other threads see them too
    // A shuffle tells the compiler what it cannot know: the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (threadIdx.x != 0) return;
        Ring k_ring, v_ring;
        Cursor cursor;
        Arrivals arrivals;
        for (int n = 0, index = blockIdx.x, next;; n++, index = next) {
            Work work = {};
            auto tell_next = [&](bool none) {
                const int q_slot = n % Q_SLOTS;
                int* work_smem = works_smem + q_slot * WORDS;
                // All warps have read the Q that was here before and its work.
                ptx::mbarrier_wait(q_empty + q_slot, n / Q_SLOTS % 2 ^ 1);
                work_smem[0] = TOLD && none ? -1 : TOLD ? work.sequence.index : index;
                if (!TOLD || none) return;
                if (BOUNDED_KV) {
                    work_smem[1] = work.sequence.first_row, work_smem[2] = work.sequence.S_q;
                    work_smem[3] = work.sequence.S_k;
                }
                work_smem[4] = work.h, work_smem[5] = work.first_row;
            };
            if (RAGGED ? !cursor.find(work, sizes, index) : index >= works) {
                tell_next(true);
                ptx::mbarrier_arrive(q_full + n % Q_SLOTS);  // no Q, but word that no work is left
                // Each work tile drew once: no draw follows that of the highest number.
                if (RAGGED && next_work && index == gridDim.x + cursor.before - 1) atomicExch(next_work, 0u);
                return;
            }
            if (!RAGGED) work = work_at(index);
            const auto& [sequence, h, first_row] = work;
            const int b = sequence.batch;
            const Interval tiles = tiles_of(Mask(sizes, sequence), first_row, first_row + BLOCK_M);
            Place k_place{b}, v_place{b};
            if (BOUNDED_KV) {
                k_place = {b, b * batches.k + sequence.first_key, sequence.S_k};
                v_place = {b, b * batches.v + sequence.first_key, sequence.S_k};
            }
            const int first_tile = WINDOW ? tiles.begin : 0;  // as they are used: K, then Q or the V before
            for (int tile = tiles.end; tile >= first_tile; tile--) {
                if (tile > first_tile) {
                    const int slot = k_ring.slot;
                    ptx::mbarrier_wait(k_empty + slot, k_ring.parity ^ 1);  // all warps have read the slot
                    if (KEYS_FROM) arrivals.wait(sizes, h, (tile - 1) * BLOCK_N);  // K has come, and V
                    ptx::mbarrier_arrive_expect(k_full + slot, KV_TILE * 2);  // until all of K is there
                    load_rows<BLOCK_N, BOUNDED_KV>(k_smem + slot * KV_TILE, &k_map, k_full + slot,
                                                   (tile - 1) * BLOCK_N, h / sizes.group, k_place);
                    k_ring.next();
                }
                if (tile == tiles.end) {
                    if (TWO_Q) ptx::pin(n);  // or the loop keeps addresses for which it has no registers
                    const int q_slot = n % Q_SLOTS;
                    tell_next(false);
                    // Until all of Q is there.
                    ptx::mbarrier_arrive_expect(q_full + q_slot, CONSUMERS * Q_TILE * 2);
                    for (int i = 0; i < CONSUMERS; i++)
                        load_rows<ROWS, BOUNDED_Q>(q_smem + (q_slot * CONSUMERS + i) * Q_TILE, &q_map,
                                                   q_full + q_slot, first_row + i * ROWS, h,
                                                   {b, sequence.first_row, sequence.S_q});
                    // One draw per work tile, so the launch's last draw takes the counter back to 0.
                    next = gridDim.x + (next_work ? atomicInc(next_work, works - 1) : index);
                } else {
                    const int slot = v_ring.slot;
                    ptx::mbarrier_wait(v_empty + slot, v_ring.parity ^ 1);  // all warps have read the slot
                    ptx::mbarrier_arrive_expect(v_full + slot, KV_TILE * 2);  // until all of V is there
                    load_rows<BLOCK_N, BOUNDED_KV>(v_smem + slot * KV_TILE, &v_map, v_full + slot,
                                                   tile * BLOCK_N, h / sizes.group, v_place);
                    v_ring.next();
                }
            }
        }
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    // Under a window the last rows have the first turn: their tiles arrive first, and leave their slots last.
    const int part = WINDOW ? CONSUMERS - 1 - consumer : consumer;
    const Scale scale(sizes.softmax_scale_log2());
    element* first_q = q_smem + part * Q_TILE;
    o_smem += part * Q_TILE;

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
        const int q_slot = n % Q_SLOTS;
        element* q_smem = first_q + q_slot * CONSUMERS * Q_TILE;
        const int* work_smem = works_smem + q_slot * WORDS;
        ptx::mbarrier_wait(q_full + q_slot, n / Q_SLOTS % 2);  // Q is there, and what it is of
        // By lane 0, which releases it.
        auto told = [&](int i) { return __shfl_sync(ALL_LANES, lane == 0 ? work_smem[i] : 0, 0); };
        const int index = told(0);
        auto o_before_stored = [&] {  // so its place is free for the next Q
            if (!TWO_Q) return;
            if (lane == 0) ptx::bulk_wait_read<0>();  // TMA has read it
            if (n > 0) release(q_empty + (q_slot ^ 1));
        };
        if (TOLD ? index < 0 : index >= works) return o_before_stored();  // its memory stays until then
        Work work;
        if (BOUNDED_KV)
            work = {{index, RAGGED ? 0 : index, told(1), 0, told(2), told(3)}, told(4), told(5)};
        else if (TOLD)
            work = {sizes.sequence(index), told(4), told(5)};
        else
            work = work_at(index);
        const auto& [sequence, h, first_row] = work;
        const Mask mask(sizes, sequence);
        const Adjustment adjustment(sizes, sequence, h);
        const int group_row = first_row + part * ROWS, warp_row = group_row + warp * WARP_ROWS;
        const int first_tile = WINDOW ? tiles_of(mask, first_row, first_row + BLOCK_M).begin : 0;
        const bool idle = group_row < 0 || (RAGGED && group_row >= sequence.S_q);
        const Interval own = idle ? Interval{first_tile, first_tile}
                             : tiles_of(mask, group_row, group_row + ROWS);
        // Tiles before `whole_tiles` need no mask; at the left edge of a window they need it again.
        const int whole_begin = (mask.interval(group_row + ROWS - 1).begin + BLOCK_N - 1) / BLOCK_N;
        int whole_tiles = scale.sign == 1.0f ? mask.interval(group_row).end / BLOCK_N : 0;
        Scores s_rmem;
        P p_rmem;
        Output o_rmem = {};
        RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
        float scale_left;  // see raise_max
        int tile = tiles_of(mask, first_row, first_row + BLOCK_M).end - 1;
        auto softmax = [&] {  // with mask and maximum; O is in flight and follows later
            if (ADJUSTED)
                adjust_tile(s_rmem, adjustment, mask.diagonal(warp_row + lane / 4) - tile * BLOCK_N, lane);
            if (WINDOW && tile < whole_begin) whole_tiles = 0;
            if (tile >= whole_tiles) {
                const int row = warp_row + lane / 4, first_key = tile * BLOCK_N;
                mask_tile(s_rmem,
                          {mask.interval(row).from(first_key), mask.interval(row + 8).from(first_key)},
                          scale.sign, lane);
            }
            scale_left = raise_max(s_rmem, m, rescale, scale.log2);
            l[0] *= rescale[0], l[1] *= rescale[1];
            exponentiate(s_rmem, m, l, scale_left);
        };

        uint32_t q_rmem[Q_CHUNKS ? Q_CHUNKS : 1][4];
        auto issue_qk = [&](Scores& s_rmem, const element* q_smem, const element* k_smem) {
            if constexpr (Q_CHUNKS)
                ::issue_qk(s_rmem, q_rmem, q_smem, k_smem);
            else
                ::issue_qk(s_rmem, q_smem, k_smem);
        };

        auto turns_left = [&] {  // that the warpgroup with the most tiles takes, and this one has no tile for
            int turns = 0;
            for (int row = work.first_row; row < work.first_row + BLOCK_M; row += ROWS) {
                const Interval tiles = tiles_of(mask, row, row + ROWS);
                turns = max(turns, tiles.end - tiles.begin);
            }
            return turns - (own.end - own.begin);
        };
        int turns = WINDOW && idle ? turns_left() : 0;
        auto skip = [&] {  // a tile of which only other warpgroups' rows see keys
            if (!WINDOW || turns-- > 0) {
                begin_turn();
                end_turn();
            }
            fetched(k_full, k_ring);  // or the slots would be released twice
            fetched(v_full, v_ring);
            __syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin
            release(k_empty + k_ring.slot);
            release(v_empty + v_ring.slot);
            k_ring.next();
            v_ring.next();
        };
        for (; tile >= own.end; tile--) skip();
        if (own.end == first_tile) {  // idle
            if (!TWO_Q) release(q_empty + q_slot);
            o_before_stored();
            continue;
        }
        if (Q_CHUNKS) load_q(q_rmem, q_smem, warp, lane);
        if (Q_KEPT && !TWO_Q) {
            __syncwarp();  // all lanes have read Q before lane 0 releases it
            release(q_empty + q_slot);
        }
        fetched(k_full, k_ring);
        begin_turn();
        issue_qk(s_rmem, q_smem, k_smem + k_ring.slot * KV_TILE);
        end_turn();
        o_before_stored();
        ptx::wgmma_wait<0>();  // S is whole, K has been read
        ptx::wgmma_pin(s_rmem);
        release(k_empty + k_ring.slot);
        softmax();
        pack(p_rmem, s_rmem);

        while (tile-- > own.begin) {
            if (WINDOW && tile < whole_begin) whole_tiles = 0;
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
                for (int i = 0; i < D_V / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
            pack(p_rmem, s_rmem);
        }
        if (!Q_KEPT && !TWO_Q) release(q_empty + q_slot);
        k_ring.next();
        fetched(v_full, v_ring);  // of the last tile
        issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);
        uint2 gate_rmem[GATED / 4];
        if (GATE && GATE_PARTS == 1)  // under P V
            load_gate<GATED>(gate_rmem, sizes.features, sequence, h, warp_row, 0, lane);
        ptx::wgmma_wait<0>();  // O is whole, V has been read
        ptx::wgmma_pin(o_rmem);
        release(v_empty + v_ring.slot);
        v_ring.next();
        if (WINDOW) {
            turns = turns_left();
            for (; tile >= first_tile; tile--) skip();
            for (; turns > 0; turns--) begin_turn(), end_turn();
        }
        float* lse_row = lse ? lse + sizes.rows_before(sequence, h) + warp_row : nullptr;
        normalise(o_rmem, m, l, sizes, sequence, h, lse_row, warp_row, lane);
        if (GATE) gate_output(o_rmem, gate_rmem, sizes.features, sequence, h, warp_row, lane);
        // O may take the place of Q: all four warps have issued the last P V, and had their last S before.
        store_rows<BOUNDED_Q, !TWO_Q>(TWO_Q ? q_smem : o_smem, OUT_ROWS, o_rmem, warp, lane, warp_row, h,
                                     {sequence.batch, sequence.first_row, sequence.S_q});
    }
}
