// What a warpgroup makes of its tiles of 64 keys, for 64 query rows: decoding on wgmma.
//
// Each of the four warps copies 16 keys of a tile to the panels that wgmma reads (warpgroup_rows.cuh), K and
// V to places of their own in the ring. A lane's copies reach wgmma by a wait, a fence between the proxies
// and a barrier of the warpgroup. The same barrier tells that all four warps have the product before this
// one, so that the place that it was read from may be filled again.
#pragma once
#include "warpgroup_rows.cuh"

static_assert(!E4M3 && D % 64 == 0, "wgmma multiplies elements; whole panels");
constexpr int BLOCK_ROWS = ROWS, SHARERS = 4;
constexpr int TILE = 64 * D, RING = STAGES * TILE;  // [STAGES, 64, D], of K and V in turn
using stored = element;
struct Rows {  // panels, of 64 rows of Q or keys: see warpgroup_rows.cuh
    static constexpr int CHUNKS = D / 8, LANES = CHUNKS;

    static __device__ __forceinline__ int swizzled(int row, int chunk) {
        return chunk / 8 * (64 * 64) + row * 64 + (chunk ^ row) % 8 * 8;
    }
};
using Keys = Rows;
#include "decode_keys.cuh"

// Where K or V of a turn is, all 64 keys.
template <bool IS_V> __device__ __forceinline__ element* place(const WarpKeys& keys, int turn) {
    return keys.ring + (2 * turn + IS_V) % STAGES * TILE;
}

// The warp's 16 of them: a group, empty where no tile is left. For K and V in turn.
template <bool IS_V>
__device__ __forceinline__ void load_own(WarpKeys& keys, const BlockRows& rows, const element* k,
                                         const element* v, int turn) {
    const Params& params = rows.params;
    element* own_smem = place<IS_V>(keys, turn) + threadIdx.x / 32 % SHARERS * 16 * 64;
    if (!IS_V && turn % HELD_TURNS == 0) keys.here = keys.next, keys.next = keys.find_run(turn + HELD_TURNS);
    if (turn < keys.turns)
        keys.load_rows(own_smem, IS_V ? v : k, IS_V ? params.v : params.k, rows.h_kv, turn);
    ptx::cp_async_commit();
}

// O, m and l of the warpgroup's keys, for all rows of the block: m and l to `m_smem` and `l_smem`, and O in
// the place of the ring, [BLOCK_ROWS, PART_ROW]. Q is the group of copies before these. `loaded()` is called
// once Q and what comes before it is no longer waited for.
template <class Loaded>
__device__ __forceinline__ void attend(WarpKeys& keys, const BlockRows& rows, const Mask& mask,
                                       const element* k, const element* v, const element* q_smem,
                                       float* m_smem, float* l_smem, Loaded loaded) {
    constexpr int HALF = BLOCK_N / 2;
    const Params& params = rows.params;
    const int lane = keys.lane, own_warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    const int barrier = 1 + own_warp / SHARERS, warp_row = own_warp % SHARERS * WARP_ROWS;
    keys.next = keys.find_run(0);
#pragma unroll 1
    for (int turn = 0; turn < (STAGES - 1) / 2; turn++) {
        load_own<false>(keys, rows, k, v, turn);
        load_own<true>(keys, rows, k, v, turn);
    }
    if (STAGES % 2 == 0) load_own<false>(keys, rows, k, v, (STAGES - 1) / 2);

    Scores s_rmem;
    P p_rmem;
    Output o_rmem = {};
    RowState m = {LOWEST, LOWEST}, l = {0.0f, 0.0f}, rescale;
    const Scale scale(params.softmax_scale_log2());
    const Adjustment adjustment(params, Sequence{}, 0);  // the softcap of all heads
    const Interval first_sees = rows.sees(mask, warp_row), last_sees = rows.sees(mask, warp_row + 15);
    ptx::cp_async_wait<STAGES - 1>();  // Q, the oldest group: this thread's part has arrived
    ptx::fence_proxy_async();          // wgmma sees it: Q
    __syncthreads();                   // so have the other threads' parts
    loaded();

#pragma unroll 1
    for (int turn = 0; turn < keys.turns; turn++) {
        const int key = keys.key_of(turn) - own_warp % SHARERS * 16;  // the first of the tile
        const element *k_smem = place<false>(keys, turn), *v_smem = place<true>(keys, turn);
        ptx::cp_async_wait<STAGES - 2>();  // this lane's part of K has arrived
        ptx::fence_proxy_async();          // wgmma sees it
        ptx::bar_sync(barrier, 128);       // so have the other lanes'; all warps have read the V before
        issue_qk(s_rmem, q_smem, k_smem);
        load_own<(STAGES - 1) % 2>(keys, rows, k, v, turn + (STAGES - 1) / 2);
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s_rmem);
        if (ADJUSTED) adjust_tile(s_rmem, adjustment, 0, lane);
        if (key < last_sees.begin || key + BLOCK_N > first_sees.end || scale.sign != 1.0f) {
            const int row = warp_row + lane / 4;
            mask_tile(s_rmem, {rows.sees(mask, row).from(key), rows.sees(mask, row + 8).from(key)},
                      scale.sign, lane);
        }
        const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);
        if (turn > 0) rescale_o_and_l(o_rmem, l, rescale);
        exponentiate<false, 0, 0, HALF>(p_rmem, s_rmem, m, l, scale_left);
        ptx::cp_async_wait<STAGES - 2>();  // this lane's part of V has arrived
        ptx::fence_proxy_async();          // wgmma sees it
        ptx::bar_sync(barrier, 128);       // so have the other lanes'; all warps have read K
        issue_pv<0, HALF>(o_rmem, p_rmem, v_smem);
        exponentiate<false, 0, HALF, BLOCK_N>(p_rmem, s_rmem, m, l, scale_left);  // under the first half's
        issue_pv<HALF, BLOCK_N>(o_rmem, p_rmem, v_smem);
        load_own<STAGES % 2>(keys, rows, k, v, turn + STAGES / 2);
        ptx::wgmma_wait<0>();  // O is whole
        ptx::wgmma_pin(o_rmem);
    }

    ptx::bar_sync(barrier, 128);  // all warps have read the last V before O takes the place of the ring
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row + 8 * r + lane / 4;
        const float total = quad_sum(l[r]);
        if (lane % 4 == 0) m_smem[row] = m[r], l_smem[row] = total;
        float* o_row = (float*)keys.ring + row * PART_ROW + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *(float2*)(o_row + 8 * d) = make_float2(o_rmem[4 * d + 2 * r], o_rmem[4 * d + 2 * r + 1]);
    }
}
