// Before and after the backward pass: what its main kernel needs of every query row, and dQ from its sums.
//
// `prepare`: D = sum dO * O - dLSE and LSE in units of log2, and zeros for the sums of dQ. A row of O has as
// many threads as 16-byte chunks, rounded up to a power of 2; they meet by shuffles. `finish`: dQ =
// scale * sums as elements. A thread has 8 columns of rows g and g + 8: 64 bytes of sums that no other reads,
// and two stores of 16 bytes. Both have a block for 64 padded rows of one head (gradient_rows.cuh), those of
// the padding included: a main kernel with tiles of 128 rows reads and adds there.
#include "gradient_rows.cuh"
#include "ragged.cuh"

constexpr int THREADS = 256, D = HEAD_DIM, D_V = VALUE_DIM, CHUNKS = D_V / 8;
constexpr int LANES = CHUNKS > 16 ? 32 : CHUNKS > 8 ? 16 : CHUNKS > 4 ? 8 : 4;  // of a row of O
constexpr float LOG2_E = 1.44269504f;

// The block's sequence and the first of its rows, a multiple of SUM_ROWS; false if there is none.
__device__ __forceinline__ bool find_rows(Sequence& sequence, int& first_row, const Sizes& sizes) {
    RowTile pieces{int(blockIdx.z), int(blockIdx.x * SUM_ROWS / ROW_PIECE)};
    if (!find_row_tile(pieces, sizes, ROW_PIECE, threadIdx.x % 32)) return false;
    sequence = sizes.sequence(pieces.sequence);
    first_row = pieces.tile * ROW_PIECE + blockIdx.x * SUM_ROWS % ROW_PIECE;
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS)
prepare(const element* out, const element* dout,      // [B, H, S_q, D_V]
        const float* lse, const float* dlse,          // [B, H, S_q]; dlse may be null
        float* lse2, float* delta,                    // [B, H, padded rows]
        float* dq_sum,                                // as gradient_rows.cuh has it
        STRIDES(out), STRIDES(dout), SIZES) {
    const Sizes sizes = SIZES_GIVEN;
    const Strides out_strides = STRIDES_GIVEN(out), dout_strides = STRIDES_GIVEN(dout);
    const int h = blockIdx.y, lane = threadIdx.x % LANES;
    Sequence sequence;
    int first_row;
    if (!find_rows(sequence, first_row, sizes)) return;
    const int b = sequence.batch;
    const long long padded = padded_before(sizes, sequence, h) + first_row;
    float* sums = dq_sum + sums_before<D>(padded, 0, 0);
#pragma unroll
    for (int i = 4 * threadIdx.x; i < SUM_ROWS * D; i += 4 * THREADS)
        *(float4*)(sums + i) = make_float4(0, 0, 0, 0);

#pragma unroll
    for (int first = 0; first < SUM_ROWS; first += THREADS / LANES) {
        const int place = first + threadIdx.x / LANES, row = first_row + place;
        const bool inside = row < sequence.S_q;
        float sum = 0.0f;
        if (inside && lane < CHUNKS) {
            const int at = sequence.first_row + row;
            const uint4 o = *(const uint4*)(out + out_strides.at(b, h, at) + 8 * lane);
            const uint4 d_o = *(const uint4*)(dout + dout_strides.at(b, h, at) + 8 * lane);
            const element2 *o_pairs = (const element2*)&o, *do_pairs = (const element2*)&d_o;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x = Element::floats(o_pairs[i]), y = Element::floats(do_pairs[i]);
                sum += x.x * y.x + x.y * y.y;
            }
        }
#pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
        if (lane == 0) {
            const long long at = sizes.rows_before(sequence, h) + row;
            const float row_lse = inside ? lse[at] : -INFINITY;
            const bool sees = row_lse > -INFINITY;
            lse2[padded + place] = sees ? row_lse * LOG2_E : INFINITY;
            delta[padded + place] = sees ? sum - (dlse ? dlse[at] : 0.0f) : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
finish(const float* dq_sum, element* dq,  // as gradient_rows.cuh has it; [B, H, S_q, D]
       STRIDES(dq), SIZES, float scale) {
    const Sizes sizes = SIZES_GIVEN;
    const Strides dq_strides = STRIDES_GIVEN(dq);
    const int h = blockIdx.y;
    Sequence sequence;
    int first_row;
    if (!find_rows(sequence, first_row, sizes)) return;
    const long long padded = padded_before(sizes, sequence, h) + first_row;
#pragma unroll
    for (int i = threadIdx.x; i < SUM_ROWS / 2 * (D / 8); i += THREADS) {
        const int j = i % (D / 8), pair = i / (D / 8), row = pair / 8 * 16 + pair % 8;
        if (first_row + row >= sequence.S_q) continue;
        float x[2][8];
        load_sums(x[0], x[1], dq_sum + sums_before<D>(padded + pair / 8 * 16, j, 0), pair % 8);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (first_row + row + 8 * r >= sequence.S_q) break;
            uint32_t pairs[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                pairs[k] = ptx::pack_pair(x[r][2 * k] * scale, x[r][2 * k + 1] * scale);
            const int at = sequence.first_row + first_row + row + 8 * r;
            ptx::store_16(dq + dq_strides.at(sequence.batch, h, at) + 8 * j, pairs[0], pairs[1], pairs[2],
                          pairs[3]);
        }
    }
}
