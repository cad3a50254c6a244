// What the kernels of decoding share: the query rows of a block, keys that are found through a table of
// pages, and what one warp makes of its tiles of keys.
//
// Rows of a block belong to one K/V head: row r of a head is token r / group and query head r % group.
// Keys come in tiles of 16, dealt in turn to the warps that share a part of them. A warp fills a ring of its
// own by cp.async and waits for no other warp; S, softmax and P V are stage 12's (warp_rows.cuh). Keys out of
// sight are not read: in shared memory they are zero, whatever the pool holds there.
// WGMMA: the four warps of a warpgroup have a ring together, of tiles of 64 keys (decode_wgmma.cuh). Each of
// them copies 16 of the 64, as above.
// E4M3: K and V are bytes in the pools and in the rings, and elements in registers alone (e4m3.cuh).
// Each part of the keys has its own O, l and m, and parts merge as the online softmax does: with M the
// greatest m, O = sum 2^(m_i - M) O_i / sum 2^(m_i - M) l_i.
#pragma once
#ifndef WGMMA
#define WGMMA 0  // a block multiplies 64 query rows by wgmma, and not 16 or 32 by mma.sync
#endif
#include "quad.cuh"
#if WGMMA
#include "warpgroup_rows.cuh"
#define RING_ALIGNED __align__(1024)
#else
#include "e4m3.cuh"
#define RING_ALIGNED __align__(128)
#endif

constexpr int SHARERS = WGMMA ? 4 : 1;  // warps that have a ring and a part of the keys together
static_assert(D == D_V && (USED || !PAGED) && !RAGGED && !ALIBI, "lengths: seqused_k");
static_assert(BLOCK_N == 16 * SHARERS, "16 keys of a tile for each warp");
static_assert(RUN == 16 || RUN == 1, "keys in a row: no page ends inside a tile, or one may after any key");
constexpr int THREADS = 32 * WARPS, TILE = BLOCK_N * D, SLOT = 2 * TILE;
constexpr int SHARES = WARPS / SHARERS, RING = STAGES * (WGMMA ? TILE : SLOT);
constexpr int QUADS = D / 4, PART_ROW = D + 8;  // of a row of O: float4s, and floats with padding
constexpr int RUNS = 16 / RUN, HELD_TURNS = 32 / RUNS;  // of a tile; tiles whose runs the lanes keep
using stored = STORED;
constexpr int CHUNK = 16 / sizeof(stored);
#if WGMMA
static_assert(!E4M3 && D % 64 == 0, "wgmma multiplies elements; whole panels");
constexpr int BLOCK_ROWS = ROWS;
struct Rows {  // of a tile of 64: see warpgroup_rows.cuh
    static constexpr int CHUNKS = D / 8, LANES = CHUNKS;

    static __device__ __forceinline__ int swizzled(int row, int chunk) {
        return chunk / 8 * (64 * 64) + row * 64 + (chunk ^ row) % 8 * 8;
    }
};
using Keys = Rows;
#else
constexpr int BLOCK_ROWS = WARP_ROWS;
using Rows = Tile<D>;
template <class T> struct TileOf : Tile<D> {};
template <> struct TileOf<uint8_t> : Bytes {};
using Keys = TileOf<stored>;
#endif
static_assert(4 * BLOCK_ROWS * PART_ROW <= sizeof(stored) * RING, "O takes the place of the ring");

// What follows PARAMS, in which S_k is what a request has room for: the table [B, pages of a request] with
// `table_row` numbers from one row to the next, the keys of a page, 2^31 / group, rounded up, and scales.
// Without PAGED nobody reads the table: request b is page b.
#define CACHE_PARAMS const int *table, int table_row, int page, unsigned inverse_group SCALES_PARAMS
#define CACHE_GIVEN {table, table_row, page, SCALES_GIVEN}

struct Table {
    const int* pages;
    int row, page;
    Scales scales;
};

__device__ __forceinline__ int ceil_div(int x, int y) { return (x + y - 1) / y; }

// A row's four columns of O / l from `count` parts, and log2 of its sum of exponentials.
template <class M, class L, class O>
__device__ __forceinline__ float merge(float (&o)[4], int count, M m_of, L l_of, O o_of) {
    float m = LOWEST, l = 0.0f;
#pragma unroll 8
    for (int i = 0; i < count; i++) m = fmaxf(m, m_of(i));
#pragma unroll 8
    for (int i = 0; i < count; i++) {
        const float weight = ptx::ex2(m_of(i) - m);
        const float4 x = *(const float4*)o_of(i);
        l += weight * l_of(i);
        o[0] += weight * x.x, o[1] += weight * x.y, o[2] += weight * x.z, o[3] += weight * x.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] *= inverse_sum(l);
    return l == 0 ? -INFINITY : m + __log2f(l);
}

// BLOCK_ROWS query rows of K/V head `h_kv`, of `all` rows from `first` on; `inside` of them exist.
struct BlockRows {
    const Params& params;
    unsigned inverse_group;
    int h_kv, first, all, inside;
    float k_scale, v_scale;

    __device__ __forceinline__ BlockRows(const Params& params, const Table& cache, unsigned inverse_group,
                                         int h_kv, int tile)
        : params(params), inverse_group(inverse_group), h_kv(h_kv), first(tile * BLOCK_ROWS) {
        all = params.S_q * params.group;
        inside = min(BLOCK_ROWS, all - first);
        k_scale = cache.scales.k(h_kv), v_scale = cache.scales.v(h_kv);
    }

    // Rows after the last stand for it.
    __device__ __forceinline__ int token(int row) const {
        return int(min(first + row, all - 1) * (unsigned long long)inverse_group >> 31);
    }
    __device__ __forceinline__ int head(int row) const {
        return h_kv * params.group + min(first + row, all - 1) - token(row) * params.group;
    }
    __device__ __forceinline__ Interval sees(const Mask& mask, int row) const {
        return mask.interval(token(row));
    }
    // The keys that some row sees.
    __device__ __forceinline__ Interval see(const Mask& mask) const {
        return {sees(mask, 0).begin, sees(mask, inside - 1).end};
    }
    __device__ __forceinline__ void load_async(element* q_smem, const element* q, int b) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < BLOCK_ROWS * Rows::CHUNKS; i += THREADS) {
            const int row = i / Rows::CHUNKS, chunk = i % Rows::CHUNKS;
            const element* from = q + params.q.at(b, head(row), token(row)) + 8 * chunk;
            ptx::cp_async_16(q_smem + Rows::swizzled(row, chunk), from, row < inside);
        }
    }
    // Four columns of a row that all parts have joined. The sink is one more part, whose O is 0.
    __device__ __forceinline__ void store(element* out, float* lse, int b, int row, int column,
                                          const float (&o)[4], float lse_log2) const {
        float m = fmaxf(lse_log2, LOWEST), l = lse_log2 == -INFINITY ? 0.0f : 1.0f;
        const float rescale = join_sink(m, l, params, head(row)), factor = rescale * inverse_sum(l) * v_scale;
        const float whole[4] = {factor * o[0], factor * o[1], factor * o[2], factor * o[3]};
        uint32_t pairs[2];
        pack_output<4>(pairs, whole);
        element* to = out + params.out.at(b, head(row), token(row)) + column;
        *(uint2*)to = make_uint2(pairs[0], pairs[1]);
        if (lse && column == 0) lse[params.rows_before(b, head(row)) + token(row)] = log_sum_exp(m, l);
    }
};

// The tiles of 16 keys of one warp: tile `first_tile`, every WARPS-th after it, `turns` of them; of their
// keys those in `seen` count. The lanes keep where the next runs are, a run each: 32 of RUN keys, of
// HELD_TURNS tiles.
struct WarpKeys {
    struct Place {
        int page, slot;
    };
    const Table& table;
    stored* ring;  // [STAGES, 2, 16, D]: K and V. WGMMA: [STAGES, 64, D], of K and V in turn
    int b, first_tile, turns, lane;
    Interval seen;
    Place here, next;

    __device__ __forceinline__ int key_of(int turn) const { return (first_tile + turn * WARPS) * 16; }

    // This lane's run of the turns from `turn` on. The table is not read for keys that nobody sees.
    __device__ __forceinline__ Place find_run(int turn) const {
        const int own_turn = turn + lane / RUNS, key = key_of(own_turn) + lane % RUNS * RUN;
        if (own_turn >= turns || key + RUN <= seen.begin || key >= seen.end) return {0, 0};
        if (!PAGED) return {b, key};
        return {table.pages[(long long)b * table.row + key / table.page], key % table.page};
    }
    __device__ __forceinline__ void load_rows(stored* tile_smem, const stored* pool, const Strides& strides,
                                              int h_kv, int turn) const {
        constexpr int PASS = 32 / Keys::LANES;  // rows
        const stored* from = nullptr;
#pragma unroll
        for (int first = 0; first < 16; first += PASS) {
            const int row = first + lane / Keys::LANES, chunk = lane % Keys::LANES, key = key_of(turn) + row;
            if (RUN == 1 || first == 0) {
                const int holder = turn % HELD_TURNS * RUNS + row / RUN;
                const int page = __shfl_sync(ALL_LANES, here.page, holder);
                const int slot = __shfl_sync(ALL_LANES, here.slot, holder) + row % RUN;
                from = pool + strides.at(page, h_kv, slot) + CHUNK * chunk;
            }
            const bool counts = seen.begin <= key && key < seen.end;
            ptx::cp_async_16(tile_smem + Keys::swizzled(row, chunk), from, counts);
            from += PASS * strides.row;
        }
    }
    // The turns in order; a group of K and one of V, empty after the last.
    __device__ __forceinline__ void load_tile(const stored* k, const stored* v, const Params& params,
                                              int h_kv, int turn) {
        stored* slot_smem = ring + turn % STAGES * SLOT;
        if (turn % HELD_TURNS == 0) here = next, next = find_run(turn + HELD_TURNS);
        if (turn < turns) load_rows(slot_smem, k, params.k, h_kv, turn);
        ptx::cp_async_commit();
        if (turn < turns) load_rows(slot_smem + TILE, v, params.v, h_kv, turn);
        ptx::cp_async_commit();
    }
};

#if !WGMMA
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
    for (int turn = 0; turn < STAGES - 1; turn++) keys.load_tile(k, v, params, rows.h_kv, turn);

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
        keys.load_tile(k, v, params, rows.h_kv, turn + STAGES - 1);
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
#endif
