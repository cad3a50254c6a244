// The backward pass on mma.sync: the warps of a block share keys, rows and gradients in three ways.
//
// A block owns BLOCK_KEYS keys of one K/V head, and walks over the query heads that share it and over their
// tiles of BLOCK_ROWS query rows. What shared memory must deliver limits mma.sync here, and a product asks for the
// less of it the larger the part of its result that one warp has. So each product has its own parts:
//   S^T = K Q^T and dP^T = V dO^T: 32 keys x BLOCK_N rows of both. P = 2^(scale S - lse2) and dS =
// P (dP - delta) go through shared memory, [BLOCK_KEYS, BLOCK_ROWS] each, as elements.
//   dV += P^T dO and dK += dS^T Q: one half of the warps has dV, the other dK; a warp has GRADIENT_KEYS keys x
// 64 columns of it in registers, over all heads and tiles.
//   dQ = dS K: 32 rows x DQ_COLUMNS columns, added to the sums in global memory, as the blocks of other keys
// do.
// Rows of S^T are keys and columns are queries: warp_rows.cuh does all but the transposed products.
// gradient_rows.cuh has lse2 and delta of every row, such that P is 0 in padding and in rows that see no key.
// The mask makes S -inf, after the scale's sign. cp.async fills the other slot of Q, dO, lse2 and delta while
// a tile is multiplied.
#include "gradient_rows.cuh"
#include "warp_rows.cuh"

static_assert(D == D_V, "S and dP, dK and dV are made by the same code");
constexpr int THREADS = 32 * WARPS, TILE = BLOCK_ROWS * D;
constexpr int SLOTS = LATE ? 3 : 2, BUFFERS = LATE ? 2 : 1;
constexpr int KEY_PARTS = BLOCK_KEYS / WARP_ROWS, ROW_PARTS = WARPS / KEY_PARTS;  // warps along keys, rows
constexpr int HALF = WARPS / 2, COLUMNS = 64, GRADIENT_KEYS = BLOCK_KEYS * (D / COLUMNS) / HALF;
constexpr int DQ_ROWS = 32, DQ_COLUMNS = D * BLOCK_ROWS / (DQ_ROWS * WARPS);
static_assert(WARPS % KEY_PARTS == 0 && BLOCK_ROWS % (ROW_PARTS * BLOCK_N) == 0, "whole parts");
using Rows = Tile<D>;
using Weights = Tile<BLOCK_ROWS>;  // P^T or dS^T: a row for each key
using Gradient = Result[GRADIENT_KEYS / 16][COLUMNS / 8];  // the warp's part of dK or dV

// S^T = K Q^T or dP^T = V dO^T: 32 keys from `own_smem` on, BLOCK_N rows from `tile_smem` on.
__device__ __forceinline__ void multiply(Scores& s_rmem, const element* own_smem, const element* tile_smem,
                                         int lane) {
    const int own_offset = Rows::swizzled(lane % 16, lane / 16);
    const int tile_offset = Rows::swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s_rmem[r][n][i] = 0.0f;
#pragma unroll UNROLL
    for (int k = 0; k < D / 16; k++) {
        Operand own_rmem[ROW_TILES];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
            ptx::ldmatrix_x4(own_rmem[r], own_smem + 16 * r * Rows::PITCH + Rows::step(own_offset, k));
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; n++) {
            Operand tile_rmem;
            ptx::ldmatrix_x4(tile_rmem, tile_smem + 16 * n * Rows::PITCH + Rows::step(tile_offset, k));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                ptx::mma_m16n8k16(s_rmem[r][2 * n], own_rmem[r], tile_rmem[0], tile_rmem[1]);
                ptx::mma_m16n8k16(s_rmem[r][2 * n + 1], own_rmem[r], tile_rmem[2], tile_rmem[3]);
            }
        }
    }
}

// 16 rows of all of the warp's keys, from row 16 * n of the part on, whose first is `row` of the tile.
__device__ __forceinline__ void store_weights(element* weights_smem, const Operand (&packed)[ROW_TILES],
                                              int row, int n, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        element* keys_smem = weights_smem + 16 * r * Weights::PITCH;
#if STMATRIX
        ptx::stmatrix_x4(keys_smem + Weights::step(Weights::swizzled(lane % 16, lane / 16), row / 16 + n), packed[r]);
#else
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint32_t*)(keys_smem + i % 2 * 8 * Weights::PITCH +
                         ((Weights::swizzled(lane / 4, 0) + lane % 4 * 2) ^ (row + 16 * n + i / 2 * 8))) = packed[r][i];
#endif
    }
}

// P into shared memory, for rows of the tile from `row` on. What dS = P (dP - delta) takes for P, in place of
// S^T: P, times the softcap's derivative, 1 - tanh^2. `diagonal`: as adjust_tile has it.
__device__ __forceinline__ void exponentiate(element* p_smem, Scores& s_rmem, const float* lse2_smem, int row,
                                             float scale_log2, const Adjustment& adjustment, int diagonal,
                                             int lane) {
    Operand packed[ROW_TILES];
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 lse2 = *(const float2*)(lse2_smem + row + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            float* s = &s_rmem[r / 2][n][r % 2 * 2];
            const float p[2] = {ptx::ex2(s[0] * scale_log2 - lse2.x), ptx::ex2(s[1] * scale_log2 - lse2.y)};
            packed[r / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p[0], p[1]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int from_diagonal = diagonal + 8 * r - 8 * n - lane % 4 * 2 - i;
                float tanh = s[i];  // -inf where it is masked
                if (SOFTCAP && ALIBI)
                    tanh = (tanh + adjustment.slope_log2 * abs(from_diagonal)) / adjustment.cap_log2;
                s[i] = SOFTCAP ? p[i] * (1.0f - fminf(tanh * tanh, 1.0f)) : p[i];
            }
        }
        if (n % 2 == 1) store_weights(p_smem, packed, row, n / 2, lane);
    }
}

// dS into shared memory.
__device__ __forceinline__ void store_ds(element* ds_smem, const Scores& p_rmem, const Scores& dp_rmem,
                                         const float* delta_smem, int row, int lane) {
    Operand packed[ROW_TILES];
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 delta = *(const float2*)(delta_smem + row + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float *p = &p_rmem[r / 2][n][r % 2 * 2], *dp = &dp_rmem[r / 2][n][r % 2 * 2];
            packed[r / 2][n % 2 * 2 + r % 2] =
                ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));
        }
        if (n % 2 == 1) store_weights(ds_smem, packed, row, n / 2, lane);
    }
}

// dV += P^T dO or dK += dS^T Q: `weights_smem` at the warp's first key, of the tile COLUMNS from `column` on.
__device__ __forceinline__ void accumulate(Gradient& x_rmem, const element* weights_smem,
                                           const element* tile_smem, int column, int lane) {
    const int weights_offset = Weights::swizzled(lane % 16, lane / 16);
    const int tile_offset = Rows::swizzled(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS / 16; k++) {
        Operand w_rmem[GRADIENT_KEYS / 16];
#pragma unroll
        for (int r = 0; r < GRADIENT_KEYS / 16; r++)
            ptx::ldmatrix_x4(w_rmem[r],
                             weights_smem + 16 * r * Weights::PITCH + Weights::step(weights_offset, k));
#pragma unroll
        for (int d = 0; d < COLUMNS / 16; d++) {
            Operand tile_rmem;
            ptx::ldmatrix_x4_trans(tile_rmem, tile_smem + 16 * k * Rows::PITCH +
                                                  Rows::step(tile_offset, column / 16 + d));
#pragma unroll
            for (int r = 0; r < GRADIENT_KEYS / 16; r++) {
                ptx::mma_m16n8k16(x_rmem[r][2 * d], w_rmem[r], tile_rmem[0], tile_rmem[1]);
                ptx::mma_m16n8k16(x_rmem[r][2 * d + 1], w_rmem[r], tile_rmem[2], tile_rmem[3]);
            }
        }
    }
}

// dQ += dS K of DQ_ROWS rows from `row` on and DQ_COLUMNS columns from `column` on, over the block's keys.
// `padded`: where the tile's first row is among padded rows.
__device__ __forceinline__ void add_dq(float* dq_sum, long long padded, const element* ds_smem,
                                       const element* k_smem, int row, int column, int lane) {
    const int k_offset = Rows::swizzled(lane % 16, lane / 16);
    const int ds_offset = Weights::swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    Result dq_rmem[DQ_ROWS / 16][DQ_COLUMNS / 8] = {};
#pragma unroll DQ_COLUMNS > 32 ? 2 : 4
    for (int key = 0; key < BLOCK_KEYS; key += 16) {
        Operand ds_rmem[DQ_ROWS / 16];
#pragma unroll
        for (int r = 0; r < DQ_ROWS / 16; r++)
            ptx::ldmatrix_x4_trans(ds_rmem[r],
                                   ds_smem + key * Weights::PITCH + Weights::step(ds_offset, row / 16 + r));
#pragma unroll
        for (int d = 0; d < DQ_COLUMNS / 16; d++) {
            Operand k_rmem;
            ptx::ldmatrix_x4_trans(k_rmem, k_smem + key * Rows::PITCH + Rows::step(k_offset, column / 16 + d));
#pragma unroll
            for (int r = 0; r < DQ_ROWS / 16; r++) {
                ptx::mma_m16n8k16(dq_rmem[r][2 * d], ds_rmem[r], k_rmem[0], k_rmem[1]);
                ptx::mma_m16n8k16(dq_rmem[r][2 * d + 1], ds_rmem[r], k_rmem[2], k_rmem[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < DQ_ROWS / 16; r++) {
        float* sums = dq_sum + sums_before<D>(padded + row + 16 * r, column / 8, lane);
#pragma unroll
        for (int j = 0; j < DQ_COLUMNS / 8; j++) ptx::add_quad(sums + j * SUMS_STEP, dq_rmem[r][j]);
    }
}

// The warp's part of dK or dV, `inside` keys of it, through shared memory that no other warp uses then.
__device__ __forceinline__ void store_gradient(element* gradient, long long row_stride,
                                               const Gradient& x_rmem, float factor, element* own_smem,
                                               int column, int inside, int lane) {
#pragma unroll
    for (int r = 0; r < GRADIENT_KEYS / 8; r++)
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d++) {
            const float* x = &x_rmem[r / 2][d][r % 2 * 2];
            *(uint32_t*)(own_smem + Rows::swizzled(8 * r + lane / 4, column / 8 + d) + lane % 4 * 2) =
                ptx::pack_pair(x[0] * factor, x[1] * factor);
        }
    __syncwarp();  // the rows are whole before lanes read what others wrote
#pragma unroll
    for (int n = 0; n < GRADIENT_KEYS; n += 4) {
        const int row = n + lane / 8, chunk = column / 8 + lane % 8;
        if (row < inside)
            *(uint4*)(gradient + row * row_stride + 8 * chunk) =
                *(const uint4*)(own_smem + Rows::swizzled(row, chunk));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
backward_mma_split(const element* q, const element* k, const element* v,  // as PARAMS has them
                   const element* dout,                                   // [B, H, S_q, D]
                   const float* lse2, const float* delta, float* dq_sum,  // as gradient_rows.cuh has them
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
    element* ds_smem = p_smem + BUFFERS * BLOCK_KEYS * Weights::PITCH;
    float* rows_smem = (float*)(ds_smem + BUFFERS * BLOCK_KEYS * Weights::PITCH);  // [SLOTS, 2, BLOCK_ROWS]: lse2 and delta
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    RowTile key_tile{int(blockIdx.z), int(blockIdx.x)};
    if (!find_key_tile(key_tile, sizes, BLOCK_KEYS, lane)) return;
    const Sequence sequence = sizes.sequence(key_tile.sequence);
    const Mask mask(sizes, sequence);
    const int b = sequence.batch, first_key = key_tile.tile * BLOCK_KEYS;
    const int part_key = warp % KEY_PARTS * WARP_ROWS, warp_key = first_key + part_key;
    const auto rows_of = [&](int key) { return key < sequence.S_k ? mask.rows(key) : Interval{0, 0}; };
    const Interval first_seen = rows_of(first_key), warp_first_seen = rows_of(warp_key);
    const Interval warp_last_seen = rows_of(warp_key + WARP_ROWS - 1);
    const int last_key = min(first_key + BLOCK_KEYS, sequence.S_k) - 1;
    const Interval tiles = Interval{first_seen.begin, rows_of(max(last_key, first_key)).end}.tiles(BLOCK_ROWS);
    const Scale scale(sizes.softmax_scale_log2());
    const bool any = warp_key + WARP_ROWS <= sequence.S_k && scale.sign == 1.0f;
    const Interval whole{warp_last_seen.begin, any ? warp_first_seen.end : 0};  // rows that need no mask

    const int thread_row = threadIdx.x / Rows::LANES, thread_column = threadIdx.x % Rows::LANES * 8;
    const int thread_key = sequence.first_key + first_key + thread_row, inside_k = sequence.S_k - first_key;
    load_rows_async<D, BLOCK_KEYS, THREADS>(k_smem, k + k_strides.at(b, kv_head, thread_key) + thread_column,
                                            k_strides.row, inside_k, threadIdx.x);
    load_rows_async<D, BLOCK_KEYS, THREADS>(v_smem, v + v_strides.at(b, kv_head, thread_key) + thread_column,
                                            v_strides.row, inside_k, threadIdx.x);
    q += q_strides.at(b, 0, sequence.first_row + thread_row) + thread_column;
    dout += do_strides.at(b, 0, sequence.first_row + thread_row) + thread_column;
    const long long padded_first = padded_before(sizes, sequence, 0);
    const int end_head = (kv_head + 1) * sizes.group;
    auto load_tile = [&](int h, int tile, int slot) {  // one group each, empty after the last
        if (h < end_head) {
            const int first_row = tile * BLOCK_ROWS, inside = sequence.S_q - first_row;
            const element* q_tile = q + q_strides.at(0, h, first_row);
            const element* do_tile = dout + do_strides.at(0, h, first_row);
            load_rows_async<D, BLOCK_ROWS, THREADS>(q_smem + slot * TILE, q_tile, q_strides.row, inside,
                                                    threadIdx.x);
            load_rows_async<D, BLOCK_ROWS, THREADS>(do_smem + slot * TILE, do_tile, do_strides.row, inside,
                                                    threadIdx.x);
            if (threadIdx.x < BLOCK_ROWS / 2) {  // 16 bytes of lse2 or of delta
                const int part = threadIdx.x / (BLOCK_ROWS / 4), four = threadIdx.x % (BLOCK_ROWS / 4) * 4;
                const long long padded = padded_first + (long long)h * padded_rows(sizes) + first_row + four;
                ptx::cp_async_16(rows_smem + (2 * slot + part) * BLOCK_ROWS + four,
                                 (part == 0 ? lse2 : delta) + padded);
            }
        }
        ptx::cp_async_commit();
    };

    const bool has_dk = warp >= HALF;
    const int own_key = warp % HALF / (D / COLUMNS) * GRADIENT_KEYS;
    const int own_column = warp % HALF % (D / COLUMNS) * COLUMNS;
    const int dq_row = warp % (BLOCK_ROWS / DQ_ROWS) * DQ_ROWS, dq_column = warp / (BLOCK_ROWS / DQ_ROWS) * DQ_COLUMNS;
    Gradient x_rmem = {};
    const auto weigh = [&](int h, int tile, int slot, int buffer) {  // P and dS of a tile
        const element *q_tile = q_smem + slot * TILE, *do_tile = do_smem + slot * TILE;
        const float* lse2_smem = rows_smem + 2 * slot * BLOCK_ROWS;
        const int part_weights = (buffer * BLOCK_KEYS + part_key) * Weights::PITCH;
        const Adjustment adjustment(sizes, sequence, h);
#pragma unroll 1
        for (int part = 0; part < BLOCK_ROWS / (ROW_PARTS * BLOCK_N); part++) {
            const int row = (part * ROW_PARTS + warp / KEY_PARTS) * BLOCK_N;
            const int first_row = tile * BLOCK_ROWS + row, end_row = min(first_row + BLOCK_N, sequence.S_q);
            Scores s_rmem, dp_rmem;
            multiply(s_rmem, k_smem + part_key * D, q_tile + row * D, lane);
            const int diagonal = warp_key + lane / 4 - mask.diagonal(first_row);  // its distance has no sign
            if (ADJUSTED) adjust_tile(s_rmem, adjustment, diagonal, lane);
            if (first_row < whole.begin || end_row > whole.end) {
                Interval seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++) {
                    seen[r] = mask.rows_around(diagonal + 8 * r);
                    if (warp_key + 8 * r + lane / 4 >= sequence.S_k) seen[r].begin = BLOCK_N;
                }
                mask_tile(s_rmem, seen, scale.sign, lane);
            }
            exponentiate(p_smem + part_weights, s_rmem, lse2_smem, row, scale.log2, adjustment, diagonal, lane);
            multiply(dp_rmem, v_smem + part_key * D, do_tile + row * D, lane);
            store_ds(ds_smem + part_weights, s_rmem, dp_rmem, lse2_smem + BLOCK_ROWS, row, lane);
        }
    };
    const auto spread = [&](int h, int tile, int slot, int buffer) {  // what they give dV, dK and dQ
        const int weights = buffer * BLOCK_KEYS * Weights::PITCH, own_weights = weights + own_key * Weights::PITCH;
        accumulate(x_rmem, (has_dk ? ds_smem : p_smem) + own_weights, (has_dk ? q_smem : do_smem) + slot * TILE,
                   own_column, lane);
        const long long padded = padded_first + (long long)h * padded_rows(sizes) + tile * BLOCK_ROWS;
        add_dq(dq_sum, padded, ds_smem + weights, k_smem, dq_row, dq_column, lane);
    };

    int h = tiles.begin < tiles.end ? kv_head * sizes.group : end_head, tile = tiles.begin, slot = 0;
    load_tile(h, tile, slot);
    int h_before = h, tile_before = -1, slot_before = 0, buffer = 0;
    while (h < end_head || (LATE && tile_before >= 0)) {
        ptx::cp_async_wait<0>();  // this thread's part of the tile has arrived, and of K and V
        __syncthreads();          // so have all parts, and all warps have read P, dS and the slot filled next
        const bool last_tile = tile + 1 == tiles.end;
        const int next_h = last_tile ? h + 1 : h, next_tile = last_tile ? tiles.begin : tile + 1;
        const int next_slot = slot + 1 == SLOTS ? 0 : slot + 1;
        if (!LOAD_LATE) load_tile(next_h, next_tile, next_slot);
        if (LATE) {
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
            if (LOAD_LATE) load_tile(next_h, next_tile, next_slot);
            spread(h, tile, slot, 0);
        }
        h = next_h, tile = next_tile, slot = next_slot;
    }

    ptx::cp_async_wait<0>();  // where there was no tile, K and V are still under way
    __syncthreads();          // all warps have read K for the last time before dK takes its place
    const int first = sequence.first_key + first_key + own_key;
    const Strides strides = has_dk ? dk_strides : dv_strides;
    store_gradient((has_dk ? dk : dv) + strides.at(b, kv_head, first), strides.row, x_rmem,
                   has_dk ? dk_scale : 1.0f, (has_dk ? k_smem : v_smem) + own_key * D, own_column,
                   sizes.all_keys(sequence) - first_key - own_key, lane);
}
