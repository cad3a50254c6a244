// Stage 16: a short problem on the whole GPU. Blocks of a cluster share the keys of the same rows, as the
// warpgroups of a block do, and merge through distributed shared memory: one launch, no scratch memory.
//
// A cluster owns 64 query rows of one head. The tiles of BLOCK_N keys are dealt to its PARTS = CLUSTER *
// WARPGROUPS warpgroups, first across blocks. Each (warpgroup_rows.cuh) has all 64 rows, its own ring of
// STAGES slots and its own loading thread: where its tiles fit the ring, every load of the launch is in
// flight at once and nobody waits for a slot. At 512 keys and 4 parts of 128 the loop has one tile.
// Each part ends with its m, l and O. Block r merges rows SHARE * r on: a warp's 16 rows go to one block, as
// floats, straight from registers into that block's shared memory, and one arrival a warp on its mbarrier
// says so. Then M is the greatest m, O = sum 2^(m_i - M) O_i / sum 2^(m_i - M) l_i.
// Two cluster-wide agreements are needed: nobody writes into a block that has not started, or not initialised
// its mbarriers (arrive at the start, wait before the first store: long over by then); and nobody ends while
// others still write into it: it waits for all parts anyway. Rows of parts are padded by 8 floats and a
// thread merges 4 components of either half of a row: no access meets a bank twice.
#include "warpgroup_rows.cuh"

constexpr int THREADS = 128 * WARPGROUPS, PARTS = CLUSTER * WARPGROUPS, SHARE = ROWS / CLUSTER;
constexpr int TILE = BLOCK_N * D, PART_ROW = D + 8, CHUNKS = D / 8;

// Where `local` lies in the shared memory of block `owner`; this one is `rank`.
template <class T> __device__ __forceinline__ T* in_block(int owner, int rank, T* local) {
    return owner == rank ? local : ptx::remote(local, owner);
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
    float* o_smem = reinterpret_cast<float*>(ring_smem + WARPGROUPS * 2 * STAGES * TILE);
    float2* ml_smem = reinterpret_cast<float2*>(o_smem + PARTS * SHARE * PART_ROW);  // [PARTS, SHARE]: m, l
    uint64_t* q_full = reinterpret_cast<uint64_t*>(ml_smem + PARTS * SHARE);
    uint64_t *merge_full = q_full + 1, *ring_full = merge_full + 1;  // ring: [WARPGROUPS, 2 * STAGES]
    // The shuffle tells the compiler that a warp is of one mind: addresses of tiles take uniform registers.
    const int warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32, rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const int h = blockIdx.y, b = blockIdx.z, first_row = blockIdx.x / CLUSTER * ROWS;
    auto keys_seen = [&](int row) { return causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k; };
    const int tiles = (keys_seen(min(first_row + ROWS, S_q) - 1) + BLOCK_N - 1) / BLOCK_N;
    const int part = warpgroup * CLUSTER + rank, turns = (tiles - part + PARTS - 1) / PARTS;
    const float sign = scale_log2 > 0 ? 1.0f : scale_log2 < 0 ? -1.0f : 0.0f;
    scale_log2 = scale_log2 == 0 ? 1.0f : fabsf(scale_log2);

    half* k_smem = ring_smem + warpgroup * 2 * STAGES * TILE;  // [STAGES, BLOCK_N, D]
    half* v_smem = k_smem + STAGES * TILE;                     // [STAGES, BLOCK_N, D]
    uint64_t *k_full = ring_full + warpgroup * 2 * STAGES, *v_full = k_full + STAGES;
    auto load = [&](half* ring, const ptx::TensorMap& map, uint64_t* full, int turn) {
        const int slot = turn % STAGES, key = (part + turn * PARTS) * BLOCK_N;
        ptx::mbarrier_arrive_expect(full + slot, TILE * 2);
        load_tile<BLOCK_N>(ring + slot * TILE, &map, full + slot, key, h / group, b);
    };
    if (threadIdx.x % 128 == 0) {
        for (int i = 0; i < 2 * STAGES; i++) ptx::mbarrier_init(k_full + i, 1);
        if (warpgroup == 0) {
            ptx::mbarrier_init(q_full, 1);
            ptx::mbarrier_init(merge_full, PARTS * 4 / CLUSTER);  // warps
        }
        ptx::fence_mbarrier_init();  // TMA and the other blocks see the mbarriers initialised
        if (warpgroup == 0) {
            ptx::mbarrier_arrive_expect(q_full, ROWS * D * 2);
            load_tile<ROWS>(q_smem, &q_map, q_full, first_row, h, b);
        }
        for (int turn = 0; turn < min(STAGES, turns); turn++) {
            load(k_smem, k_map, k_full, turn);
            load(v_smem, v_map, v_full, turn);
        }
    }
    __syncthreads();  // the other threads see the mbarriers too
    if (CLUSTER > 1) ptx::cluster_arrive();

    Scores s_rmem;
    Weights p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    const int warp_row = first_row + warp * WARP_ROWS;
    ptx::mbarrier_wait(q_full, 0);  // Q has arrived
    for (int turn = 0; turn < turns; turn++) {
        const int slot = turn % STAGES, parity = turn / STAGES % 2;
        const int first_key = (part + turn * PARTS) * BLOCK_N;
        ptx::mbarrier_wait(k_full + slot, parity);  // K has arrived
        issue_qk(s_rmem, q_smem, k_smem + slot * TILE);
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        if (first_key + BLOCK_N > keys_seen(warp_row) || sign != 1.0f) {
            const int row = warp_row + lane / 4;
            mask(s_rmem, {keys_seen(row) - first_key, keys_seen(row + 8) - first_key}, sign, lane);
        }
        const float scale_left = raise_reference(s_rmem, m, rescale, scale_log2);
        follow_reference(o_rmem, l, rescale);
        exponentiate(p_rmem, s_rmem, m, l, scale_left);
        ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived
        issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);
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

    const int owner = warp * WARP_ROWS / SHARE;  // the block that merges this warp's rows
    if (CLUSTER > 1) ptx::cluster_wait();  // every block has started, its merge_full is initialised
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = part * SHARE + warp * WARP_ROWS % SHARE + lane / 4 + 8 * r;
        const float total = quad_sum(l[r]);
        if (lane % 4 == 0) *in_block(owner, rank, ml_smem + row) = make_float2(m[r], total);
        float* o_row = in_block(owner, rank, o_smem + row * PART_ROW) + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *reinterpret_cast<float2*>(o_row + 8 * j) =
                make_float2(o_rmem[4 * j + 2 * r], o_rmem[4 * j + 2 * r + 1]);
    }
    __syncwarp();  // the other lanes' parts are stored before this one lane says that the warp's are
    if (lane == 0) ptx::mbarrier_arrive_remote(merge_full, owner);

    ptx::mbarrier_wait_cluster(merge_full, 0);  // all parts of this block's rows have been stored
#pragma unroll
    for (int task = threadIdx.x; task < SHARE * CHUNKS; task += THREADS) {
        const int share_row = task / CHUNKS, d = task % CHUNKS * 4;
        const int row = first_row + rank * SHARE + share_row;
        if (row >= S_q) break;
        float2 ml[PARTS];
        float m_all = LOWEST, l_all = 0.0f, o[8] = {};
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            ml[i] = ml_smem[i * SHARE + share_row];
            m_all = fmaxf(m_all, ml[i].x);
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const float weight = ptx::ex2(ml[i].x - m_all);
            const float* o_row = o_smem + (i * SHARE + share_row) * PART_ROW + d;
            const float4 x = *reinterpret_cast<const float4*>(o_row);
            const float4 y = *reinterpret_cast<const float4*>(o_row + D / 2);
            l_all += weight * ml[i].y;
            o[0] += weight * x.x, o[1] += weight * x.y, o[2] += weight * x.z, o[3] += weight * x.w;
            o[4] += weight * y.x, o[5] += weight * y.y, o[6] += weight * y.z, o[7] += weight * y.w;
        }
        const float inv_l = l_all == 0 ? 0.0f : 1.0f / l_all;  // a row that sees no key is 0, not 0 / 0
        half* out_part = out + b * out_batch + h * out_head + row * out_row + d;
#pragma unroll
        for (int i = 0; i < 2; i++)
            *reinterpret_cast<uint2*>(out_part + i * D / 2) =
                make_uint2(ptx::pack_half2(o[4 * i] * inv_l, o[4 * i + 1] * inv_l),
                           ptx::pack_half2(o[4 * i + 2] * inv_l, o[4 * i + 3] * inv_l));
        if (lse && d == 0)
            lse[((long long)b * H + h) * S_q + row] =
                l_all == 0 ? -INFINITY : (m_all + __log2f(l_all)) * LN2;
    }
}
