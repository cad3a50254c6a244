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

// A lane's part of its r-th row of O as elements, to where Q was: `may_overflow` of it.
template <bool CLAMP>
__device__ __forceinline__ bool store_row(element* o_smem, const Output& o_rmem, int r, float inv_l,
                                          int lane) {
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
        products = ptx::fma_pairs(pairs[0], pairs[1], products);
    }
    return may_overflow(products);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
mma_sync(const element* q,                    // [B, H, S_q, D]
         const element* k, const element* v,  // [B, H / group, S_k, D]
         element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
         PARAMS, int longest_first) {
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(128) element smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = longest_first ? blockIdx.x : blockIdx.y;
    element* q_smem = smem + warp * WARP_ROWS * D;  // [WARP_ROWS, D]: the warp's own rows, at the end of O
    element* k_smem = smem + BLOCK_M * D;           // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + STAGES * TILE;       // [STAGES, BLOCK_N, D]
    // Longest first: under a causal mask the last rows of all heads see most keys, so they start first, and
    // the last to start are short. Otherwise neighbouring blocks share a head, with its K and V in the L2.
    const int b = longest_first ? blockIdx.y : blockIdx.z;
    const int first_row = (longest_first ? gridDim.z - 1 - blockIdx.z : blockIdx.x) * BLOCK_M;
    const int warp_row = first_row + warp * WARP_ROWS;
    const Mask mask(params);
    const int last_row = min(first_row + BLOCK_M, params.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval last_sees = mask.interval(warp_row + WARP_ROWS - 1), first_sees = mask.interval(warp_row);
    const Interval tiles = block_keys.tiles(BLOCK_N);
    const Scale scale(params.scale_log2);

    const int copied_key = tiles.begin * BLOCK_N + threadIdx.x / CHUNKS;
    q += params.q.at(b, h, warp_row + lane / CHUNKS) + lane % CHUNKS * 8;
    k += params.k.at(b, h / params.group, copied_key) + threadIdx.x % CHUNKS * 8;
    v += params.v.at(b, h / params.group, copied_key) + threadIdx.x % CHUNKS * 8;
    auto load_tile = [&](int tile) {  // the tiles in turn; one group each, empty after the last
        if (tile < tiles.end) {
            const int slot = tile % STAGES * TILE, inside = params.S_k - tile * BLOCK_N;
            load_rows_async<BLOCK_N, THREADS>(k_smem + slot, k, params.k.row, inside, threadIdx.x);
            load_rows_async<BLOCK_N, THREADS>(v_smem + slot, v, params.v.row, inside, threadIdx.x);
            k += BLOCK_N * params.k.row, v += BLOCK_N * params.v.row;
        }
        ptx::cp_async_commit();
    };
    load_rows_async<WARP_ROWS, 32>(q_smem, q, params.q.row, params.S_q - warp_row, lane);
    ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load_tile(tiles.begin + i);

    Output o_rmem = {};
    Queries q_rmem;
    RowState m, l;
    float scale_left = scale.log2;  // see raise_reference
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) m[r] = LOWEST, l[r] = 0.0f;
    ptx::cp_async_wait<STAGES - 1>();  // Q, the oldest group: this lane's part has arrived
    __syncwarp();                      // so have the other lanes' parts
    if (Q_IN_REGISTERS) load_queries(q_rmem, q_smem, lane);

    for (int tile = tiles.begin; tile < tiles.end; tile++) {
        ptx::cp_async_wait<STAGES - 2>();  // this thread's part of the tile has arrived
        __syncthreads();                   // so have all parts, and all warps have left the slot filled next
        load_tile(tile + STAGES - 1);
        const int first_key = tile * BLOCK_N, slot = tile % STAGES * TILE;
        if (first_key >= last_sees.end) continue;
        Scores s_rmem;
        Weights p_rmem;
        const bool masked = (last_sees.begin > 0 && first_key < last_sees.begin) ||
                            first_key + BLOCK_N > first_sees.end || scale.sign != 1.0f;
        bool done = false;
        if (LAZY_MAX && tile > tiles.begin && !masked && scale_left == scale.log2) {  // m may be near
            score_tile(s_rmem, q_rmem, q_smem, k_smem + slot, lane);
            done = exponentiate(p_rmem, s_rmem, m, l, scale.log2);
        }
        if (!done) {
            score_tile(s_rmem, q_rmem, q_smem, k_smem + slot, lane);
            if (masked) {
                Interval seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++)
                    seen[r] = mask.interval(warp_row + 8 * r + lane / 4).from(first_key);
                mask_tile(s_rmem, seen, scale.sign, lane);
            }
            scale_left = softmax_tile(p_rmem, s_rmem, o_rmem, m, l, scale.log2);
        }
        accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);
    }

    __syncwarp();  // every lane has read Q for the last time before O takes its place
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        const int row = 8 * r + lane / 4;
        const float total = quad_sum(l[r]);
        const float inv_l = inverse_sum(total);
        if (store_row<false>(q_smem, o_rmem, r, inv_l, lane)) store_row<true>(q_smem, o_rmem, r, inv_l, lane);
        if (lse && lane % 4 == 0 && warp_row + row < params.S_q)
            lse[params.rows_before(b, h) + warp_row + row] = log_sum_exp(m[r], total);
    }
    __syncwarp();  // the warp's rows of O are whole before lanes read what others wrote
    out += params.out.at(b, h, warp_row) + lane % CHUNKS * 8;
#pragma unroll
    for (int n = 0; n < WARP_ROWS; n += 32 / CHUNKS) {
        const int row = n + lane / CHUNKS;
        if (warp_row + row < params.S_q)
            *(uint4*)(out + row * params.out.row) = *(const uint4*)(q_smem + swizzled(row, lane % CHUNKS));
    }
}
