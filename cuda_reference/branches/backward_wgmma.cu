// The backward pass on wgmma: a warpgroup owns 64 keys, and dQ is made one tile late.
//
// A block has 128 keys of one K/V head, and walks over the query heads that share it and over their tiles of
// M = BLOCK_N query rows. Warpgroup 0 loads Q and lse2, dO and delta into a ring. The two others make
// S^T = K Q^T and dP^T = V dO^T of 64 keys each: the 64 rows of warpgroup_rows.cuh are keys here, and
// its tiles are query rows. Then P^T and dS^T are the left operands of dV += P^T dO and dK += dS^T Q as they
// are, in registers, and dK and dV stay there over all heads and tiles.
// Only dQ = dS K sums over the keys of both. dS goes through shared memory, transposed by stmatrix, and a
// warpgroup multiplies 64 rows, or half of the columns, of dQ over all 128 keys. That would take a barrier of
// both in every tile; so dQ is left in flight under the exponentials of the next tile, whose S is issued
// before it, and is added after them, from registers, in the order that gradient_rows.cuh has the sums in.
// PING_PONG: a warpgroup issues dK, the next S and dQ while the other has its exponentials. DV_EARLY: dV is
// issued before dS is stored, and is over before the turn; else it is issued with dK.
// DETERMINISTIC: blocks add to a tile by falling keys. Two warps of warpgroup 0 keep the turns, so that those
// that multiply meet no latency of global memory: one waits for the block before, the other hands on.
#include "gradient_rows.cuh"
#include "warpgroup_rows.cuh"

constexpr int KEYS = 2 * ROWS, THREADS = 384, WARPS = 8, M = BLOCK_N;
constexpr int KV_TILE = ROWS * D, Q_TILE = M * D, DS_PANEL = M * 64;  // elements
constexpr int TILE_BYTES = Q_TILE * 2 + M * 4, KEYS_BYTES = 2 * KV_TILE * 2;
constexpr bool BY_ROWS = M == KEYS;              // how the two warpgroups divide dQ
constexpr int DQ_COLUMNS = BY_ROWS ? D : D / 2;  // of the 64 rows of dQ that a warpgroup has
constexpr int DQ_STEP = DQ_COLUMNS == 64 ? ROWS * 8 : 4;  // in a descriptor, to the other half of K's columns
static_assert(D == D_V && (M == ROWS || BY_ROWS) && DQ_COLUMNS <= 64, "what fits registers");
using Dq = float[DQ_COLUMNS / 2];

// Where tile `step` of a block is in the ring, and the parity of the phase that its mbarriers are in.
struct Slot {
    unsigned number, parity;
    __device__ __forceinline__ explicit Slot(unsigned step)
        : number(step % STAGES), parity(step / STAGES % 2) {}
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward_wgmma(const __grid_constant__ ptx::TensorMap q_map,     // [B, H, S_q, D], boxes of [M, 64]
               const __grid_constant__ ptx::TensorMap dout_map,  // the same
               const __grid_constant__ ptx::TensorMap k_map,     // [B, H / group, S_k, D], boxes of [64, 64]
               const __grid_constant__ ptx::TensorMap v_map,     // the same
               const __grid_constant__ ptx::TensorMap dk_map,    // [B, H / group, S_k, D], boxes of [16, 64]
               const __grid_constant__ ptx::TensorMap dv_map,    // the same
               const float* lse2, const float* delta, float* dq_sum,  // as gradient_rows.cuh has them
               SIZES BATCHES_PARAMS,
               int heads_together,  // so many K/V heads go side by side, with one blockIdx.y
               unsigned* turns) {   // DETERMINISTIC: [B, H, padded rows / M], zeros; else null
    const Sizes sizes = SIZES_GIVEN;
    const Batches batches = BATCHES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* k_smem = (element*)smem;                    // [2, 64, D]
    element* v_smem = k_smem + 2 * KV_TILE;              // [2, 64, D], at the end dV
    element* q_smem = v_smem + 2 * KV_TILE;              // [STAGES, M, D]
    element* do_smem = q_smem + STAGES * Q_TILE;         // [STAGES, M, D]
    element* ds_smem = do_smem + STAGES * Q_TILE;        // [2, 2, M, 64]: of two tiles, a warpgroup's keys
    float* lse2_smem = (float*)(ds_smem + 4 * DS_PANEL);  // [STAGES, M]
    float* delta_smem = lse2_smem + STAGES * M;           // [STAGES, M]
    uint64_t* ds_full = (uint64_t*)(delta_smem + STAGES * M);  // [2]
    uint64_t *q_full = ds_full + 2, *do_full = q_full + STAGES, *empty = do_full + STAGES;  // [STAGES]
    uint64_t *may_add = empty + STAGES, *added = may_add + 1;  // DETERMINISTIC
    int* told_smem = (int*)(added + 1);  // [3]: what is not worth a register in the loop

    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 32)  // a thread that initialises nothing
        for (const ptx::TensorMap* map : {&k_map, &q_map, &v_map, &dout_map, &dv_map, &dk_map})
            ptx::prefetch_map(map);
    RowTile at{int(blockIdx.z), int(blockIdx.x)};
    int kv_head = blockIdx.y;
    if (heads_together > 1) {
        at.tile /= heads_together;
        kv_head = blockIdx.y * heads_together + blockIdx.x % heads_together;
        if (kv_head * sizes.group >= sizes.H) return;  // of the last heads there are fewer
    }
    if (!find_key_tile(at, sizes, KEYS, lane)) return;
    const Sequence sequence = sizes.sequence(at.sequence);
    const int b = sequence.batch, blocks = (sizes.all_keys(sequence) + KEYS - 1) / KEYS;
    if (DETERMINISTIC) at.tile = blocks - 1 - at.tile;
    const int first_key = at.tile * KEYS;
    const Mask mask(sizes, sequence);
    auto rows_of = [&](int key) { return key < mask.S_k ? mask.rows(key) : Interval{0, 0}; };
    // The tiles of which some row sees a key of a block. Neither end falls from one block to the next.
    auto tiles_of = [&](int block) {
        const int begin = block * KEYS, end = min(begin + KEYS, mask.S_k);
        const Interval rows{rows_of(begin).begin, rows_of(end - 1).end};
        return begin < end && rows.begin < rows.end ? rows.tiles(M) : Interval{0, 0};
    };
    const Interval tiles = tiles_of(at.tile);
    const int count = tiles.end - tiles.begin, steps = count * sizes.group;

    const Place q_place{b, sequence.first_row, sequence.S_q};
    // K comes with the first Q, and V with the first dO.
    auto load_keys = [&](element* smem, const ptx::TensorMap* map, uint64_t* full, int batch_rows) {
        Place place{b};
        if (BOUNDED_KV) place = {b, b * batch_rows + sequence.first_key, sequence.S_k};
        for (int i = 0; i < 2; i++)
            load_rows<ROWS, BOUNDED_KV>(smem + i * KV_TILE, map, full, first_key + i * ROWS, kv_head, place);
    };
    auto load_q = [&](int slot, int row, int h, long long padded, bool with_keys = false) {
        // Until Q and lse2 are there.
        ptx::mbarrier_arrive_expect(q_full + slot, TILE_BYTES + with_keys * KEYS_BYTES);
        if (with_keys) load_keys(k_smem, &k_map, q_full, batches.k);
        load_rows<M, BOUNDED_Q>(q_smem + slot * Q_TILE, &q_map, q_full + slot, row, h, q_place);
        ptx::bulk_load(lse2_smem + slot * M, lse2 + padded, M * 4, q_full + slot);
    };
    auto load_do = [&](int slot, int row, int h, long long padded, bool with_keys) {
        // Until dO and delta are there.
        ptx::mbarrier_arrive_expect(do_full + slot, TILE_BYTES + with_keys * KEYS_BYTES);
        if (with_keys) load_keys(v_smem, &v_map, do_full, batches.v);
        load_rows<M, BOUNDED_Q>(do_smem + slot * Q_TILE, &dout_map, do_full + slot, row, h, q_place);
        ptx::bulk_load(delta_smem + slot * M, delta + padded, M * 4, do_full + slot);
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) ptx::mbarrier_init(ds_full + i, WARPS);
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(q_full + i, 1);
            ptx::mbarrier_init(do_full + i, 1);
            ptx::mbarrier_init(empty + i, WARPS);
        }
        ptx::mbarrier_init(may_add, 2);
        ptx::mbarrier_init(added, WARPS);
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
        told_smem[0] = kv_head;
        if (RAGGED) told_smem[1] = sequence.first_key, told_smem[2] = sizes.all_keys(sequence);
        // K and the first Q come while the others wait: the thread that loads has no need to.
        if (steps > 0) {
            const int row = tiles.begin * M, h = kv_head * sizes.group;
            load_q(0, row, h, padded_before(sizes, sequence, h) + row, true);
        }
    }
    __syncthreads();  // the other threads see all that too
    // A shuffle tells the compiler what it cannot know: the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (lane != 0 || steps == 0) return;
        if (warp > 0) {
            if (!DETERMINISTIC || warp == 3) return;
            // A block waits only for one that began earlier: of each head, blocks begin by falling keys.
            const Interval told = tiles_of(at.tile + 1);  // where there is one to wait for
            if (warp == 2) ptx::mbarrier_arrive(may_add);
            for (int step = 0, tile = tiles.begin, h = kv_head * sizes.group; step < steps; step++) {
                unsigned* turn = turns + (padded_before(sizes, sequence, h) / M + tile);
                if (warp == 1) {
                    if (told.begin <= tile && tile < told.end)
                        while (ptx::load_acquire(turn) != at.tile + 2) {}  // the block before has added
                    ptx::mbarrier_arrive(may_add);
                    ptx::mbarrier_wait(may_add, step % 2);  // the adds of the tile before are done, too
                } else {
                    ptx::mbarrier_wait(added, step % 2);  // all warps have added
                    if (step + 1 < steps) ptx::mbarrier_arrive(may_add);
                    __threadfence();  // these adds, which came before the wait's end, are done
                    atomicExch(turn, at.tile + 1u);
                }
                if (++tile == tiles.end) tile = tiles.begin, h++;
            }
            return;
        }
        int tile = tiles.begin, h = kv_head * sizes.group;
        for (int step = 0; step < steps; step++) {
            const Slot ring(step);
            const int row = tile * M, slot = ring.number;
            const long long padded = padded_before(sizes, sequence, h) + row;
            ptx::mbarrier_wait(empty + slot, ring.parity ^ 1);  // all warps have read the slot
            if (step > 0) load_q(slot, row, h, padded);
            load_do(slot, row, h, padded, step == 0);
            if (++tile == tiles.end) tile = tiles.begin, h++;
        }
        return;
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, group_key = first_key + consumer * ROWS;
    const Scale scale(sizes.scale_log2);
    const element *k_own = k_smem + consumer * KV_TILE, *v_own = v_smem + consumer * KV_TILE;
    // Tiles of these rows need no mask: all 64 keys are there, and each of the rows sees all of them.
    const bool whole = group_key + ROWS <= mask.S_k && scale.sign == 1.0f;
    const Interval plain{whole ? mask.rows(group_key + ROWS - 1).begin : mask.S_q,
                         whole ? mask.rows(group_key).end : 0};
    Scores s_rmem, dp_rmem;  // S^T, then P^T; dP^T, then dS^T
    P p_rmem, ds_rmem;
    Output dk_rmem, dv_rmem;
    Dq dq_rmem;
    int tile = tiles.begin;
    // Of the tile whose dQ is next to be added, the lane's first sums.
    const int dq_row = tile * M + (BY_ROWS ? consumer * ROWS : 0) + warp * WARP_ROWS;
    const long long padded = padded_before(sizes, sequence, kv_head * sizes.group) + dq_row;
    float* dq_lane = dq_sum + sums_before<D>(padded, BY_ROWS ? 0 : consumer * (DQ_COLUMNS / 8), lane);

    auto advance = [&](int next) {  // to the tile that dQ is added of after the one before `next`
        dq_lane += M * D;
        if (next == tiles.begin) dq_lane += ((long long)padded_rows(sizes) - count * M) * D;
    };
    auto add_dq = [&](int number) {  // of all the dQ that the block adds
        if (DETERMINISTIC) ptx::mbarrier_wait(may_add, number % 2);  // it is the block's turn
#pragma unroll
        for (int j = 0; j < DQ_COLUMNS / 8; j++)
            ptx::add_quad(dq_lane + j * SUMS_STEP, *(const float (*)[4])(dq_rmem + 4 * j));
        if (DETERMINISTIC) {
            __syncwarp();  // all lanes have added
            if (lane == 0) ptx::mbarrier_arrive(added);
        }
    };
    // The warp's 16 keys of dV and dK, by TMA from two places, so that neither waits for the other, nor the
    // block for both. Called when all warps have arrived at the last tile's ds_full, or there is none: they
    // have read V, and Q and dO of the tiles before. So V's memory is free, and the slot after the last tile's.
    auto store_gradients = [&] {
        const int own_rows = warp * WARP_ROWS * 64, free_slot = Slot(steps).number;
        element* dv_smem = v_smem + consumer * KV_TILE + own_rows;
        element* dk_smem = (consumer == 0 ? q_smem : do_smem) + free_slot * Q_TILE + own_rows;
        const Place place = RAGGED ? Place{b, told_smem[1], told_smem[2]} : Place{b};
        const int key = group_key + warp * WARP_ROWS, h = told_smem[0];
        pack_rows<false>(dv_smem, dv_rmem, lane);
        store_packed<RAGGED, false>(dv_smem, &dv_map, lane, key, h, place);
#pragma unroll
        for (int i = 0; i < D / 2; i++) dk_rmem[i] *= sizes.scale_log2 * LN2;
        pack_rows<false>(dk_smem, dk_rmem, lane);
        store_packed<RAGGED, false>(dk_smem, &dk_map, lane, key, h, place);
    };
    auto finish_stores = [&] {
        if (lane == 0) ptx::bulk_wait_read<0>();  // TMA has read the block's memory, which goes with it
    };

    if (steps == 0) {  // no row sees these keys
#pragma unroll
        for (int i = 0; i < D / 2; i++) dk_rmem[i] = dv_rmem[i] = 0.0f;
        store_gradients();
        finish_stores();
        return;
    }
    auto issue_dq = [&](const element* ds_tile) {
        const uint64_t ds_rows = ptx::wgmma_tile(ds_tile + (BY_ROWS ? consumer * ROWS * 64 : 0));
        const uint64_t k_columns = ptx::wgmma_tile(k_smem) + (BY_ROWS ? 0 : consumer * DQ_STEP);
        ptx::wgmma_fence();  // those of dV, dK and S came after the adds too, but the assembler would add one
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            ptx::wgmma_ss<DQ_COLUMNS, 1>(dq_rmem, ds_rows + k / 4 * (DS_PANEL / 8) + k % 4 * 2,
                                         k_columns + k / 4 * (KV_TILE / 8) + k % 4 * 128, k > 0);
        ptx::wgmma_commit();
    };
    auto finish_dv = [&] {
        ptx::wgmma_wait<0>();  // dV has read P, whose registers the next S may take
        ptx::wgmma_pin(dv_rmem);
        ptx::wgmma_pin(p_rmem);
    };
    if (PING_PONG && consumer == 1) ptx::bar_arrive(3, 256);  // the first turn is consumer 0's

    ptx::mbarrier_wait(q_full, 0);  // K is there, and the first Q and lse2
    issue_qk(s_rmem, k_own, q_smem);
    ptx::wgmma_wait<0>();  // S is whole
    for (int step = 0; step < steps; step++) {
        const Slot ring(step), next(min(step + 1, steps - 1));
        const int slot = ring.number;
        const element *q_tile = q_smem + slot * Q_TILE, *do_tile = do_smem + slot * Q_TILE;
        const int row = tile * M;
        ptx::wgmma_pin(s_rmem);
        if (row < plain.begin || min(row + M, mask.S_q) > plain.end) {
            const int key = group_key + warp * WARP_ROWS + lane / 4;
            mask_tile(s_rmem, {rows_of(key).from(row), rows_of(key + 8).from(row)}, scale.sign, lane);
        }
        const float* lse2_lane = lse2_smem + slot * M + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
            const float2 of_row = *(const float2*)(lse2_lane + 2 * i);
#pragma unroll
            for (int j = i; j < i + 4; j++)
                s_rmem[j] = ptx::ex2(s_rmem[j] * scale.log2 - (j % 2 ? of_row.y : of_row.x));
        }
        ptx::wgmma_wait<0>();  // dQ of the tile before is whole
        ptx::wgmma_pin(dq_rmem);
        if (step > 0) add_dq(step - 1);

        ptx::mbarrier_wait(do_full + slot, ring.parity);  // dO and delta are there, and V
        issue_qk(dp_rmem, v_own, do_tile);
        ptx::wgmma_wait<0>();  // dP is whole
        ptx::wgmma_pin(dp_rmem);
        const float* delta_lane = delta_smem + slot * M + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
            const float2 of_row = *(const float2*)(delta_lane + 2 * i);
#pragma unroll
            for (int j = i; j < i + 4; j++)
                dp_rmem[j] = s_rmem[j] * (dp_rmem[j] - (j % 2 ? of_row.y : of_row.x));
        }
        pack(p_rmem, s_rmem);
        pack(ds_rmem, dp_rmem);
        // The first products begin the sums: zeros would be written while wgmma works, which makes it wait.
        if (DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);

        element* ds_tile = ds_smem + step % 2 * (2 * DS_PANEL);
#pragma unroll
        for (int k = 0; k < M / 16; k++) {
            const int ds_row = 16 * k + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
            ptx::stmatrix_x4_trans(ds_tile + consumer * DS_PANEL + ds_row * 64 + (chunk ^ ds_row % 8) * 8,
                                   ds_rmem[k]);
        }
        ptx::fence_proxy_async();  // wgmma reads what this lane has stored,
        __syncwarp();              // and what the other lanes have
        if (lane == 0) ptx::mbarrier_arrive(ds_full + step % 2);

        if (DV_EARLY) finish_dv();
        if (PING_PONG) ptx::bar_sync(3 + consumer, 256);  // the other warpgroup has issued its products
        if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);
        issue_pv(dk_rmem, ds_rmem, q_tile, step > 0);
        ptx::mbarrier_wait(q_full + next.number, next.parity);  // the next Q and lse2 are there
        // After the last tile for nothing: around products under a condition wgmma waits for every one.
        issue_qk(s_rmem, k_own, q_smem + next.number * Q_TILE);
        if (step > 0) advance(tile);
        ptx::wgmma_wait<1>();  // dV and dK have read P, dS, Q and dO
        ptx::wgmma_pin(dk_rmem);
        ptx::wgmma_pin(dv_rmem);
        ptx::wgmma_pin(p_rmem);
        ptx::wgmma_pin(ds_rmem);
        if (lane == 0) ptx::mbarrier_arrive(empty + slot);

        // The other warpgroup's dS is there. So its dQ of the tile before is made, and that one's dS may go.
        ptx::mbarrier_wait(ds_full + step % 2, step / 2 % 2);
        issue_dq(ds_tile);
        if (PING_PONG) ptx::bar_arrive(4 - consumer, 256);  // the other one may issue
        ptx::wgmma_wait<1>();  // S of the next tile is whole
        if (++tile == tiles.end) tile = tiles.begin;
    }
    store_gradients();     // under dQ of the last tile
    ptx::wgmma_wait<0>();  // dQ of the last tile is whole
    ptx::wgmma_pin(dq_rmem);
    add_dq(steps - 1);
    finish_stores();
}

extern "C" __global__ void __launch_bounds__(THREADS) clear_turns(unsigned* turns, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) turns[i] = 0;
}
