// FP8 forward: stage 15's roles and rings with e4m3 in both products, which wgmma multiplies twice as fast.
//
// fp8_quantise.cu has made bytes and scales. A block takes work tiles of BLOCK_M query rows of one head: a
// thread of warpgroup 0 loads, each of the CONSUMERS others owns 64 rows, a lane those of warpgroup_rows.cuh.
// S = Q K^T, and `factor`, from the scales of its row of Q and its tile of K, makes scores of it.
// Softmax: P = 2^(factor S + exponent - m). With the exponent of V's tile in P, products with all tiles add
// up; l takes it off again. The largest P is 2^OFFSET when m is set. LAZY_MAX: m stays while the sums of 8
// weights, which a lane needs anyway, tell that none is beyond 448, the largest e4m3. Else m rises and the
// warp exponentiates again: S is still there, since P is packed beside it.
// P V: accumulators of e4m3 products keep about 13 bits of a sum. So each tile's product begins at 0, where
// D is BLOCK_N in the registers of S, which are free by then, and is added to O in float32.
// A warpgroup's products follow each other. TURNS: from P V of a tile to Q K^T of the next it has the tensor
// cores to itself, while the others exponentiate.
#include "warpgroup_rows.cuh"

static_assert(BLOCK_N == 128, "as many keys as have one scale; a row of V^T is 128 bytes");
constexpr int BLOCK_M = CONSUMERS * ROWS, THREADS = 128 * (CONSUMERS + 1), WARPS = 4 * CONSUMERS;
constexpr int Q_TILE = ROWS * D, KV_TILE = BLOCK_N * D, O_TILE = ROWS * PITCH;  // bytes, bytes, elements
constexpr float LARGEST = 448.0f, OFFSET = 5.0f;
constexpr float LEAST_FACTOR = 1e-36f;  // of S: above 0, since a masked score is -infinity times it

using P8 = uint32_t[BLOCK_N / 32][4];  // [64, BLOCK_N] e4m3, keys in the order of fp8_quantise.cu

// A place in a ring, and the parity of the phase that its mbarriers are in.
struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

struct Work {
    int b, h, first_row;
};

// S = Q K^T, in flight until the next wgmma_wait.
__device__ __forceinline__ void issue_qk(Scores& s_rmem, const uint8_t* q_smem, const uint8_t* k_smem) {
    const uint64_t q_tile = ptx::wgmma_rows<D>(q_smem), k_tile = ptx::wgmma_rows<D>(k_smem);
    ptx::wgmma_pin(s_rmem);
    ptx::wgmma_fence();  // the last use of these registers is over
#pragma unroll
    for (int k = 0; k < D / 32; k++)
        ptx::wgmma_e4m3_ss<BLOCK_N>(s_rmem, q_tile + 2 * k, k_tile + 2 * k, k > 0);
    ptx::wgmma_commit();
}

// P V of one tile, in flight until the next wgmma_wait.
__device__ __forceinline__ void issue_pv(Output& t_rmem, const P8& p_rmem, const uint8_t* v_smem) {
    const uint64_t v_tile = ptx::wgmma_rows<BLOCK_N>(v_smem);
    ptx::wgmma_pin(t_rmem);
    ptx::wgmma_fence();  // P is written, and the last use of S is over
#pragma unroll
    for (int k = 0; k < BLOCK_N / 32; k++)
        ptx::wgmma_e4m3_rs<D>(t_rmem, p_rmem[k], v_tile + 2 * k, k > 0);
    ptx::wgmma_commit();
}

// m rises to the row's maximum less OFFSET; `rescale` is what l and O must follow by.
__device__ __forceinline__ void raise_max(const Scores& s_rmem, RowState& m, RowState& rescale,
                                          const RowState& factor, float exponent) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float even = s_rmem[2 * r], odd = s_rmem[2 * r + 1];
#pragma unroll
        for (int i = 4; i < BLOCK_N / 2; i += 4)
            even = fmaxf(even, s_rmem[i + 2 * r]), odd = fmaxf(odd, s_rmem[i + 2 * r + 1]);
        const float largest = quad_max(fmaxf(even, odd));
        const float m_new = fmaxf(m[r], __fmul_rn(largest, factor[r]) + (exponent - OFFSET));
        rescale[r] = ptx::ex2(m[r] - m_new);
        m[r] = m_new;
    }
}

// P as the left operand of P V, and `sum`, the lane's part of its row sums before rounding; S stays as it is.
// LAZY: false if one of the warp's sums of 8 shows that a weight may be beyond the largest e4m3. Otherwise m
// has just been set, and scores are rounded as its own was: far from 0 their steps are whole powers of 2 of a
// weight. None may pass the largest.
template <bool LAZY>
__device__ __forceinline__ bool exponentiate(P8& p_rmem, const Scores& s_rmem, const RowState& factor,
                                             const RowState& m, float exponent, RowState& sum) {
    float largest = 0.0f;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int k = 0; k < BLOCK_N / 32; k++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float shift = m[r] - exponent;
            auto weight = [&](float s) {
                if (LAZY) return ptx::ex2(s * factor[r] - shift);
                const float x = __fmul_rn(s, factor[r]) - shift;
                return ptx::ex2(x > OFFSET ? OFFSET : x);  // a NaN stays one
            };
            float of_eight = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++) {  // of 16 keys: columns 2t and 2t + 1 of both eights
                const float* s = s_rmem + 16 * k + 8 * half + 2 * r;
                const float p0 = weight(s[0]), p1 = weight(s[1]), p2 = weight(s[4]), p3 = weight(s[5]);
                of_eight += (p0 + p1) + (p2 + p3);
                p_rmem[k][2 * half + r] = ptx::pack_e4m3(p0, p1) | (uint32_t)ptx::pack_e4m3(p2, p3) << 16;
            }
            largest = fmaxf(largest, of_eight);
            sum[r] += of_eight;
        }
    return !LAZY || __all_sync(ALL_LANES, largest < LARGEST);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fp8_wgmma(const __grid_constant__ ptx::TensorMap q_map,    // bytes [B, H, S_q, D], boxes of [64, D]
          const __grid_constant__ ptx::TensorMap k_map,    // [B, H / group, S_k, D], boxes of [BLOCK_N, D]
          const __grid_constant__ ptx::TensorMap v_map,    // [B, H / group, D, keys], boxes of [D, BLOCK_N]
          const __grid_constant__ ptx::TensorMap out_map,  // elements [B, H, S_q, D], boxes of [16, 64]
          const float* q_scales,                           // [B, H, S_q]
          const float* k_scales,                           // [B, H / group, tiles]
          const float* v_exponents,                        // the same
          float* lse,                                      // [B, H, S_q] or null
          SIZES,
          int heads, int heads_together,  // B * H, and how many of them go side by side
          unsigned* next_work) {  // 0, and 0 again at the end; or null: a block has every gridDim.x-th tile
    const Sizes sizes = SIZES_GIVEN;
    const Mask mask(sizes);
    extern __shared__ __align__(1024) unsigned char smem[];
    uint8_t* q_smem = smem;                                     // [CONSUMERS, 64, D]
    element* o_smem = (element*)(q_smem + CONSUMERS * Q_TILE);  // [CONSUMERS, 64, PITCH]
    uint8_t* k_smem = (uint8_t*)(o_smem + CONSUMERS * O_TILE);  // [STAGES, BLOCK_N, D]
    uint8_t* v_smem = k_smem + STAGES * KV_TILE;                // [STAGES, D, BLOCK_N]
    uint64_t* k_full = (uint64_t*)(v_smem + STAGES * KV_TILE);
    uint64_t *v_full = k_full + STAGES, *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;  // [STAGES]
    uint64_t *q_full = v_empty + STAGES, *q_empty = q_full + 1;
    int* work_smem = (int*)(q_empty + 1);  // the number of the work tile that Q is of

    // The tiles that rows before `end_row` see keys of; one at least, to mask.
    auto tiles_before = [&](int end_row) {
        return max(1, mask.interval(min(end_row, S_q) - 1).tiles(BLOCK_N).end);
    };
    const int row_tiles = (S_q + BLOCK_M - 1) / BLOCK_M, works = heads * row_tiles;
    // Rows that fill no block are the first, which see the fewest keys: warpgroups before row 0 are idle.
    const int before_first = row_tiles * BLOCK_M - (S_q + ROWS - 1) / ROWS * ROWS;
    auto work_at = [&](int index) {
        const int first = index / (heads_together * row_tiles) * heads_together;
        const int i = index - first * row_tiles;
        const int together = min(heads_together, heads - first), head = first + i % together;
        return Work{head / H, head % H, (row_tiles - 1 - i / together) * BLOCK_M - before_first};
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
        auto fetch = [&](Ring& ring, uint64_t* empty, uint64_t* full, uint8_t* ring_smem,
                         const ptx::TensorMap* map, int column, int row, int h, int b) {
            ptx::mbarrier_wait(empty + ring.slot, ring.parity ^ 1);  // all warps have read the slot
            ptx::mbarrier_arrive_expect(full + ring.slot, KV_TILE);  // until all of the tile is there
            ptx::tma_load_4d(ring_smem + ring.slot * KV_TILE, map, full + ring.slot, column, row, h, b);
            ring.next();
        };
        for (int n = 0, index = blockIdx.x, next;; n++, index = next) {
            auto tell_next = [&] {
                ptx::mbarrier_wait(q_empty, n % 2 ^ 1);  // all warps have read the Q before and its number
                *work_smem = index;
            };
            if (index >= works) {
                tell_next();
                ptx::mbarrier_arrive(q_full);  // no Q, but word that no work is left
                return;
            }
            const auto [b, h, first_row] = work_at(index);
            const int h_kv = h / group, tiles = tiles_before(first_row + BLOCK_M);
            for (int tile = tiles; tile >= 0; tile--) {  // as they are used: K of a tile, Q or the V before
                if (tile > 0)
                    fetch(k_ring, k_empty, k_full, k_smem, &k_map, 0, (tile - 1) * BLOCK_N, h_kv, b);
                if (tile < tiles) {
                    fetch(v_ring, v_empty, v_full, v_smem, &v_map, tile * BLOCK_N, 0, h_kv, b);
                    continue;
                }
                tell_next();
                ptx::mbarrier_arrive_expect(q_full, CONSUMERS * Q_TILE);  // until all of Q is there
                for (int i = 0; i < CONSUMERS; i++)
                    ptx::tma_load_4d(q_smem + i * Q_TILE, &q_map, q_full, 0, first_row + i * ROWS, h, b);
                // One draw per work tile, so the launch's last draw takes the counter back to 0.
                next = gridDim.x + (next_work ? atomicInc(next_work, works - 1) : index);
            }
        }
    }

    ptx::registers_up<CONSUMER_REGISTERS>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const Scale scale(sizes.scale_log2);
    q_smem += consumer * Q_TILE, o_smem += consumer * O_TILE;

    auto begin_turn = [&] {
        if (TURNS) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products
    };
    auto end_turn = [&] {  // the next one may issue
        if (TURNS) ptx::bar_arrive(consumer + 1 == CONSUMERS ? 1 : 2 + consumer, 256);
    };
    auto fetched = [&](uint64_t* full, const Ring& at) {
        ptx::mbarrier_wait(full + at.slot, at.parity);  // the tile is there
    };
    auto release = [&](uint64_t* empty) {  // this warp has read it
        if (lane == 0) ptx::mbarrier_arrive(empty);
    };
    if (TURNS && consumer + 1 == CONSUMERS) ptx::bar_arrive(1, 256);  // the first turn is consumer 0's

    Ring ring;  // K and V of a tile are in slots of the same number
    for (int n = 0;; n++) {
        ptx::mbarrier_wait(q_full, n % 2);  // Q is there, and its number
        // Read by lane 0, which releases it.
        const int index = __shfl_sync(ALL_LANES, lane == 0 ? *work_smem : 0, 0);
        if (index >= works) return;
        const auto [b, h, first_row] = work_at(index);
        const int group_row = first_row + consumer * ROWS, warp_row = group_row + warp * WARP_ROWS;
        const int own_tiles = group_row < 0 ? 0 : tiles_before(group_row + ROWS);
        const int whole_tiles = mask.interval(group_row).end / BLOCK_N;  // which need no mask
        const int first_tile = (b * (H / group) + h / group) * ((S_k + BLOCK_N - 1) / BLOCK_N);
        int tile = tiles_before(first_row + BLOCK_M) - 1;
        for (; tile >= own_tiles; tile--) {  // of which only other warpgroups' rows see keys
            begin_turn();
            end_turn();
            fetched(k_full, ring);  // or the slots would be released twice
            fetched(v_full, ring);
            __syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin
            release(k_empty + ring.slot);
            release(v_empty + ring.slot);
            ring.next();
        }
        if (own_tiles == 0) {  // idle
            release(q_empty);
            continue;
        }

        Scores s_rmem;
        Output apart;
        Output& t_rmem = D == BLOCK_N ? *(Output*)s_rmem : apart;  // P V of one tile
        Output o_rmem = {};
        P8 p_rmem;
        RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale, q_factor;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = warp_row + lane / 4 + 8 * r;  // H^T H = D I: see fp8_quantise.cu
            q_factor[r] = row < S_q ? q_scales[sizes.rows_before(b, h) + row] * (scale.log2 / D) : 1.0f;
        }
        auto softmax = [&](bool lazy) {  // P and l; S is whole
            const float k_scale = k_scales[first_tile + tile], exponent = v_exponents[first_tile + tile];
            RowState factor, sum;
#pragma unroll
            for (int r = 0; r < 2; r++)
                factor[r] = fmaxf(q_factor[r] * k_scale, LEAST_FACTOR), rescale[r] = 1.0f;
            if (!lazy || !exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum)) {
                if (tile >= whole_tiles) {
                    const int row = warp_row + lane / 4, first_key = tile * BLOCK_N;
                    const Interval seen[2] = {mask.interval(row).from(first_key),
                                              mask.interval(row + 8).from(first_key)};
                    mask_tile(s_rmem, seen, 1.0f, lane);
                }
                raise_max(s_rmem, m, rescale, factor, exponent);
                l[0] *= rescale[0], l[1] *= rescale[1];
                exponentiate<false>(p_rmem, s_rmem, factor, m, exponent, sum);
            }
            const float without = ptx::ex2(-exponent);  // V's scale is in P, and not in l
            l[0] += sum[0] * without, l[1] += sum[1] * without;
        };
        auto add_up = [&] {  // the tile's P V, of about 13 bits, to sums of float32
            ptx::wgmma_pin(t_rmem);
#pragma unroll
            for (int i = 0; i < D / 2; i++) o_rmem[i] = o_rmem[i] * rescale[i / 2 % 2] + t_rmem[i];
        };

        fetched(k_full, ring);
        issue_qk(s_rmem, q_smem, k_smem + ring.slot * KV_TILE);
        for (bool lazy = false;; lazy = LAZY_MAX && tile < whole_tiles) {
            ptx::wgmma_wait<0>();  // S is whole, K has been read
            ptx::wgmma_pin(s_rmem);
            release(k_empty + ring.slot);
            softmax(lazy);
            fetched(v_full, ring);
            begin_turn();
            issue_pv(t_rmem, p_rmem, v_smem + ring.slot * KV_TILE);
            if (tile-- == 0) break;
            uint64_t* v_read = v_empty + ring.slot;
            ring.next();
            fetched(k_full, ring);
            ptx::wgmma_wait<0>();  // P V is whole, V has been read
            release(v_read);
            add_up();
            issue_qk(s_rmem, q_smem, k_smem + ring.slot * KV_TILE);
            end_turn();
        }
        end_turn();
        release(q_empty);
        ptx::wgmma_wait<0>();  // the last P V is whole, V has been read
        release(v_empty + ring.slot);
        ring.next();
        add_up();
        float* lse_row = lse ? lse + sizes.rows_before(b, h) + warp_row : nullptr;
        normalise(o_rmem, m, l, sizes, sizes.sequence(b), h, lse_row, warp_row, lane);
        store_rows(o_smem, &out_map, o_rmem, warp, lane, warp_row, h, {b});
        __syncwarp();  // or ptxas takes the warp for apart, and moves addresses in every tile
    }
}
