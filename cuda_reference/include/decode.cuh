// What one warp makes of its tiles of 16 keys, for 16 or 32 query rows: decoding on mma.sync.
//
// A warp fills a ring of its own by cp.async and waits for no other warp; S, softmax and P V are stage 12's
// (warp_rows.cuh). Where the keys are, decode_keys.cuh says.
// E4M3: K and V are bytes in the pools and in the rings, and elements in registers alone (e4m3.cuh).
#pragma once
#include "e4m3.cuh"

constexpr int BLOCK_ROWS = WARP_ROWS, SHARERS = 1;
constexpr int TILE = 16 * D, SLOT = 2 * TILE, RING = STAGES * SLOT;  // [STAGES, 2, 16, D]: K and V
using stored = STORED;
using Rows = Tile<D>;
template <class T> struct TileOf : Tile<D> {};
template <> struct TileOf<uint8_t> : Bytes {};
using Keys = TileOf<stored>;
#include "decode_keys.cuh"

// The turns in order; a group of K and one of V, empty after the last.
__device__ __forceinline__ void load_tile(WarpKeys& keys, const stored* k, const stored* v,
                                          const Params& params, int h_kv, int turn) {
    stored* slot_smem = keys.ring + turn % STAGES * SLOT;
    if (turn % HELD_TURNS == 0) keys.here = keys.next, keys.next = keys.find_run(turn + HELD_TURNS);
    if (turn < keys.turns) keys.load_rows(slot_smem, k, params.k, h_kv, turn);
    ptx::cp_async_commit();
    if (turn < keys.turns) keys.load_rows(slot_smem + TILE, v, params.v, h_kv, turn);
    ptx::cp_async_commit();
}

// O, m and l of the warp's keys, for all rows of the block: m and l to `m_smem` and `l_smem`, and O in the
// place of the ring, [BLOCK_ROWS, PART_ROW]. Q is the group of copies before these. `loaded()` is called once
// Q and what comes before it is no longer waited for.
template <class Loaded>
__device__ __forceinline__ void attend(WarpKeys& keys, const BlockRows& rows, const Mask& mask,
                                       const stored* k, const stored* v, const element* q_smem,
                                       float* m_smem, float* l_smem, Loaded loaded) {
    const Params& params = rows.params;
    const int lane = keys.lane;
    keys.next = keys.find_run(0);
#pragma unroll 1
    for (int turn = 0; turn < STAGES - 1; turn++) load_tile(keys, k, v, params, rows.h_kv, turn);

    Queries q_rmem;
    Output o_rmem = {};
    RowState m, l;
    const Scale scale(params.softmax_scale_log2() * (SOFTCAP ? 1.0f : rows.k_scale));
    Adjustment adjustment(params, Sequence{}, 0);  // the softcap of all heads
    adjustment.scale_by_cap *= rows.k_scale;
    const Interval first_sees = rows.sees(mask, 0), last_sees = rows.sees(mask, rows.inside - 1);
    float scale_left = scale.log2;  // see raise_max
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) m[r] = LOWEST, l[r] = 0.0f;
    ptx::cp_async_wait<2 * STAGES - 2>();  // Q, the oldest group: this thread's part has arrived
    __syncthreads();                       // so have the other threads' parts
    loaded();
    if (Q_IN_REGISTERS) E4M3 ? load_fours(q_rmem, q_smem, lane) : load_queries(q_rmem, q_smem, lane);

#pragma unroll 1
    for (int turn = 0; turn < keys.turns; turn++) {
        const int key = keys.key_of(turn);
        const stored* k_smem = keys.ring + turn % STAGES * SLOT;
        __syncwarp();  // all lanes have read the slot that is filled next
        load_tile(keys, k, v, params, rows.h_kv, turn + STAGES - 1);
        ptx::cp_async_wait<2 * STAGES - 1>();  // this lane's part of K has arrived
        __syncwarp();                          // so have the other lanes' parts
        Scores s_rmem;
        P p_rmem;
        score_tile(s_rmem, q_rmem, q_smem, k_smem, lane);
        if (ADJUSTED) adjust_tile(s_rmem, adjustment, 0, lane);
        const bool masked = key < last_sees.begin || key + 16 > first_sees.end || scale.sign != 1.0f;
        bool done = false;
        if (turn > 0 && !masked && scale_left == scale.log2)  // m may be near
            done = exponentiate(p_rmem, s_rmem, m, l, scale.log2);
        if (!done) {
            if (masked) {
                Interval seen[LANE_ROWS];
#pragma unroll
                for (int r = 0; r < LANE_ROWS; r++) seen[r] = rows.sees(mask, 8 * r + lane / 4).from(key);
                mask_tile(s_rmem, seen, scale.sign, lane);
            }
            scale_left = softmax_tile(p_rmem, s_rmem, o_rmem, m, l, scale.log2);
        }
        ptx::cp_async_wait<2 * STAGES - 2>();  // this lane's part of V has arrived
        __syncwarp();                          // so have the other lanes' parts
        accumulate_pv(o_rmem, p_rmem, k_smem + TILE, lane);
    }

    __syncwarp();  // all lanes have read K and V for the last time before O takes their place
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) {
        const int row = 8 * r + lane / 4;
        const float total = quad_sum(l[r]);
        if (lane % 4 == 0) m_smem[row] = m[r], l_smem[row] = total;
        float* o_row = (float*)keys.ring + row * PART_ROW + lane % 4 * (E4M3 ? 4 : 2);
        if (E4M3) store_fours(o_row, o_rmem, r);
#pragma unroll
        for (int d = 0; !E4M3 && d < D / 8; d++) {
            const float* pair = &o_rmem[r / 2][d][r % 2 * 2];
            *(float2*)(o_row + 8 * d) = make_float2(pair[0], pair[1]);
        }
    }
}
