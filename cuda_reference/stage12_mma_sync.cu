// Stage 12: FlashAttention-2 on mma.sync. What stage 11 passed through shared memory stays in registers.
//
// A block owns BLOCK_M query rows of one head and walks over the K/V tiles of BLOCK_N keys; each of its WARPS
// warps owns WARP_ROWS of the rows from Q to O (warp_rows.cuh), so warps share K and V and nothing else: one
// barrier a tile. Shared memory holds Q, which O replaces at the end, and STAGES slots of a K and a V tile:
// cp.async fills the slot of tile t + STAGES - 1 while tile t is multiplied.
// A fragment of K or V costs shared memory 4 cycles and feeds 2 * ROW_TILES mma: with one row tile a warp,
// four warps ask for more than shared memory delivers; with two the tensor cores are the slower ones.
// Softmax costs 3.5 instructions a score: the FFMA scale * s - m, ex2, the sum, half a conversion. Only the
// first tile, tiles that cross the diagonal or the end of K, and tiles whose weights grow too great for the
// old m are done with care: mask, maximum, rescaling. Without LAZY_MAX all are: the code is shorter, which
// counts where a warp has few tiles.
#include "warp_rows.cuh"

constexpr int BLOCK_M = WARPS * WARP_ROWS, THREADS = 32 * WARPS, TILE = BLOCK_N * D;

// A lane's part of its r-th row of O as halves, to where Q was: `may_overflow` of it.
template <bool CLAMP>
__device__ __forceinline__ bool store_row(half* o_smem, const Output& o_rmem, int r, float inv_l, int lane) {
    uint32_t products = 0;
#pragma unroll
    for (int d = 0; d < D / 8; d += 2) {
        uint32_t pairs[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float* o = &o_rmem[r / 2][d + i][r % 2 * 2];
            pairs[i] = output_pair<CLAMP>(o[0] * inv_l, o[1] * inv_l);
            *(uint32_t*)(o_smem + swizzled(8 * r + lane / 4, d + i) + lane % 4 * 2) = pairs[i];
        }
        products = ptx::fma_half2(pairs[0], pairs[1], products);
    }
    return may_overflow(products);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
mma_sync(const half* q, const half* k, const half* v,  // [B, H, S_q, D], [B, H / group, S_k, D] twice
         half* out, float* lse,                        // [B, H, S_q, D]; [B, H, S_q] or null
         long long q_batch, long long q_head, long long q_row,  // strides in elements
         long long k_batch, long long k_head, long long k_row,
         long long v_batch, long long v_head, long long v_row,
         long long out_batch, long long out_head, long long out_row,
         int S_q, int S_k, int H, int group, float scale_log2, int causal, int longest_first) {
    extern __shared__ __align__(128) half smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = longest_first ? blockIdx.x : blockIdx.y;
    half* q_smem = smem + warp * WARP_ROWS * D;  // [WARP_ROWS, D]: the warp's own rows, at the end of O
    half* k_smem = smem + BLOCK_M * D;           // [STAGES, BLOCK_N, D]
    half* v_smem = k_smem + STAGES * TILE;       // [STAGES, BLOCK_N, D]
    // Longest first: under a causal mask the last rows of all heads see most keys, so they start first, and
    // the last to start are short. Otherwise neighbouring blocks share a head, with its K and V in the L2.
    const int b = longest_first ? blockIdx.y : blockIdx.z;
    const int first_row = (longest_first ? gridDim.z - 1 - blockIdx.z : blockIdx.x) * BLOCK_M;
    const int warp_row = first_row + warp * WARP_ROWS;
    auto keys_seen = [&](int row) { return causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k; };
    const int block_sees = keys_seen(min(first_row + BLOCK_M, S_q) - 1);
    const int warp_sees = keys_seen(warp_row + WARP_ROWS - 1), top_row_sees = keys_seen(warp_row);
    const int tiles = (block_sees + BLOCK_N - 1) / BLOCK_N;
    const float sign = scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f;
    scale_log2 = scale_log2 == 0 ? 1.0f : fabsf(scale_log2);

    q += b * q_batch + h * q_head + (warp_row + lane / CHUNKS) * q_row + lane % CHUNKS * 8;
    k += b * k_batch + h / group * k_head + threadIdx.x / CHUNKS * k_row + threadIdx.x % CHUNKS * 8;
    v += b * v_batch + h / group * v_head + threadIdx.x / CHUNKS * v_row + threadIdx.x % CHUNKS * 8;
    auto load_tile = [&](int tile) {  // the tiles in turn; one group each, empty after the last
        if (tile < tiles) {
            const int slot = tile % STAGES * TILE, inside = S_k - tile * BLOCK_N;
            load_rows_async<BLOCK_N, THREADS>(k_smem + slot, k, k_row, inside, threadIdx.x);
            load_rows_async<BLOCK_N, THREADS>(v_smem + slot, v, v_row, inside, threadIdx.x);
            k += BLOCK_N * k_row, v += BLOCK_N * v_row;
        }
        ptx::cp_async_commit();
    };
    load_rows_async<WARP_ROWS, 32>(q_smem, q, q_row, S_q - warp_row, lane);
    ptx::cp_async_commit();
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) load_tile(tile);

    Output o_rmem = {};
    Queries q_rmem;
    RowState m, l;
    float scale_left = scale_log2;  // see raise_reference
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) m[r] = LOWEST, l[r] = 0.0f;
    ptx::cp_async_wait<STAGES - 1>();  // Q, the oldest group: this lane's part has arrived
    __syncwarp();                      // so have the other lanes' parts
    if (Q_IN_REGISTERS) load_queries(q_rmem, q_smem, lane);

    for (int tile = 0; tile < tiles; tile++) {
        ptx::cp_async_wait<STAGES - 2>();  // this thread's part of the tile has arrived
        __syncthreads();                   // so have all parts, and all warps have left the slot filled next
        load_tile(tile + STAGES - 1);
        const int first_key = tile * BLOCK_N, slot = tile % STAGES * TILE;
        if (first_key >= warp_sees) continue;
        Scores s_rmem;
        Weights p_rmem;
        const bool masked = first_key + BLOCK_N > top_row_sees || sign != 1.0f;
        bool done = false;
        if (LAZY_MAX && tile > 0 && !masked && scale_left == scale_log2) {  // m may be near
            multiply_qk(s_rmem, q_rmem, q_smem, k_smem + slot, lane);
            done = exponentiate(p_rmem, s_rmem, m, l, scale_log2);
        }
        if (!done) {
            multiply_qk(s_rmem, q_rmem, q_smem, k_smem + slot, lane);
            if (masked) {
                int seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++)
                    seen[r] = keys_seen(warp_row + 8 * r + lane / 4) - first_key;
                mask(s_rmem, seen, sign, lane);
            }
            scale_left = raise_reference(s_rmem, o_rmem, m, l, scale_log2);
            exponentiate(p_rmem, s_rmem, m, l, scale_left);
        }
        accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);
    }

    __syncwarp();  // every lane has read Q for the last time before O takes its place
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        const int row = 8 * r + lane / 4;
        const float total = quad_sum(l[r]);
        const float inv_l = total == 0 ? 0.0f : 1.0f / total;  // a row that sees no key is 0, not 0 / 0
        if (store_row<false>(q_smem, o_rmem, r, inv_l, lane)) store_row<true>(q_smem, o_rmem, r, inv_l, lane);
        if (lse && lane % 4 == 0 && warp_row + row < S_q)
            lse[((long long)b * H + h) * S_q + warp_row + row] =
                total == 0 ? -INFINITY : (m[r] + __log2f(total)) * LN2;
    }
    __syncwarp();  // the warp's rows of O are whole before lanes read what others wrote
    out += b * out_batch + h * out_head + warp_row * out_row + lane % CHUNKS * 8;
#pragma unroll
    for (int n = 0; n < WARP_ROWS; n += 32 / CHUNKS) {
        const int row = n + lane / CHUNKS;
        if (warp_row + row < S_q)
            *(uint4*)(out + row * out_row) = *(const uint4*)(q_smem + swizzled(row, lane % CHUNKS));
    }
}
