// Stage 16: a short problem on the whole GPU. Blocks of a cluster share the keys of the same rows, as the
// warpgroups of a block do, and merge through distributed shared memory: one launch, no scratch memory.
//
// A cluster owns 64 query rows of one head. Tiles of BLOCK_N keys are dealt to its PARTS = CLUSTER *
// WARPGROUPS warpgroups, first across blocks. Each (warpgroup_rows.cuh) has all 64 rows, a ring of STAGES
// slots and a loading thread of its own: where its tiles fit the ring, all loads of the launch are in flight
// at once; at 512 keys and 4 parts the loop has one tile. P V of a tile's first half hides exponentials.
// Each part ends with its own m, l and O, and parts merge in pairs, in registers: of the columns that a warp
// still has it sends half to its partner, the same warp of another part, and merges the other half with what
// the partner sends: M = max(m, m'), O = 2^(m - M) O + 2^(m' - M) O', l alike. Rounds between warpgroups of
// a block come first, so little crosses to other blocks; in the end a warp has D / PARTS columns of 16 rows.
// Messages are float4s in the order of the registers, which partners share: no bank meets two addresses.
// Each has its place and an mbarrier that counts its bytes: nothing is reused, nobody waits to send. A block
// is written to when it has started (cluster barrier), and ends when all messages to it have come.
#include "warpgroup_rows.cuh"

constexpr int WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS, PARTS = CLUSTER * WARPGROUPS;
constexpr int TILE = BLOCK_N * D, HALF = HALVES ? BLOCK_N / 2 : BLOCK_N;
constexpr int ROUNDS = PARTS == 1 ? 0 : PARTS == 2 ? 1 : PARTS == 4 ? 2 : 3;
static_assert(PARTS == 1 << ROUNDS && D / 2 / PARTS >= 4, "parts are halved down to 8 columns");

// Where a warp's message of a round begins, in float4: D / 16 a lane and its m and l, then half as many, ...
__device__ constexpr int message(int round) { return 32 * (D / 8 - (D / 8 >> round) + round); }
__device__ constexpr uint32_t message_bytes(int round) { return 16 * (message(round + 1) - message(round)); }

// Rounds ROUND and later of a warp: returns the first of the columns that it has in the end.
template <int ROUND>
__device__ __forceinline__ int merge(Output& o_rmem, RowState& m, RowState& l, float4* box_smem,
                                     uint64_t* merge_full, int warpgroup, int warp, int rank, int lane) {
    if constexpr (ROUND == ROUNDS) {
        return 0;
    } else {
        constexpr int BIT = 1 << ROUND, COUNT = D / 4 >> ROUND;  // COUNT: accumulators to keep, and to send
        constexpr bool ACROSS = BIT >= WARPGROUPS;
        const bool upper = (ACROSS ? rank * WARPGROUPS : warpgroup) & BIT;
        const int partner = ACROSS ? warpgroup : warpgroup ^ BIT, partner_rank = rank ^ BIT / WARPGROUPS;
        const float4* inbox = box_smem + (warpgroup * 4 + warp) * message(ROUNDS) + message(ROUND) + lane;
        float4* outbox = box_smem + (partner * 4 + warp) * message(ROUNDS) + message(ROUND) + lane;
        uint64_t* here = merge_full + ROUND * WARPS + warpgroup * 4 + warp;
        uint64_t* there = merge_full + ROUND * WARPS + partner * 4 + warp;
#pragma unroll
        for (int i = 0; i <= COUNT; i += 4) {
            float x[4] = {m[0], m[1], l[0], l[1]};
#pragma unroll
            for (int j = 0; j < 4 && i < COUNT; j++) {
                const float lower_half = o_rmem[i + j], upper_half = o_rmem[i + j + COUNT];
                o_rmem[i + j] = upper ? upper_half : lower_half;
                x[j] = upper ? lower_half : upper_half;
            }
            if (ACROSS)
                ptx::store_async(outbox + 8 * i, x, there, partner_rank);
            else
                outbox[8 * i] = make_float4(x[0], x[1], x[2], x[3]);
        }
        if (!ACROSS) {
            __syncwarp();  // the other lanes' parts are stored before one lane says that the message is whole
            if (lane == 0) ptx::mbarrier_arrive(there);  // it is
            ptx::mbarrier_wait(here, 0);                 // the partner's message is whole
        } else {
            ptx::mbarrier_wait_cluster(here, 0);  // all bytes of the partner's message have come
        }
        const float4 ml = inbox[8 * COUNT];
        const float m_other[2] = {ml.x, ml.y}, l_other[2] = {ml.z, ml.w};
        float weight[2], weight_other[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float m_new = fmaxf(m[r], m_other[r]);
            weight[r] = ptx::ex2(m[r] - m_new), weight_other[r] = ptx::ex2(m_other[r] - m_new);
            m[r] = m_new, l[r] = weight[r] * l[r] + weight_other[r] * l_other[r];
        }
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 x = inbox[8 * i];
            o_rmem[i] = weight[0] * o_rmem[i] + weight_other[0] * x.x;
            o_rmem[i + 1] = weight[0] * o_rmem[i + 1] + weight_other[0] * x.y;
            o_rmem[i + 2] = weight[1] * o_rmem[i + 2] + weight_other[1] * x.z;
            o_rmem[i + 3] = weight[1] * o_rmem[i + 3] + weight_other[1] * x.w;
        }
        return (upper ? 2 * COUNT : 0) +
               merge<ROUND + 1>(o_rmem, m, l, box_smem, merge_full, warpgroup, warp, rank, lane);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
cluster_split(const __grid_constant__ ptx::TensorMap q_map,  // [B, H, S_q, D], boxes of [64, 64]
              const __grid_constant__ ptx::TensorMap k_map,  // [B, H / group, S_k, D], boxes of [BLOCK_N, 64]
              const __grid_constant__ ptx::TensorMap v_map,  // the same
              half* out, float* lse,                         // [B, H, S_q, D]; [B, H, S_q] or null
              long long out_batch, long long out_head, long long out_row,  // strides in elements
              int S_q, int S_k, int H, int group, float scale_log2, int causal) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* q_smem = reinterpret_cast<half*>(smem);  // [64, D]
    half* ring_smem = q_smem + ROWS * D;           // [WARPGROUPS, 2 * STAGES, BLOCK_N, D]
    float4* box_smem = reinterpret_cast<float4*>(ring_smem + WARPGROUPS * 2 * STAGES * TILE);
    uint64_t* q_full = reinterpret_cast<uint64_t*>(box_smem + WARPS * message(ROUNDS));
    uint64_t* ring_full = q_full + 1;                            // [WARPGROUPS, 2 * STAGES]
    uint64_t* merge_full = ring_full + WARPGROUPS * 2 * STAGES;  // [ROUNDS, WARPS]
    // The shuffle tells the compiler that a warp is of one mind: addresses of tiles take uniform registers.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const int h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x / CLUSTER * ROWS;
    auto keys_seen = [&](int row) { return causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k; };
    const int tiles = (keys_seen(min(first_row + ROWS, S_q) - 1) + BLOCK_N - 1) / BLOCK_N;
    const int first_tile = warpgroup * CLUSTER + rank;
    const int turns = (tiles - first_tile + PARTS - 1) / PARTS;
    const float sign = scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f;
    scale_log2 = scale_log2 == 0 ? 1.0f : fabsf(scale_log2);

    half* k_smem = ring_smem + warpgroup * 2 * STAGES * TILE;  // [STAGES, BLOCK_N, D]
    half* v_smem = k_smem + STAGES * TILE;                     // [STAGES, BLOCK_N, D]
    uint64_t *k_full = ring_full + warpgroup * 2 * STAGES, *v_full = k_full + STAGES;
    auto load = [&](half* ring, const ptx::TensorMap& map, uint64_t* full, int turn) {
        const int slot = turn % STAGES, key = (first_tile + turn * PARTS) * BLOCK_N;
        ptx::mbarrier_arrive_expect(full + slot, TILE * 2);  // a phase ends with its bytes, not before
        load_tile<BLOCK_N>(ring + slot * TILE, &map, full + slot, key, h / group, b);
    };
    if (threadIdx.x % 128 == 0) {
        for (int i = 0; i < 2 * STAGES; i++) ptx::mbarrier_init(k_full + i, 1);
        if (warpgroup == 0) ptx::mbarrier_init(q_full, 1);
        ptx::fence_mbarrier_init();  // TMA sees the mbarriers initialised
        if (warpgroup == 0) {
            ptx::mbarrier_arrive_expect(q_full, ROWS * D * 2);  // the same
            load_tile<ROWS>(q_smem, &q_map, q_full, first_row, h, b);
        }
        for (int turn = 0; turn < min(STAGES, turns); turn++) {
            load(k_smem, k_map, k_full, turn);
            load(v_smem, v_map, v_full, turn);
        }
    }
    if (lane == 0) {  // of each warp, for the messages to it
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t* here = merge_full + round * WARPS + threadIdx.x / 32;
            ptx::mbarrier_init(here, 1);
            if (1 << round >= WARPGROUPS)
                ptx::mbarrier_arrive_expect(here, message_bytes(round));  // as with the ring
        }
        ptx::fence_mbarrier_init();  // the other blocks see these
    }
    __syncthreads();  // the other threads see the mbarriers too
    if (CLUSTER > 1) ptx::cluster_arrive_relaxed();

    Scores s_rmem;
    Weights p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    const int warp_row = first_row + warp * WARP_ROWS;
    ptx::mbarrier_wait(q_full, 0);  // Q has arrived
    for (int turn = 0; turn < turns; turn++) {
        const int slot = turn % STAGES, parity = turn / STAGES % 2;
        const int first_key = (first_tile + turn * PARTS) * BLOCK_N;
        ptx::mbarrier_wait(k_full + slot, parity);  // K has arrived
        issue_qk(s_rmem, q_smem, k_smem + slot * TILE);
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        const bool masked = first_key + BLOCK_N > keys_seen(warp_row) || sign != 1.0f;
        if (masked) {
            const int row = warp_row + lane / 4;
            mask(s_rmem, {keys_seen(row) - first_key, keys_seen(row + 8) - first_key}, sign, lane);
        }
        const float scale_left = raise_reference(s_rmem, m, rescale, scale_log2);
        follow_reference(o_rmem, l, rescale);
        if (POLYNOMIALS == 0 || masked)
            exponentiate<false, 0, 0, HALF>(p_rmem, s_rmem, m, l, scale_left);
        else
            exponentiate<false, POLYNOMIALS, 0, HALF>(p_rmem, s_rmem, m, l, scale_left);
        ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived
        issue_pv<0, HALF>(o_rmem, p_rmem, v_smem + slot * TILE);
        if (HALF < BLOCK_N) {  // under the product of the first half
            if (POLYNOMIALS == 0 || masked)
                exponentiate<false, 0, HALF, BLOCK_N>(p_rmem, s_rmem, m, l, scale_left);
            else
                exponentiate<false, POLYNOMIALS, HALF, BLOCK_N>(p_rmem, s_rmem, m, l, scale_left);
            issue_pv<HALF, BLOCK_N>(o_rmem, p_rmem, v_smem + slot * TILE);
        }
        ptx::wgmma_wait<0>();  // O is whole
        ptx::wgmma_pin(o_rmem);
        if (turn + STAGES < turns) {
            ptx::bar_sync(1 + warpgroup, 128);  // all its warps' products have read the slot filled again
            if (threadIdx.x % 128 == 0) {
                load(k_smem, k_map, k_full, turn + STAGES);
                load(v_smem, v_map, v_full, turn + STAGES);
            }
        }
    }

    if (CLUSTER > 1) ptx::cluster_wait();  // every block has started, its mbarriers are initialised
    const int first_column = merge<0>(o_rmem, m, l, box_smem, merge_full, warpgroup, warp, rank, lane);
    float* lse_row = lse + ((long long)b * H + h) * S_q + warp_row;
    if (!lse || warpgroup > 0 || rank > 0) lse_row = nullptr;  // one part writes it
    normalise(o_rmem, m, l, lse_row, S_q - warp_row, lane);
    out += b * out_batch + h * out_head + first_column + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row + lane / 4 + 8 * r;
#pragma unroll
        for (int i = 0; i < D / 2 / PARTS; i += 4)
            if (row < S_q)
                *reinterpret_cast<uint32_t*>(out + row * out_row + 2 * i) =
                    ptx::pack_half2(o_rmem[i + 2 * r], o_rmem[i + 2 * r + 1]);
    }
}
