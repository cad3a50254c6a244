// Attention over two parts of the keys made one: LSE = log(e^LSE_a + e^LSE_b) and O = e^(LSE_a - LSE) O_a +
// e^(LSE_b - LSE) O_b. threadIdx.y is one of the block's rows, of all heads and requests, threadIdx.x eight of
// its columns: 16 bytes of each part. A thread asks for all that it reads before it computes.
#include "params.cuh"
#include "tile.cuh"

constexpr int THREADS = 256;

// n / d for n below 2^31, by what merging.py makes of d.
__device__ __forceinline__ unsigned quotient(unsigned n, unsigned inverse, unsigned shift) {
    return __umulhi(2 * n, inverse) >> shift;
}

extern "C" __global__ void __launch_bounds__(THREADS)
merge_parts(const element* out_a, const float* lse_a,  // [B, H, S, D], [B, H, S]
            const element* out_b, const float* lse_b, element* out, float* lse,
            STRIDES(a), STRIDES(b), STRIDES(o), unsigned all_rows, unsigned heads, unsigned inverse_heads,
            unsigned heads_shift, unsigned rows, unsigned inverse_rows, unsigned rows_shift) {
    const unsigned index = blockIdx.x * blockDim.y + threadIdx.y;  // of the row in [B, H, S]
    if (index >= all_rows) return;
    const float of_a = lse_a[index], of_b = lse_b[index];
    const unsigned head = quotient(index, inverse_rows, rows_shift), row = index - head * rows;
    const unsigned b = quotient(head, inverse_heads, heads_shift), h = head - b * heads;
    const auto place = [&](const Strides& strides) {
        return strides.at(b, h, row) + 8 * threadIdx.x;
    };
    float x[8], y[8];
    tile::load8(x, out_a + place(STRIDES_GIVEN(a)));
    tile::load8(y, out_b + place(STRIDES_GIVEN(b)));
#pragma unroll
    for (int i = 0; i < 8; i++) {  // what a part without keys holds may be NaN, and 0 * NaN is NaN
        x[i] = of_a == -INFINITY ? 0.0f : x[i];
        y[i] = of_b == -INFINITY ? 0.0f : y[i];
    }

    const float greater = fmaxf(of_a, of_b);
    const float base = greater == -INFINITY ? 0.0f : greater;  // -inf - -inf would be NaN
    const float share_a = __expf(of_a - base), share_b = __expf(of_b - base), sum = share_a + share_b;
    const float inv_sum = __fdividef(1.0f, fmaxf(sum, 1.0f));  // below 1: neither part sees a key, O is 0
    const float weight_a = share_a * inv_sum, weight_b = share_b * inv_sum;
    if (threadIdx.x == 0) lse[index] = base + __logf(sum);
    uint32_t pairs[4];  // the weights sum up to 1: no finite value becomes infinite
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        pairs[i / 2] = ptx::pack_pair(weight_a * x[i] + weight_b * y[i],
                                      weight_a * x[i + 1] + weight_b * y[i + 1]);
    ptx::store_16(out + place(STRIDES_GIVEN(o)), pairs[0], pairs[1], pairs[2], pairs[3]);
}
