// The backward pass on mma.sync: a warp owns keys, as it owns query rows in stage 12.
//
// A block owns BLOCK_KEYS keys of one K/V head, and walks over the query heads that share it and over their
// tiles of BLOCK_N query rows. Rows of a warp are keys here, and columns are queries: what warp_rows.cuh does
// to S = Q K^T and to O += P V makes S^T = K Q^T and dP^T = V dO^T, then dV += P^T dO and dK += dS^T Q, with
// P^T and dS^T from registers. dK and dV stay in registers over all heads and tiles.
//   P = 2^(scale S - lse2), dS = P (dP - delta): gradient_rows.cuh has lse2 and delta of every row, such that
// P is 0 in padding and in rows that see no key. The mask makes S -inf, after the scale's sign.
// Only dQ = dS K sums over keys of all warps: dS^T goes through shared memory, [BLOCK_KEYS][BLOCK_N] in rows
// padded by 16 bytes, which 4-byte stores and ldmatrix meet without conflicts. A warp multiplies 16 queries
// by COLUMNS columns of K, and adds to the sums in global memory, as the blocks of other keys do.
// cp.async fills the other slot of Q, dO, lse2 and delta while a tile is multiplied.
#include "dropout.cuh"
#include "gradient_keys.cuh"

constexpr int THREADS = 32 * WARPS, BLOCK_KEYS = WARPS * WARP_ROWS, TILE = BLOCK_N * D, SLOTS = 2;
constexpr int DS_PITCH = BLOCK_N + 8, QUERY_TILES = BLOCK_N / 16, COLUMNS = D / (WARPS / QUERY_TILES);
using Gradient = Output;  // of the warp's keys: dK or dV

// P and what dS takes for it, as exponentiate_pair has them. With a softcap P itself is packed now, otherwise
// when dS is there.
__device__ __forceinline__ void exponentiate(P& p_rmem, Scores& s_rmem, const float* lse2_smem,
                                             float scale_log2, const Adjustment& adjustment, int diagonal,
                                             int lane) {
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 lse2 = *(const float2*)(lse2_smem + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const uint32_t p = exponentiate_pair(&s_rmem[r / 2][n][r % 2 * 2], lse2, scale_log2, adjustment,
                                                 diagonal + 8 * r - 8 * n - lane % 4 * 2);
            if (SOFTCAP) p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = p;
        }
    }
}

// A bit for each of the lane's elements, in the order of `bit`: whether it is kept. `key`, `row`: the first of
// the lane's keys, and the tile's first query row.
__device__ __forceinline__ constexpr uint32_t bit(int r, int n, int i) {
    return 1u << (2 * LANE_ROWS * n + 2 * r + i);
}
__device__ __forceinline__ uint32_t kept_elements(const Dropout& dropout, int key, int row, int lane) {
    static_assert(!DROPOUT || LANE_ROWS * BLOCK_N / 4 <= 32, "a register has all bits");
    uint32_t kept = 0;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n += 2) {
        Draws words[2];
        dropout.draw(words, row + 8 * n + lane % 4 * 2, key, true);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (ROW_TILES == 1 && key & 16) words[i][0] = words[i][2], words[i][1] = words[i][3];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
                for (int upper = 0; upper < 2; upper++)
                    if (dropout.kept(words[i][r], upper)) kept |= bit(r, n + upper, i);
        }
    }
    return kept;
}

// P^T and dS^T as left operands, and dS^T of the warp's keys into shared memory.
__device__ __forceinline__ void pack_gradients(P& p_rmem, P& ds_rmem, const Scores& s_rmem,
                                               const Scores& dp_rmem, element* ds_smem,
                                               const float* delta_smem, int lane) {
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float *p = &s_rmem[r / 2][n][r % 2 * 2], *dp = &dp_rmem[r / 2][n][r % 2 * 2];
            const uint32_t ds = ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));
            if (!SOFTCAP) p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p[0], p[1]);
            ds_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ds;
            *(uint32_t*)(ds_smem + (8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2) = ds;
        }
    }
}

// The same with dropout: P^T as it met V, and dP^T for P as it was before.
__device__ __forceinline__ void pack_dropped(P& p_rmem, P& ds_rmem, const Scores& s_rmem,
                                             const Scores& dp_rmem, element* ds_smem,
                                             const float* delta_smem, uint32_t kept, float keep_scale,
                                             int lane) {
    element* row_smem = ds_smem + lane / 4 * DS_PITCH + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float2 delta = *(const float2*)&delta_smem[8 * n + lane % 4 * 2];
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const float *p = s_rmem[r / 2][n] + r % 2 * 2, *dp = dp_rmem[r / 2][n] + r % 2 * 2;
            const bool x = kept & bit(r, n, 0), y = kept & bit(r, n, 1);
            const int place = n % 2 * 2 + r % 2;
            p_rmem[r / 2][n / 2][place] = ptx::pack_pair(x ? p[0] : 0.0f, y ? p[1] : 0.0f);
            const uint32_t ds = ptx::pack_pair(p[0] * (x ? dp[0] * keep_scale - delta.x : -delta.x),
                                               p[1] * (y ? dp[1] * keep_scale - delta.y : -delta.y));
            ds_rmem[r / 2][n / 2][place] = ds;
            *(uint32_t*)(row_smem + 8 * r * DS_PITCH + 8 * n) = ds;
        }
    }
}

// dQ += dS K of 16 queries, from `ds_smem` on, and COLUMNS columns, from `column` on, over the block's keys.
__device__ __forceinline__ void add_dq(float* lane_sums, const element* ds_smem, const element* k_smem,
                                       int column, int lane) {
    const int lane_offset = Rows::swizzled(lane % 16, lane / 16);
    const element* ds_row = ds_smem + (lane / 16 * 8 + lane % 8) * DS_PITCH + lane / 8 % 2 * 8;
    Result dq_rmem[COLUMNS / 8] = {};
#pragma unroll COLUMNS > 32 ? 2 : 4
    for (int key = 0; key < BLOCK_KEYS; key += 16) {
        Operand ds_rmem;
        ptx::ldmatrix_x4_trans(ds_rmem, ds_row + key * DS_PITCH);
#pragma unroll
        for (int d = 0; d < COLUMNS / 16; d++) {
            Operand k_rmem;
            const int offset = key * Rows::PITCH + Rows::step(lane_offset, column / 16 + d);
            ptx::ldmatrix_x4_trans(k_rmem, k_smem + offset);
            ptx::mma_m16n8k16(dq_rmem[2 * d], ds_rmem, k_rmem[0], k_rmem[1]);
            ptx::mma_m16n8k16(dq_rmem[2 * d + 1], ds_rmem, k_rmem[2], k_rmem[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) ptx::add_quad(lane_sums + j * SUMS_STEP, dq_rmem[j]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
backward_mma_sync(const element* q, const element* k, const element* v,  // as PARAMS has them
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
    element* k_smem = smem;                          // [BLOCK_KEYS, D], at the end dK
    element* v_smem = k_smem + BLOCK_KEYS * D;       // [BLOCK_KEYS, D], at the end dV
    element* q_smem = v_smem + BLOCK_KEYS * D;       // [SLOTS, BLOCK_N, D]
    element* do_smem = q_smem + SLOTS * TILE;        // [SLOTS, BLOCK_N, D]
    element* ds_smem = do_smem + SLOTS * TILE;       // [BLOCK_KEYS, DS_PITCH]
    float* rows_smem = (float*)(ds_smem + BLOCK_KEYS * DS_PITCH);  // [SLOTS, 2, BLOCK_N]: lse2 and delta
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    RowTile key_tile{int(blockIdx.z), int(blockIdx.x)};
    if (!find_key_tile(key_tile, sizes, BLOCK_KEYS, lane)) return;
    const Keys<BLOCK_KEYS> keys(sizes, key_tile);
    const Sequence& sequence = keys.sequence;
    const int warp_key = keys.first + warp * WARP_ROWS;
    const Interval first_seen = keys.rows_of(keys.first), warp_first_seen = keys.rows_of(warp_key);
    const Interval warp_last_seen = keys.rows_of(warp_key + WARP_ROWS - 1);
    const Interval tiles = Interval{first_seen.begin, keys.rows_of(keys.last()).end}.tiles(BLOCK_N);
    const Scale scale(sizes.softmax_scale_log2());

    keys.load<THREADS>(k_smem, k, k_strides, kv_head);
    keys.load<THREADS>(v_smem, v, v_strides, kv_head);
    q = own_chunk(q, q_strides, sequence.batch, 0, sequence.first_row);
    dout = own_chunk(dout, do_strides, sequence.batch, 0, sequence.first_row);
    const long long padded_first = padded_before(sizes, sequence, 0);
    const int end_head = (kv_head + 1) * sizes.group;
    const QueryTiles<BLOCK_N> queries{q_smem, do_smem, rows_smem, q, dout, q_strides, do_strides,
                                      lse2, delta, padded_first, sizes, sequence.S_q};
    const auto load_tile = [&](int h, int tile, int slot) {  // one group each, empty after the last
        if (h < end_head) queries.load<THREADS>(h, tile, slot);
        ptx::cp_async_commit();
    };

    Gradient dk_rmem = {}, dv_rmem = {};
    element *k_own = k_smem + warp * WARP_ROWS * D, *v_own = v_smem + warp * WARP_ROWS * D;
    int h = tiles.begin < tiles.end ? kv_head * sizes.group : end_head, tile = tiles.begin, slot = 0;
    load_tile(h, tile, slot);
    while (h < end_head) {
        ptx::cp_async_wait<0>();  // this thread's part of the tile has arrived, and of K and V
        __syncthreads();          // so have all parts, and all warps have read dS and the slot filled next
        const bool last_tile = tile + 1 == tiles.end;
        const int next_h = last_tile ? h + 1 : h, next_tile = last_tile ? tiles.begin : tile + 1;
        load_tile(next_h, next_tile, slot ^ 1);
        const element *q_tile = q_smem + slot * TILE, *do_tile = do_smem + slot * TILE;
        const int first_row = tile * BLOCK_N, end_row = min(first_row + BLOCK_N, sequence.S_q);
        Scores s_rmem, dp_rmem;
        Queries keys_rmem;
        P p_rmem, ds_rmem;
        uint32_t kept = 0;
        if (DROPOUT)
            kept = kept_elements(Dropout(sizes.features, sequence.batch, h), warp_key + lane / 4, first_row,
                                 lane);
        score_tile<false>(s_rmem, keys_rmem, k_own, q_tile, lane);
        const Adjustment adjustment(sizes, sequence, h);
        const int diagonal = warp_key + lane / 4 - keys.mask.diagonal(first_row);  // its distance has no sign
        if (ADJUSTED) adjust_tile(s_rmem, adjustment, diagonal, lane);
        const bool masked = first_row < warp_last_seen.begin || end_row > warp_first_seen.end ||
                            warp_key + WARP_ROWS > sequence.S_k || scale.sign != 1.0f;
        if (masked) {
            Interval seen[LANE_ROWS];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++)
                seen[r] = keys.rows_of(warp_key + 8 * r + lane / 4).from(first_row);
            mask_tile(s_rmem, seen, scale.sign, lane);
        }
        exponentiate(p_rmem, s_rmem, rows_smem + 2 * slot * BLOCK_N, scale.log2, adjustment, diagonal, lane);
        score_tile<false>(dp_rmem, keys_rmem, v_own, do_tile, lane);
        if (DROPOUT)
            pack_dropped(p_rmem, ds_rmem, s_rmem, dp_rmem, ds_smem + warp * WARP_ROWS * DS_PITCH,
                         rows_smem + BLOCK_N + 2 * slot * BLOCK_N, kept, sizes.features.keep_scale, lane);
        else
            pack_gradients(p_rmem, ds_rmem, s_rmem, dp_rmem, ds_smem + warp * WARP_ROWS * DS_PITCH,
                           rows_smem + (2 * slot + 1) * BLOCK_N, lane);
        accumulate_pv(dv_rmem, p_rmem, do_tile, lane);
        accumulate_pv(dk_rmem, ds_rmem, q_tile, lane);
        __syncthreads();  // dS of all keys is there
        const int query = warp % QUERY_TILES * 16, column = warp / QUERY_TILES * COLUMNS;
        const long long padded = padded_first + (long long)h * padded_rows(sizes) + first_row + query;
        add_dq(dq_sum + sums_before<D>(padded, column / 8, lane), ds_smem + query, k_smem, column, lane);
        h = next_h, tile = next_tile, slot ^= 1;
    }

    ptx::cp_async_wait<0>();  // where there was no tile, K and V are still under way
    __syncthreads();          // all warps have read K for the last time before dK takes its place
    const int warp_row = sequence.first_key + warp_key, inside = sizes.all_keys(sequence) - warp_key;
    store_gradient(dk + dk_strides.at(sequence.batch, kv_head, warp_row), dk_strides.row,
                   dk_rmem, dk_scale, k_own, 0, inside, lane);
    store_gradient(dv + dv_strides.at(sequence.batch, kv_head, warp_row), dv_strides.row,
                   dv_rmem, sizes.features.keep_scale, v_own, 0, inside, lane);
}
