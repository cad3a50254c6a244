// Stage 12: FlashAttention-2 on mma.sync. What stage 11 passed through shared memory stays in registers.
//
// A block owns BLOCK_M query rows of one head and walks over K/V tiles of BLOCK_N keys. Each of its WARPS
// warps owns WARP_ROWS of the rows from Q to O: lane 4g + t has their rows g + 8r, columns 2t and 2t + 1 of
// every 8, of S, P and O, with m and its part of l (warp_rows.cuh). Shared memory has Q, which O replaces at
// the end, and a ring of STAGES slots of K and V. Warps share only K and V: one barrier per tile.
// S = Q K^T and O += P V: a fragment of K or V costs shared memory 4 cycles and feeds 2 * ROW_TILES mma. With
// ROW_TILES = 1 four warps ask for more than shared memory delivers; with 2 the tensor cores are slower.
// Softmax: 3.5 instructions per score (FFMA scale * s - m, ex2, the sum, half a conversion). Mask, maximum
// and rescaling only for the first tile, tiles that cross the diagonal or the end of K, and tiles whose P
// outgrows the old m. Without LAZY_MAX for every tile: shorter code, which pays where a warp has few tiles.
// cp.async fills the slot of tile t + STAGES - 1 while tile t is multiplied.
#include "dropout.cuh"

constexpr int BLOCK_M = WARPS * WARP_ROWS, THREADS = 32 * WARPS;
using Keys = Tile<D>;
using Values = Tile<D_V>;
constexpr int COLUMNS = D > D_V ? D : D_V, PITCH = (COLUMNS + 63) / 64 * 64;  // of the wider ones
constexpr int TILE = BLOCK_N * PITCH;

// A lane's part of its r-th row of O as elements, to where Q was: `may_overflow` of it.
template <bool CLAMP>
__device__ __forceinline__ bool store_row(element* o_smem, const Output& o_rmem, int r, float inv_l,
                                          int lane) {
    uint32_t products = 0;
#pragma unroll
    for (int d = 0; d < D_V / 8; d += 2) {
        uint32_t pairs[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float* o = &o_rmem[r / 2][d + i][r % 2 * 2];
            pairs[i] = output_pair<CLAMP>(o[0] * inv_l, o[1] * inv_l);
            *(uint32_t*)(o_smem + Values::swizzled(8 * r + lane / 4, d + i) + lane % 4 * 2) = pairs[i];
        }
        products = ptx::fma_pairs(pairs[0], pairs[1], products);
    }
    return may_overflow(products);
}

// The same in float32, from the registers to `row` of the output.
__device__ __forceinline__ void store_floats(OUT_ELEMENT* row, const Output& o_rmem, int r, float inv_l,
                                             int lane) {
#pragma unroll
    for (int d = 0; d < D_V / 8; d++) {
        const float* o = &o_rmem[r / 2][d][r % 2 * 2];
        *(float2*)(row + 8 * d + lane % 4 * 2) = make_float2(o[0] * inv_l, o[1] * inv_l);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
mma_sync(const element* q,                    // [B, H, S_q, D]
         const element* k, const element* v,  // [B, H / group, S_k, D]
         OUT_ELEMENT* out, float* lse,        // [B, H, S_q, D]; [B, H, S_q] or null
         PARAMS, int longest_first) {
    const Params params = PARAMS_GIVEN;
    extern __shared__ __align__(128) element smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = longest_first ? blockIdx.x : blockIdx.y;
    element* q_smem = smem + warp * WARP_ROWS * PITCH;  // [WARP_ROWS, D]: the warp's own, at the end O
    element* k_smem = smem + BLOCK_M * PITCH;     // [STAGES, BLOCK_N, D]
    element* v_smem = k_smem + STAGES * TILE;     // [STAGES, BLOCK_N, D]
    // Longest first: under a causal mask the last rows of all heads see most keys, so they start first, and
    // the last to start are short. Otherwise neighbouring blocks share a head, with its K and V in the L2.
    RowTile row_tile{int(longest_first ? blockIdx.y : blockIdx.z),
                     int(longest_first ? gridDim.z - 1 - blockIdx.z : blockIdx.x)};
    if (RAGGED && !find_row_tile(row_tile, params, BLOCK_M, lane)) return;
    const Sequence sequence = params.sequence(row_tile.sequence);
    const int first_row = row_tile.tile * BLOCK_M, warp_row = first_row + warp * WARP_ROWS;
    const Mask mask(params, sequence);
    const int last_row = min(first_row + BLOCK_M, sequence.S_q) - 1;
    const Interval block_keys{mask.interval(first_row).begin, mask.interval(last_row).end};
    const Interval last_sees = mask.interval(warp_row + WARP_ROWS - 1), first_sees = mask.interval(warp_row);
    const Interval tiles = block_keys.tiles(BLOCK_N);
    const Scale scale(params.softmax_scale_log2());
    const Adjustment adjustment(params, sequence, h);

    const int b = sequence.batch, first_key = tiles.begin * BLOCK_N + threadIdx.x / Keys::LANES;
    const int first_value = tiles.begin * BLOCK_N + threadIdx.x / Values::LANES;
    q += params.q.at(b, h, sequence.first_row + warp_row + lane / Keys::LANES) + lane % Keys::LANES * 8;
    k += params.k.at(b, h / params.group, sequence.first_key + first_key) + threadIdx.x % Keys::LANES * 8;
    v += params.v.at(b, h / params.group, sequence.first_key + first_value) + threadIdx.x % Values::LANES * 8;
    auto load_tile = [&](int tile) {  // the tiles in turn; one group each, empty after the last
        if (tile < tiles.end) {
            const int slot = tile % STAGES * TILE, inside = sequence.S_k - tile * BLOCK_N;
            load_rows_async<D, BLOCK_N, THREADS>(k_smem + slot, k, params.k.row, inside, threadIdx.x);
            load_rows_async<D_V, BLOCK_N, THREADS>(v_smem + slot, v, params.v.row, inside, threadIdx.x);
            k += BLOCK_N * params.k.row, v += BLOCK_N * params.v.row;
        }
        ptx::cp_async_commit();
    };
    load_rows_async<D, WARP_ROWS, 32>(q_smem, q, params.q.row, sequence.S_q - warp_row, lane);
    ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load_tile(tiles.begin + i);

    Output o_rmem = {};
    Queries q_rmem;
    RowState m, l;
    float scale_left = scale.log2;  // see raise_max
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
        if (first_key >= last_sees.end || first_key + BLOCK_N <= first_sees.begin) continue;
        Scores s_rmem;
        P p_rmem;
        const bool masked = (last_sees.begin > 0 && first_key < last_sees.begin) ||
                            first_key + BLOCK_N > first_sees.end || scale.sign != 1.0f;
        auto scores = [&] {
            score_tile(s_rmem, q_rmem, q_smem, k_smem + slot, lane);
            if (ADJUSTED)
                adjust_tile(s_rmem, adjustment, mask.diagonal(warp_row + lane / 4) - first_key, lane);
        };
        bool done = false;
        if (LAZY_MAX && tile > tiles.begin && !masked && scale_left == scale.log2) {  // m may be near
            scores();
            done = exponentiate(p_rmem, s_rmem, m, l, scale.log2);
        }
        if (!done) {
            scores();
            if (masked) {
                Interval seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++)
                    seen[r] = mask.interval(warp_row + 8 * r + lane / 4).from(first_key);
                mask_tile(s_rmem, seen, scale.sign, lane);
            }
            scale_left = softmax_tile(p_rmem, s_rmem, o_rmem, m, l, scale.log2);
        }
        if (DROPOUT)
            drop_tile(p_rmem, Dropout(params.features, b, h), warp_row + lane / 4, first_key, lane);
        accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);
    }

    __syncwarp();  // every lane has read Q for the last time before O takes its place
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        const int row = 8 * r + lane / 4;
        float total = quad_sum(l[r]);
        float rescale = join_sink(m[r], total, params, h);
        if (PRIOR) {
            merge_prior(o_rmem, r, m[r], total, rescale, params, sequence, h, warp_row + row, lane);
            rescale = 1.0f;
        }
        const float inv_l = inverse_sum(total) * rescale * params.features.keep_scale;
        if (FLOAT_OUT) {
            OUT_ELEMENT* out_row = out + params.out.at(b, h, sequence.first_row + warp_row + row);
            if (warp_row + row < sequence.S_q) store_floats(out_row, o_rmem, r, inv_l, lane);
        } else if (store_row<false>(q_smem, o_rmem, r, inv_l, lane)) {
            store_row<true>(q_smem, o_rmem, r, inv_l, lane);
        }
        if (lse && lane % 4 == 0 && warp_row + row < sequence.S_q)
            lse[params.rows_before(sequence, h) + warp_row + row] = log_sum_exp(m[r], total);
    }
    if (FLOAT_OUT) return;
    __syncwarp();  // the warp's rows of O are whole before lanes read what others wrote
    out += params.out.at(b, h, sequence.first_row + warp_row) + lane % Values::LANES * 8;
#pragma unroll
    for (int n = 0; n < WARP_ROWS; n += 32 / Values::LANES) {
        const int row = n + lane / Values::LANES;
#pragma unroll
        for (int i = 0; i < Values::CHUNKS; i += Values::LANES)
            if (warp_row + row < sequence.S_q && Values::has(i, lane))
                *(uint4*)(out + row * params.out.row + 8 * i) =
                    *(const uint4*)(q_smem + Values::swizzled(row, i + lane % Values::LANES));
    }
}
