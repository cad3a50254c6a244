// What the kernels of decoding share: the query rows of a block, and keys that are found through a table of
// pages.
//
// Rows of a block belong to one K/V head: row r of a head is token r / group and query head r % group.
// Keys come in runs of 16, dealt in turn to the warps that share a part of them. A warp copies its own by
// cp.async to tiles in shared memory. Keys out of sight are not read: there they are zero, whatever the pool
// holds.
// Each part of the keys has its own O, l and m, and parts merge as the online softmax does: with M the
// greatest m, O = sum 2^(m_i - M) O_i / sum 2^(m_i - M) l_i.
// Included by what multiplies the rows, decode.cuh and decode_wgmma.cuh, which say before what is in shared
// memory: `stored` elements, BLOCK_ROWS rows of Q laid out as `Rows`, tiles of keys as `Keys`; SHARERS warps
// have a ring of RING elements together.
#pragma once
#include "quad.cuh"

static_assert(D == D_V && (USED || !PAGED) && !RAGGED && !ALIBI, "lengths: seqused_k");
static_assert(BLOCK_N == 16 * SHARERS, "16 keys of a tile for each warp");
static_assert(RUN == 16 || RUN == 1, "keys in a row: no page ends inside a tile, or one may after any key");
constexpr int THREADS = 32 * WARPS, SHARES = WARPS / SHARERS;  // of the block's keys
constexpr int QUADS = D / 4, PART_ROW = D + 8;  // of a row of O: float4s, and floats with padding
constexpr int RUNS = 16 / RUN, HELD_TURNS = 32 / RUNS;  // of a tile; tiles whose runs the lanes keep
constexpr int CHUNK = 16 / sizeof(stored);
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
        inside = of_tile(params, tile);
        k_scale = cache.scales.k(h_kv), v_scale = cache.scales.v(h_kv);
    }

    __device__ __forceinline__ static int of_tile(const Params& params, int tile) {
        return min(BLOCK_ROWS, params.S_q * params.group - tile * BLOCK_ROWS);
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
        const bool some = lse_log2 != -INFINITY;  // a NaN of a key or of q stays one
        float m = some ? lse_log2 : LOWEST, l = some ? 1.0f : 0.0f;
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
    stored* ring;  // [RING]
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
};
