// The backward pass on wgmma: a warpgroup owns 64 keys, and dQ is made one tile late.
//
// A block has 128 keys of one K/V head, and walks over the query heads that share it and over their tiles of
// M = BLOCK_N query rows. Warpgroup 0 loads: Q and lse2 in one ring, dO and delta in another. The two others
// make S^T = K Q^T and dP^T = V dO^T of 64 keys each: the 64 rows of warpgroup_rows.cuh are keys here, and
// its tiles are query rows. Then P^T and dS^T are the left operands of dV += P^T dO and dK += dS^T Q as they
// are, in registers, and dK and dV stay there over all heads and tiles.
// Only dQ = dS K sums over the keys of both. dS goes through shared memory, transposed by stmatrix, and a
// warpgroup multiplies 64 rows, or half of the columns, of dQ over all 128 keys. That would take a barrier of
// both in every tile; so dQ is left in flight under the exponentials of the next tile, whose S is issued
// before it, and is added after them, from registers, in the order that gradient_rows.cuh has the sums in.
// SHIFTED: a block begins with another tile than its neighbours, or their adds would meet. DETERMINISTIC: the
// blocks add to a tile in turn. DELTA_FIRST: dP begins at -delta instead of being reduced by it.
#include "gradient_rows.cuh"
#include "warpgroup_rows.cuh"

constexpr int KEYS = 2 * ROWS, THREADS = 384, WARPS = 8, M = BLOCK_N;
constexpr int KV_TILE = ROWS * D, Q_TILE = M * D, DS_PANEL = M * 64;  // elements
constexpr bool BY_ROWS = M == KEYS;              // how the two warpgroups divide dQ
constexpr int DQ_COLUMNS = BY_ROWS ? D : D / 2;  // of the 64 rows of dQ that a warpgroup has
constexpr int DQ_STEP = DQ_COLUMNS == 64 ? ROWS * 8 : 4;  // in a descriptor, to the other half of K's columns
static_assert(D == D_V && (M == ROWS || BY_ROWS) && DQ_COLUMNS <= 64, "what fits registers");
using Dq = float[DQ_COLUMNS / 2];

// Where tile `step` of a block is in a ring, and the parity of the phase that its mbarriers are in.
template <int STAGES> struct Slot {
    unsigned number, parity;
    __device__ __forceinline__ explicit Slot(unsigned step)
        : number(step % STAGES), parity(step / STAGES % 2) {}
};

// The warp's 16 keys of dK or dV through its own rows of shared memory, by TMA.
__device__ __forceinline__ void store_gradient(element* own_smem, const ptx::TensorMap* map, Output& g_rmem,
                                               float factor, int key, int h, const Place& at, int lane) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) g_rmem[i] *= factor;
    pack_rows<false>(own_smem, g_rmem, lane);
    store_packed<RAGGED>(own_smem, map, lane, key, h, at);
    __syncwarp();  // TMA has read the rows before a lane writes them again
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward_wgmma(const __grid_constant__ ptx::TensorMap q_map,     // [B, H, S_q, D], boxes of [M, 64]
               const __grid_constant__ ptx::TensorMap dout_map,  // the same
               const __grid_constant__ ptx::TensorMap k_map,     // [B, H / group, S_k, D], boxes of [64, 64]
               const __grid_constant__ ptx::TensorMap v_map,     // the same
               const __grid_constant__ ptx::TensorMap dk_map,    // [B, H / group, S_k, D], boxes of [16, 64]
               const __grid_constant__ ptx::TensorMap dv_map,    // the same
               const float* lse2, const float* delta, float* dq_sum,  // as gradient_rows.cuh has them
               SIZES BATCHES_PARAMS,
               unsigned* turns) {  // DETERMINISTIC: [B, H, padded rows / M, WARPS], zeros; else null
    const Sizes sizes = SIZES_GIVEN;
    const Batches batches = BATCHES_GIVEN;
    extern __shared__ __align__(1024) unsigned char smem[];
    element* k_smem = (element*)smem;                    // [2, 64, D]
    element* v_smem = k_smem + 2 * KV_TILE;              // [2, 64, D], at the end dV, and then dK
    element* q_smem = v_smem + 2 * KV_TILE;              // [Q_STAGES, M, D]
    element* do_smem = q_smem + Q_STAGES * Q_TILE;       // [DO_STAGES, M, D]
    element* ds_smem = do_smem + DO_STAGES * Q_TILE;     // [2, 2, M, 64]: of two tiles, a warpgroup's keys
    float* lse2_smem = (float*)(ds_smem + 4 * DS_PANEL);  // [Q_STAGES, M]
    float* delta_smem = lse2_smem + Q_STAGES * M;        // [DO_STAGES, M]
    uint64_t *kv_full = (uint64_t*)(delta_smem + DO_STAGES * M), *ds_full = kv_full + 1;  // of dS: [2]
    uint64_t *q_full = ds_full + 2, *q_empty = q_full + Q_STAGES;                         // [Q_STAGES]
    uint64_t *do_full = q_empty + Q_STAGES, *do_empty = do_full + DO_STAGES;              // [DO_STAGES]
    int* told_smem = (int*)(do_empty + DO_STAGES);  // [4]: what is not worth a register in the loop

    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    RowTile at{int(blockIdx.z), int(blockIdx.x)};
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
    auto first_tile_of = [&](int block) { return tiles.begin + (SHIFTED ? block * count / blocks : 0); };
    const int first_tile = first_tile_of(at.tile);

    if (threadIdx.x == 0) {
        ptx::mbarrier_init(kv_full, 1);
        for (int i = 0; i < 2; i++) ptx::mbarrier_init(ds_full + i, WARPS);
        for (int i = 0; i < Q_STAGES; i++) {
            ptx::mbarrier_init(q_full + i, 1);
            ptx::mbarrier_init(q_empty + i, WARPS);
        }
        for (int i = 0; i < DO_STAGES; i++) {
            ptx::mbarrier_init(do_full + i, 1);
            ptx::mbarrier_init(do_empty + i, WARPS);
        }
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
        if (RAGGED) told_smem[0] = sequence.first_key, told_smem[1] = sizes.all_keys(sequence);
        if (DETERMINISTIC) {
            const int next = at.tile + 1;
            const Interval own{first_tile, next < blocks ? first_tile_of(next) : tiles.end};
            const Interval told = SHIFTED ? own : tiles_of(next);
            told_smem[2] = told.begin, told_smem[3] = told.end;
        }
    }
    __syncthreads();  // the other threads see all that too
    // A shuffle tells the compiler what it cannot know: the number is the same in all lanes.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);

    if (warpgroup == 0) {
        ptx::registers_down<PRODUCER_REGISTERS>();
        if (threadIdx.x != 0 || steps == 0) return;
        Place k_place{b}, v_place{b};
        if (BOUNDED_KV) {
            k_place = {b, b * batches.k + sequence.first_key, sequence.S_k};
            v_place = {b, b * batches.v + sequence.first_key, sequence.S_k};
        }
        ptx::mbarrier_arrive_expect(kv_full, 4 * KV_TILE * 2);  // until all of K and V is there
        for (int i = 0; i < 2; i++) {
            const int key = first_key + i * ROWS;
            load_rows<ROWS, BOUNDED_KV>(k_smem + i * KV_TILE, &k_map, kv_full, key, kv_head, k_place);
            load_rows<ROWS, BOUNDED_KV>(v_smem + i * KV_TILE, &v_map, kv_full, key, kv_head, v_place);
        }
        const Place q_place{b, sequence.first_row, sequence.S_q};
        for (int step = 0, tile = first_tile, h = kv_head * sizes.group; step < steps; step++) {
            const int row = tile * M;
            const long long padded = padded_before(sizes, sequence, h) + row;
            const Slot<Q_STAGES> q(step);
            const Slot<DO_STAGES> d_o(step);
            ptx::mbarrier_wait(q_empty + q.number, q.parity ^ 1);  // all warps have read the slot
            ptx::mbarrier_arrive_expect(q_full + q.number, Q_TILE * 2 + M * 4);  // until Q and lse2 are there
            load_rows<M, BOUNDED_Q>(q_smem + q.number * Q_TILE, &q_map, q_full + q.number, row, h, q_place);
            ptx::bulk_load(lse2_smem + q.number * M, lse2 + padded, M * 4, q_full + q.number);

            uint64_t* full = do_full + d_o.number;
            ptx::mbarrier_wait(do_empty + d_o.number, d_o.parity ^ 1);  // all warps have read the slot
            ptx::mbarrier_arrive_expect(full, Q_TILE * 2 + M * 4);      // until dO and delta are there
            load_rows<M, BOUNDED_Q>(do_smem + d_o.number * Q_TILE, &dout_map, full, row, h, q_place);
            ptx::bulk_load(delta_smem + d_o.number * M, delta + padded, M * 4, full);
            if (++tile == tiles.end) tile = tiles.begin;
            if (tile == first_tile) h++;
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
    int tile = first_tile;
    // Of the tile whose dQ is next to be added, the lane's first sums.
    const int dq_row = tile * M + (BY_ROWS ? consumer * ROWS : 0) + warp * WARP_ROWS;
    const long long padded = padded_before(sizes, sequence, kv_head * sizes.group) + dq_row;
    float* dq_lane = dq_sum + sums_before<D>(padded, BY_ROWS ? 0 : consumer * (DQ_COLUMNS / 8), lane);

    // DETERMINISTIC: blocks add to a tile by falling keys, so that those waited for began earlier. SHIFTED:
    // in the same order, but from the last block that begins at this tile or before it, and round. A warp
    // waits for the same warp of the block before, which leaves its number + 1.
    auto advance = [&](int next) {  // to the tile that dQ is added of after the one before `next`
        dq_lane += M * D;
        if (next == tiles.begin) dq_lane -= (long long)(tiles.end - tiles.begin) * M * D;
        if (next == first_tile) dq_lane += (long long)padded_rows(sizes) * D;
    };
    auto turn = [&] { return turns + (dq_lane - dq_sum) / (M * D) * WARPS + consumer * 4 + warp; };
    auto add_dq = [&] {
        if (DETERMINISTIC) {
            const int added = (tile == tiles.begin ? tiles.end : tile) - 1;  // the tile before this one
            const bool told = told_smem[2] <= added && added < told_smem[3], first = told == SHIFTED;
            const unsigned before = at.tile + 1 == blocks ? 1 : at.tile + 2;
            if (!first && lane == 0)
                while (ptx::load_acquire(turn()) != before) {}
            __syncwarp();  // it is the warp's turn
        }
#pragma unroll
        for (int j = 0; j < DQ_COLUMNS / 8; j++)
            ptx::add_quad(dq_lane + j * SUMS_STEP, *(const float (*)[4])(dq_rmem + 4 * j));
    };
    auto end_turn = [&] {
        if (!DETERMINISTIC) return;
        __syncwarp();  // all lanes have added
        if (lane > 0) return;
        __threadfence();  // and before the next block does, these adds are done
        atomicExch(turn(), at.tile + 1u);
    };
    auto store_gradients = [&] {
        element* own_smem = v_smem + consumer * KV_TILE + warp * WARP_ROWS * 64;
        const Place place = RAGGED ? Place{b, told_smem[0], told_smem[1]} : Place{b};
        const int key = group_key + warp * WARP_ROWS;
        store_gradient(own_smem, &dv_map, dv_rmem, 1.0f, key, kv_head, place, lane);
        store_gradient(own_smem, &dk_map, dk_rmem, sizes.scale_log2 * LN2, key, kv_head, place, lane);
    };

    if (steps == 0) {  // no row sees these keys
#pragma unroll
        for (int i = 0; i < D / 2; i++) dk_rmem[i] = dv_rmem[i] = 0.0f;
        store_gradients();
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
    ptx::mbarrier_wait(kv_full, 0);  // K and V are there
    ptx::mbarrier_wait(q_full, 0);   // so are the first Q and lse2
    issue_qk(s_rmem, k_own, q_smem);
    ptx::wgmma_wait<0>();  // S is whole
    for (int step = 0; step < steps; step++) {
        const Slot<Q_STAGES> q(step), next_q(min(step + 1, steps - 1));
        const Slot<DO_STAGES> d_o(step);
        const element *q_tile = q_smem + q.number * Q_TILE, *do_tile = do_smem + d_o.number * Q_TILE;
        const int row = tile * M;
        ptx::wgmma_pin(s_rmem);
        if (row < plain.begin || min(row + M, mask.S_q) > plain.end) {
            const int key = group_key + warp * WARP_ROWS + lane / 4;
            mask_tile(s_rmem, {rows_of(key).from(row), rows_of(key + 8).from(row)}, scale.sign, lane);
        }
        const float* lse2_lane = lse2_smem + q.number * M + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
            const float2 of_row = *(const float2*)(lse2_lane + 2 * i);
#pragma unroll
            for (int j = i; j < i + 4; j++)
                s_rmem[j] = ptx::ex2(s_rmem[j] * scale.log2 - (j % 2 ? of_row.y : of_row.x));
        }
        ptx::wgmma_wait<0>();  // dQ of the tile before is whole
        ptx::wgmma_pin(dq_rmem);
        if (step > 0) add_dq();

        ptx::mbarrier_wait(do_full + d_o.number, d_o.parity);  // dO and delta are there
        const float* delta_lane = delta_smem + d_o.number * M + lane % 4 * 2;
        if (DELTA_FIRST)
#pragma unroll
            for (int i = 0; i < M / 2; i++) dp_rmem[i] = -delta_lane[i / 4 * 8 + i % 2];
        issue_qk(dp_rmem, v_own, do_tile, DELTA_FIRST);
        ptx::wgmma_wait<0>();  // dP is whole
        ptx::wgmma_pin(dp_rmem);
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
            const float2 of_row = DELTA_FIRST ? float2{0.0f, 0.0f} : *(const float2*)(delta_lane + 2 * i);
#pragma unroll
            for (int j = i; j < i + 4; j++)
                dp_rmem[j] = s_rmem[j] * (dp_rmem[j] - (j % 2 ? of_row.y : of_row.x));
        }
        pack(p_rmem, s_rmem);
        pack(ds_rmem, dp_rmem);

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

        // The first products begin the sums: zeros would be written while wgmma works, which makes it wait.
        issue_pv(dv_rmem, p_rmem, do_tile, step > 0);
        issue_pv(dk_rmem, ds_rmem, q_tile, step > 0);
        ptx::mbarrier_wait(q_full + next_q.number, next_q.parity);  // the next Q and lse2 are there
        // After the last tile for nothing: around products under a condition wgmma waits for every one.
        issue_qk(s_rmem, k_own, q_smem + next_q.number * Q_TILE);
        if (step > 0) {
            end_turn();  // late, when the fence finds the adds done
            advance(tile);
        }
        ptx::wgmma_wait<1>();  // dV and dK have read P, dS, Q and dO
        ptx::wgmma_pin(dk_rmem);
        ptx::wgmma_pin(dv_rmem);
        ptx::wgmma_pin(p_rmem);
        ptx::wgmma_pin(ds_rmem);
        if (lane == 0) {
            ptx::mbarrier_arrive(q_empty + q.number);
            ptx::mbarrier_arrive(do_empty + d_o.number);
        }

        // The other warpgroup's dS is there. So its dQ of the tile before is made, and that one's dS may go.
        ptx::mbarrier_wait(ds_full + step % 2, step / 2 % 2);
        issue_dq(ds_tile);
        ptx::wgmma_wait<1>();  // S of the next tile is whole
        if (++tile == tiles.end) tile = tiles.begin;
    }
    ptx::wgmma_wait<0>();  // dQ of the last tile is whole
    ptx::wgmma_pin(dk_rmem);
    ptx::wgmma_pin(dv_rmem);
    ptx::wgmma_pin(dq_rmem);
    add_dq();
    end_turn();
    ptx::bar_sync(1 + consumer, 128);  // all warps of the group have read V for the last time
    store_gradients();
}

extern "C" __global__ void __launch_bounds__(THREADS) clear_turns(unsigned* turns, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) turns[i] = 0;
}
