// Between the projections of a layer and its attention: RMSNorm and RoPE of the rows of Q and K, and the rows
// of K and V written into the pages of a cache.
//
// A row is one head of one token of Q, K or V. D / 16 lanes have a row, each two chunks of 8 columns: where
// the row is rotated the two that make pairs, x_i with x_(i + R / 2), so that a rotation stays in a lane. A
// warp has TILE rows of one token, ROWS of a lane, all of Q, of K or of V. It fetches them before it knows
// the token's slot; a row of the tables serves all of them. No warp needs another, and what a lane writes it
// alone has read: out may be q.
// E4M3: rows of K and V are divided by the scale of their head and stored as bytes, rounded once.
#include "params.cuh"
#include "ptx.cuh"

constexpr int D = HEAD_DIM, LANES = D / 16, WARPS = 4;
constexpr int APART = 32 / LANES, TILE = ROWS * APART;  // heads from one row of a lane to the next; of a warp
// Whether a lane keeps the weights from row to row, or reads them again, from L1: rows that become bytes take
// more registers, and this leaves 72 of 86, which are 28 warps on an SM and not 20.
constexpr bool KEEPS_WEIGHTS = !E4M3;

// A lane's columns as the pairs (a[i], b[i]) that RoPE rotates together.
struct Pairs {
    float x[2][8];  // a, b

    __device__ __forceinline__ float& column(int chunk, int i) {  // i: 0 to 7
        return INTERLEAVED ? x[i % 2][4 * chunk + i / 2] : x[chunk][i];
    }
    __device__ __forceinline__ void load(const uint4 (&chunks)[2]) {
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            const float2 two = Element::floats(((const element2*)&chunks[i / 8])[i % 8 / 2]);
            column(i / 8, i % 8) = two.x;
            column(i / 8, i % 8 + 1) = two.y;
        }
    }
    __device__ __forceinline__ void load(const float* low, const float* high) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const float4 four = *(const float4*)((i < 8 ? low : high) + i % 8);
            column(i / 8, i % 8) = four.x;
            column(i / 8, i % 8 + 1) = four.y;
            column(i / 8, i % 8 + 2) = four.z;
            column(i / 8, i % 8 + 3) = four.w;
        }
    }
    __device__ __forceinline__ void store(uint4 (&chunks)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t* words = (uint32_t*)&chunks[i];
#pragma unroll
            for (int j = 0; j < 4; j++) words[j] = ptx::pack_pair(column(i, 2 * j), column(i, 2 * j + 1));
        }
    }
    // The columns of a chunk in e4m3.
    __device__ __forceinline__ uint2 bytes(int chunk) {
        uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            pairs[j] = ptx::pack_e4m3(column(chunk, 2 * j), column(chunk, 2 * j + 1));
        return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
prepare_pages(const element* q, const element* k, const element* v,  // [1, H or H_kv, tokens, D]
              element* out, STORED* k_pool, STORED* v_pool,          // as q; [pages, page, H_kv, D]
              const SLOT* slot_mapping, const int* positions,        // [tokens]; no positions: no RoPE
              const float* cos, const float* sin,                    // [positions, R / 2], from row to row:
              long long cos_row, long long sin_row,
              const float* q_weight, const float* k_weight,          // [D], or null
              STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(out), STRIDES(k_pool), STRIDES(v_pool),
              int tokens, int H, int H_kv, int slots, int page,
              int turned,  // lanes of a row that have pairs, R / 16; LANES without RoPE
              int normed, float eps SCALES_PARAMS) {
    const Strides q_strides = STRIDES_GIVEN(q), k_strides = STRIDES_GIVEN(k), v_strides = STRIDES_GIVEN(v);
    const Strides out_strides = STRIDES_GIVEN(out);  // of the pools: from page to page, slot and head
    const Strides k_pool_strides = STRIDES_GIVEN(k_pool), v_pool_strides = STRIDES_GIVEN(v_pool);
    const int warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % LANES;
    const int q_tiles = (H + TILE - 1) / TILE, kv_tiles = (H_kv + TILE - 1) / TILE;
    const unsigned tiles = q_tiles + 2 * kv_tiles;
    const int token = unsigned(warp) / tiles, tile = unsigned(warp) % tiles;
    if (token >= tokens) return;
    const bool is_q = tile < q_tiles, is_v = tile >= q_tiles + kv_tiles;
    const int first_tile = is_q ? 0 : is_v ? q_tiles + kv_tiles : q_tiles, heads = is_q ? H : H_kv;
    const int first_head = (tile - first_tile) * TILE + threadIdx.x % 32 / LANES;
    // Columns of this lane's two chunks; lanes without pairs share what is not rotated.
    const bool pairs = lane < turned;
    const int low = 8 * (pairs ? lane : lane + turned), high = 8 * (pairs ? lane + turned : lane + LANES);

    const Strides from_strides = is_q ? q_strides : is_v ? v_strides : k_strides;
    const element* from = (is_q ? q : is_v ? v : k) + from_strides.at(0, first_head, token);
    uint4 chunks[ROWS][2] = {};  // a value, as four bytes of -448 are what no value looks like on the CPU
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool exists = first_head + r * APART < heads;
        const element* row = from + r * APART * from_strides.head;
        chunks[r][0] = exists ? *(const uint4*)(row + low) : make_uint4(0, 0, 0, 0);
        chunks[r][1] = exists ? *(const uint4*)(row + high) : make_uint4(0, 0, 0, 0);
    }
    const bool rotated = positions && !is_v;
    const int position = rotated ? positions[token] : 0;
    const long long slot = slot_mapping[token];
    if (slot < 0 || slot >= slots) return;  // padding; its position may be anything

    const bool turns = rotated && pairs;
    // Not null for V, which has none: else the compiler orders the loads of rows in a slower way.
    const float* weight = is_q ? q_weight : k_weight;
    Pairs weights;
    if (KEEPS_WEIGHTS && weight && !is_v) weights.load(weight + low, weight + high);
    float cosines[8], sines[8];
    if (turns) {
        const int place = INTERLEAVED ? low / 2 : low, next = INTERLEAVED ? high / 2 : low + 4;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            *(float4*)(cosines + i) = *(const float4*)(cos + position * cos_row + (i ? next : place));
            *(float4*)(sines + i) = *(const float4*)(sin + position * sin_row + (i ? next : place));
        }
    }
    const unsigned in_page = (unsigned)slot % page, page_index = (unsigned)slot / page;
    const Strides pool_strides = is_v ? v_pool_strides : k_pool_strides;
    const Scales scales SCALES_GIVEN;
    const bool as_bytes = E4M3 && !is_q;
    uint8_t* to = is_q ? (uint8_t*)(out + out_strides.at(0, first_head, token))
                       : (uint8_t*)((is_v ? v_pool : k_pool) +
                               pool_strides.at(page_index, in_page, first_head));
    const long long to_head = is_q ? out_strides.head * sizeof(element) : pool_strides.row * sizeof(STORED);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int head = first_head + r * APART;
        if (!is_v || E4M3) {  // rows of V keep their bits
            Pairs given;
            given.load(chunks[r]);
            float factor = 1.0f;
            if (normed && !is_v) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 16; i++) sum += given.x[i / 8][i % 8] * given.x[i / 8][i % 8];
#pragma unroll
                for (int lanes = 1; lanes < LANES; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
                factor = rsqrtf(sum / D + eps);
            }
            if (weight && !is_v) {
                if (!KEEPS_WEIGHTS) weights.load(weight + low, weight + high);
#pragma unroll
                for (int i = 0; i < 16; i++) given.x[i / 8][i % 8] *= weights.x[i / 8][i % 8];
            }
            if (turns) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float a = given.x[0][i], b = given.x[1][i];
                    given.x[0][i] = a * cosines[i] - b * sines[i];
                    given.x[1][i] = b * cosines[i] + a * sines[i];
                }
            }
            if (as_bytes && head < heads) factor /= is_v ? scales.v(head) : scales.k(head);
#pragma unroll
            for (int i = 0; i < 16; i++) given.x[i / 8][i % 8] *= factor;
            if (as_bytes) {
                *(uint2*)&chunks[r][0] = given.bytes(0);
                *(uint2*)&chunks[r][1] = given.bytes(1);
            } else {
                given.store(chunks[r]);
            }
        }
        uint8_t* row = to + r * APART * to_head;
        if (head < heads) {
            const uint4 first = chunks[r][0], second = chunks[r][1];
            if (as_bytes) {
                *(uint2*)(row + low) = make_uint2(first.x, first.y);
                *(uint2*)(row + high) = make_uint2(second.x, second.y);
            } else {
                ptx::store_16((element*)row + low, first.x, first.y, first.z, first.w);
                ptx::store_16((element*)row + high, second.x, second.y, second.z, second.w);
            }
        }
    }
}
