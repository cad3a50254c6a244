// Q, K and V in e4m3 for fp8_wgmma.cu: bytes with 3 bits of mantissa, of numbers up to 448, and their scales.
//
// Outliers are the trouble: where one column makes a large score, its rounding error is the score's. So a
// row of Q or K changes its signs, by a pattern that looks random, and then its axes, by a Hadamard matrix H,
// which spreads an outlier over all columns. H^T H = D I: Q K^T is D times what it was. Q has a scale per
// row, K one per tile of 128 rows; a number is byte * scale. V has 2^exponent per tile: P will carry it.
// wgmma reads e4m3 along the keys only: V is written transposed, [D, keys]. Of each 16 keys the order is
// 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15: then the four scores that a lane has of them are four bytes in a
// row. Of Q and K, D / 16 lanes have a row, 16 columns each. A block has a tile of a head of K or V, which
// waits in registers or shared memory for its scale; of Q (EACH_ROW) it has the rows that its threads hold at once.
// What is computed before the rounding is sums and one product: a twin in NumPy gets the same bytes.
#include "tile.cuh"

constexpr int D = HEAD_DIM, TILE = 128, THREADS = 256, COLUMNS = 16;
constexpr int LANES = D / COLUMNS, ROWS_AT_ONCE = THREADS / LANES;
constexpr int PASSES = EACH_ROW ? 1 : TILE / ROWS_AT_ONCE;
constexpr float LARGEST = 448.0f, LEAST = 7.8886091e-31f;  // 2^-100: what is scaled by it stays a float

// The row's columns 16 * part to 16 * part + 15, times signs and H: sums and differences of columns whose
// numbers differ in one bit, those of the lane and then those of its neighbours.
__device__ __forceinline__ void transform(float (&x)[COLUMNS], int part) {
    const uint32_t signs = 0x9e3779b9u * (2 * part + 1) >> 16;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) x[i] = signs >> i & 1 ? -x[i] : x[i];
#pragma unroll
    for (int bit = 1; bit < COLUMNS; bit *= 2)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            if (i & bit) continue;
            const float low = x[i], high = x[i | bit];
            x[i] = low + high, x[i | bit] = low - high;
        }
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 2)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const float other = __shfl_xor_sync(tile::ALL_LANES, x[i], bit);
            x[i] = part & bit ? other - x[i] : x[i] + other;
        }
}

// The largest of the lane's and of `lanes` neighbours.
__device__ __forceinline__ float largest_of(float x, int lanes) {
    for (int bit = 1; bit < lanes; bit *= 2) x = fmaxf(x, __shfl_xor_sync(tile::ALL_LANES, x, bit));
    return x;
}

// The largest of all lanes of the block.
__device__ __forceinline__ float largest_of_block(float x) {
    __shared__ float of_warp[THREADS / 32];
    x = largest_of(x, 32);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();  // every warp has its own
    for (float each : of_warp) x = fmaxf(x, each);
    return x;
}

__device__ __forceinline__ uint32_t pack4(float a, float b, float c, float d) {
    return ptx::pack_e4m3(a, b) | (uint32_t)ptx::pack_e4m3(c, d) << 16;
}

// bytes [B, H, S, D] of x. scales: [B, H, S] of Q, else [B, H, tiles]. `sign`: of the softmax's scale, 0 if
// that is 0; it goes into the bytes of Q.
extern "C" __global__ void __launch_bounds__(THREADS)
quantise_rows(const element* x, STRIDES(x), uint8_t* bytes, float* scales, int S, int H, float sign) {
    const int part = threadIdx.x % LANES;
    const int first_row = blockIdx.x * PASSES * ROWS_AT_ONCE + threadIdx.x / LANES;
    const int64_t head = (int64_t)blockIdx.z * H + blockIdx.y;
    const Strides strides STRIDES_GIVEN(x);
    const element* of_lane = x + strides.at(blockIdx.z, blockIdx.y, 0) + part * COLUMNS;
    float values[PASSES][COLUMNS], largest[PASSES], largest_here = 0.0f;
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const int row = first_row + pass * ROWS_AT_ONCE;
        float (&v)[COLUMNS] = values[pass];
        float halves[2][8] = {};
        if (row < S)
            for (int i = 0; i < 2; i++) tile::load8(halves[i], of_lane + row * strides.row + 8 * i);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) v[i] = halves[i / 8][i % 8];
        transform(v, part);
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) most = fmaxf(most, fabsf(v[i]));
        largest[pass] = largest_of(most, LANES);
        largest_here = fmaxf(largest_here, most);
    }
    if (!EACH_ROW) {
        largest_here = largest_of_block(largest_here);
        if (threadIdx.x == 0) scales[head * gridDim.x + blockIdx.x] = fmaxf(largest_here, LEAST) / LARGEST;
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const int row = first_row + pass * ROWS_AT_ONCE;
        const float most = fmaxf(EACH_ROW ? largest[pass] : largest_here, LEAST);
        const float up = sign * (LARGEST / most);
        auto four = [&](int i) {
            const float* v = values[pass] + 4 * i;
            return pack4(v[0] * up, v[1] * up, v[2] * up, v[3] * up);
        };
        if (row >= S) continue;
        uint8_t* to = bytes + (head * S + row) * D + part * COLUMNS;
        ptx::store_16(to, four(0), four(1), four(2), four(3));
        if (EACH_ROW && part == 0) scales[head * S + row] = most / LARGEST;
    }
}

// The least exponent with which numbers up to `largest` are at most 448 * 2^exponent, from -100 on: 448 is
// 1.75 * 2^8, and a mantissa beyond 1.75 carries into the exponent's bits. P carries the exponent: that of
// zeros is so low that the range of P follows other tiles, and not so low that their part of l underflows.
__device__ __forceinline__ int exponent_for(float largest) {
    return largest == 0 ? -64 : max((__float_as_int(largest) + 0x1fffff) / (1 << 23) - 127 - 8, -100);
}

// bytes [B, H, D, gridDim.x * TILE] of v, keys in the order above, zeros past S; exponents [B, H, tiles].
extern "C" __global__ void __launch_bounds__(THREADS)
quantise_v(const element* v, STRIDES(v), uint8_t* bytes, float* exponents, int S, int H) {
    __shared__ __align__(16) element v_smem[TILE * D];  // [key, D], 8 columns swizzled by key / 16
    auto at_smem = [&](int key, int column) {
        return v_smem + key * D + ((column / 8 ^ key / 16) * 8 | column % 8);
    };
    const int64_t head = (int64_t)blockIdx.z * H + blockIdx.y, keys = (int64_t)gridDim.x * TILE;
    const int first_key = blockIdx.x * TILE;
    const Strides strides STRIDES_GIVEN(v);
    const element* of_head = v + strides.at(blockIdx.z, blockIdx.y, 0);
    float largest = 0.0f;
    for (int i = threadIdx.x; i < TILE * D / 8; i += THREADS) {
        const int key = i / (D / 8), column = i % (D / 8) * 8;
        uint4 eight = {};
        if (first_key + key < S) eight = *(const uint4*)(of_head + (first_key + key) * strides.row + column);
        *(uint4*)at_smem(key, column) = eight;
        float values[8];
        tile::load8(values, at_smem(key, column));
        for (float each : values) largest = fmaxf(largest, fabsf(each));
    }
    largest = largest_of_block(largest);  // its barrier: all of V is there
    const int exponent = exponent_for(largest);
    // 2^-exponent; NaN where a number is infinite, as no byte is and 448 would look like a value
    const float up = __int_as_float((127 - exponent) << 23) + (largest - largest);
    if (threadIdx.x == 0) exponents[head * gridDim.x + blockIdx.x] = exponent;
    // Two columns of 16 keys: 8 lanes store a row's 128 bytes, from words of as many banks.
    for (int i = threadIdx.x; i < D / 2 * TILE / 16; i += THREADS) {
        const int column = i / (TILE / 16) * 2, first = i % (TILE / 16) * 16;
        auto fours = [&](int t) {
            auto at = [&](int key) {
                return Element::floats(*(const element2*)at_smem(first + 2 * t + key, column));
            };
            const float2 a = at(0), b = at(1), c = at(8), d = at(9);
            return make_uint2(pack4(a.x * up, b.x * up, c.x * up, d.x * up),
                              pack4(a.y * up, b.y * up, c.y * up, d.y * up));
        };
        const uint2 p0 = fours(0), p1 = fours(1), p2 = fours(2), p3 = fours(3);
        uint8_t* to = bytes + (head * D + column) * keys + first_key + first;
        ptx::store_16(to, p0.x, p1.x, p2.x, p3.x);
        ptx::store_16(to + keys, p0.y, p1.y, p2.y, p3.y);
    }
}
