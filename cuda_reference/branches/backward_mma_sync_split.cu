// The backward pass on mma.sync, each product divided in its own way among the warps of a block.
//
// A block owns BLOCK_KEYS keys of one K/V head, and walks over the query heads that share it and over their
// tiles of BLOCK_ROWS query rows. What products read from shared memory limits mma.sync: the larger a warp's
// part of a result, the less they read. So a warp has three parts:
//   S^T = K Q^T and dP^T = V dO^T: 32 keys x BLOCK_N rows of both. P = 2^(scale S - lse2) and
// dS = P (dP - delta) go through shared memory. The mask makes S -inf, after the scale's sign.
//   dV += P^T dO or dK += dS^T Q: one half of the warps has dV, the other dK; GRADIENT_KEYS keys x 64 columns
// stay in registers over all heads and tiles.
//   dQ = dS K: 32 rows x DQ_COLUMNS columns, added to the sums in global memory, as blocks of other keys do.
// LATE: half of the warps make P and dS of a tile while the others multiply those of the tile before, then
// they change places: exponentials run beside products. A tile takes one barrier, for three slots and two
// buffers of P and dS.
// gradient_rows.cuh has lse2 and delta of every row, such that P is 0 in padding and in rows that see no key.
// cp.async fills another slot of Q, dO, lse2 and delta while a tile is multiplied.
#include "gradient_tiles.cuh"

constexpr int THREADS = 32 * WARPS, TILE = BLOCK_ROWS * D, WEIGHTS = BLOCK_KEYS * Weights::PITCH;
constexpr int SLOTS = LATE ? 3 : 2, BUFFERS = LATE ? 2 : 1;
constexpr int KEY_PARTS = BLOCK_KEYS / WARP_ROWS, ROW_PARTS = WARPS / KEY_PARTS;  // warps along keys, rows
constexpr int HALF = WARPS / 2, COLUMNS = 64, GRADIENT_KEYS = BLOCK_KEYS * (D / COLUMNS) / HALF;
constexpr int DQ_ROWS = 32, DQ_COLUMNS = D * BLOCK_ROWS / (DQ_ROWS * WARPS);
static_assert(WARPS % KEY_PARTS == 0 && BLOCK_ROWS % (ROW_PARTS * BLOCK_N) == 0, "whole parts");
using Gradient = Result[GRADIENT_KEYS / 16][COLUMNS / 8];  // the warp's part of dK or dV

// dQ += dS K of DQ_ROWS rows from `row` on and DQ_COLUMNS columns from `column` on, over the block's keys.
// `padded`: where the tile's first row is among padded rows.
__device__ __forceinline__ void add_dq(float* dq_sum, long long padded, const element* ds_smem,
                                       const element* k_smem, int row, int column, int lane) {
    Result dq_rmem[DQ_ROWS / 16][DQ_COLUMNS / 8] = {};
    multiply<Weights, true, Rows, true, BLOCK_KEYS / 16>(dq_rmem, ds_smem, row, k_smem, column, lane);
#pragma unroll
    for (int r = 0; r < DQ_ROWS / 16; r++) {
        float* sums = dq_sum + sums_before<D>(padded + row + 16 * r, column / 8, lane);
#pragma unroll
        for (int j = 0; j < DQ_COLUMNS / 8; j++) ptx::add_quad(sums + j * SUMS_STEP, dq_rmem[r][j]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
backward_mma_sync_split(const element* q, const element* k, const element* v,  // as PARAMS has them
                        const element* dout,                                   // [B, H, S_q, D]
                        const float* lse2, const float* delta, float* dq_sum,  // see gradient_rows.cuh
                        element* dk, element* dv,                              // [B, H / group, S_k, D]
                        STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(dout), STRIDES(dk), STRIDES(dv), SIZES,
                        float dk_scale) {
    const Sizes sizes = SIZES_GIVEN;
    const Strides q_strides = STRIDES_GIVEN(q), k_strides = STRIDES_GIVEN(k), v_strides = STRIDES_GIVEN(v);
    const Strides do_strides = STRIDES_GIVEN(dout), dk_strides = STRIDES_GIVEN(dk);
    const Strides dv_strides = STRIDES_GIVEN(dv);
    extern __shared__ __align__(128) element smem[];
    element* k_smem = smem;                      // [BLOCK_KEYS, D], at the end dK
    element* v_smem = k_smem + BLOCK_KEYS * D;   // [BLOCK_KEYS, D], at the end dV
    element* q_smem = v_smem + BLOCK_KEYS * D;   // [SLOTS, BLOCK_ROWS, D]
    element* do_smem = q_smem + SLOTS * TILE;    // [SLOTS, BLOCK_ROWS, D]
    element* p_smem = do_smem + SLOTS * TILE;    // [BUFFERS, BLOCK_KEYS, BLOCK_ROWS], as is dS
    element* ds_smem = p_smem + BUFFERS * WEIGHTS;
    float* rows_smem = (float*)(ds_smem + BUFFERS * WEIGHTS);  // [SLOTS, 2, BLOCK_ROWS]: lse2 and delta
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    RowTile key_tile{int(blockIdx.z), int(blockIdx.x)};
    if (!find_key_tile(key_tile, sizes, BLOCK_KEYS, lane)) return;
    const Keys<BLOCK_KEYS> keys(sizes, key_tile);
    const Sequence& sequence = keys.sequence;
    const int part_key = warp % KEY_PARTS * WARP_ROWS, warp_key = keys.first + part_key;
    const Interval first_seen = keys.rows_of(keys.first), warp_first_seen = keys.rows_of(warp_key);
    const Interval warp_last_seen = keys.rows_of(warp_key + WARP_ROWS - 1);
    const Interval tiles = Interval{first_seen.begin, keys.rows_of(keys.last()).end}.tiles(BLOCK_ROWS);
    const Scale scale(sizes.softmax_scale_log2());
    const bool any = warp_key + WARP_ROWS <= sequence.S_k && scale.sign == 1.0f;
    const Interval whole{warp_last_seen.begin, any ? warp_first_seen.end : 0};  // rows that need no mask

    keys.load<THREADS>(k_smem, k, k_strides, kv_head);
    keys.load<THREADS>(v_smem, v, v_strides, kv_head);
    q = own_chunk(q, q_strides, sequence.batch, 0, sequence.first_row);
    dout = own_chunk(dout, do_strides, sequence.batch, 0, sequence.first_row);
    const long long padded_first = padded_before(sizes, sequence, 0);
    const int end_head = (kv_head + 1) * sizes.group;
    const QueryTiles<BLOCK_ROWS> queries{q_smem, do_smem, rows_smem, q, dout, q_strides, do_strides,
                                         lse2, delta, padded_first, sizes, sequence.S_q};
    const auto load_tile = [&](int h, int tile, int slot) {  // one group each, empty after the last
        if (h < end_head) queries.load<THREADS>(h, tile, slot);
        ptx::cp_async_commit();
    };

    const bool has_dk = warp >= HALF;
    const int own_key = warp % HALF / (D / COLUMNS) * GRADIENT_KEYS;
    const int own_column = warp % HALF % (D / COLUMNS) * COLUMNS;
    const int dq_row = warp % (BLOCK_ROWS / DQ_ROWS) * DQ_ROWS;
    const int dq_column = warp / (BLOCK_ROWS / DQ_ROWS) * DQ_COLUMNS;
    Gradient x_rmem = {};
    const auto weigh = [&](int h, int tile, int slot, int buffer) {  // P and dS of a tile
        const element *q_tile = q_smem + slot * TILE, *do_tile = do_smem + slot * TILE;
        const float* lse2_smem = rows_smem + 2 * slot * BLOCK_ROWS;
        const int part_weights = buffer * WEIGHTS + part_key * Weights::PITCH;
        const Adjustment adjustment(sizes, sequence, h);
#pragma unroll 1
        for (int part = 0; part < BLOCK_ROWS / (ROW_PARTS * BLOCK_N); part++) {
            const int row = (part * ROW_PARTS + warp / KEY_PARTS) * BLOCK_N;
            const int first_row = tile * BLOCK_ROWS + row, end_row = min(first_row + BLOCK_N, sequence.S_q);
            Scores s_rmem = {}, dp_rmem = {};
            score(s_rmem, k_smem + part_key * D, q_tile + row * D, lane);
            // Its distance has no sign.
            const int diagonal = warp_key + lane / 4 - keys.mask.diagonal(first_row);
            if (ADJUSTED) adjust_tile(s_rmem, adjustment, diagonal, lane);
            if (first_row < whole.begin || end_row > whole.end) {
                Interval seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++) {
                    seen[r] = keys.mask.rows_around(diagonal + 8 * r);
                    if (warp_key + 8 * r + lane / 4 >= sequence.S_k) seen[r].begin = BLOCK_N;
                }
                mask_tile(s_rmem, seen, scale.sign, lane);
            }
            exponentiate(p_smem + part_weights, s_rmem, lse2_smem, row, scale.log2, adjustment, diagonal,
                         lane);
            score(dp_rmem, v_smem + part_key * D, do_tile + row * D, lane);
            store_ds(ds_smem + part_weights, s_rmem, dp_rmem, lse2_smem + BLOCK_ROWS, row, lane);
        }
    };
    const auto spread = [&](int h, int tile, int slot, int buffer) {  // what they give dV, dK and dQ
        const int weights = buffer * WEIGHTS, own_weights = weights + own_key * Weights::PITCH;
        multiply<Weights, false, Rows, true, BLOCK_ROWS / 16>(
            x_rmem, (has_dk ? ds_smem : p_smem) + own_weights, 0, (has_dk ? q_smem : do_smem) + slot * TILE,
            own_column, lane);
        const long long padded = padded_first + (long long)h * padded_rows(sizes) + tile * BLOCK_ROWS;
        add_dq(dq_sum, padded, ds_smem + weights, k_smem, dq_row, dq_column, lane);
    };

    int h = tiles.begin < tiles.end ? kv_head * sizes.group : end_head, tile = tiles.begin, slot = 0;
    load_tile(h, tile, slot);
    int h_before = h, tile_before = -1, slot_before = 0, buffer = 0;
    while (h < end_head || (LATE && tile_before >= 0)) {
        ptx::cp_async_wait<0>();  // this thread's part of the tile has arrived, and of K and V
        __syncthreads();          // so have all parts; all warps have read the slot and the P and dS written
                                  // next, and with LATE the P and dS of the tile before are there
        const bool last_tile = tile + 1 == tiles.end;
        const int next_h = last_tile ? h + 1 : h, next_tile = last_tile ? tiles.begin : tile + 1;
        const int next_slot = slot + 1 == SLOTS ? 0 : slot + 1;
        load_tile(next_h, next_tile, next_slot);
        if constexpr (LATE) {
#pragma unroll 1
            for (int turn = 0; turn < 2; turn++) {
                if ((turn == 0) == has_dk) {
                    if (h < end_head) weigh(h, tile, slot, buffer);
                } else if (tile_before >= 0) {
                    spread(h_before, tile_before, slot_before, buffer ^ 1);
                }
            }
            h_before = h, tile_before = h < end_head ? tile : -1, slot_before = slot, buffer ^= 1;
        } else {
            weigh(h, tile, slot, 0);
            __syncthreads();  // P and dS of all keys are there
            spread(h, tile, slot, 0);
        }
        h = next_h, tile = next_tile, slot = next_slot;
    }

    ptx::cp_async_wait<0>();  // where there was no tile, K and V are still under way
    __syncthreads();          // all warps have read K for the last time before dK takes its place
    const int first = sequence.first_key + keys.first + own_key;
    const Strides strides = has_dk ? dk_strides : dv_strides;
    store_gradient((has_dk ? dk : dv) + strides.at(sequence.batch, kv_head, first), strides.row, x_rmem,
                   has_dk ? dk_scale : 1.0f, (has_dk ? k_smem : v_smem) + own_key * D, own_column,
                   sizes.all_keys(sequence) - keys.first - own_key, lane);
}
