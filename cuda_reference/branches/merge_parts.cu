// Attention over two parts of the keys made one: LSE = log(e^LSE_a + e^LSE_b) and O = e^(LSE_a - LSE) O_a +
// e^(LSE_b - LSE) O_b. A thread has 8 columns of a row: 16 bytes of each part.
#include "params.cuh"
#include "tile.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
merge_parts(const element* out_a, const float* lse_a,  // [B, H, S, D], [B, H, S]
            const element* out_b, const float* lse_b, element* out, float* lse,
            STRIDES(a), STRIDES(b), STRIDES(o), int rows, int columns) {
    const Strides a_strides = STRIDES_GIVEN(a), b_strides = STRIDES_GIVEN(b), o_strides = STRIDES_GIVEN(o);
    const int chunks = columns / 8, h = blockIdx.y, b = blockIdx.z;
    const long long thread = (long long)blockIdx.x * THREADS + threadIdx.x;
    const int row = int(thread / chunks), column = int(thread % chunks) * 8;
    if (row >= rows) return;
    const long long index = ((long long)b * gridDim.y + h) * rows + row;
    const float of_a = lse_a[index], of_b = lse_b[index], greater = fmaxf(of_a, of_b);
    const float base = greater == -INFINITY ? 0.0f : greater;  // -inf - -inf would be NaN
    const float weight_a = expf(of_a - base), weight_b = expf(of_b - base), sum = weight_a + weight_b;
    const float inv_sum = sum == 0 ? 0.0f : 1.0f / sum;  // where neither part sees a key, O is 0
    float x[8], y[8];
    tile::load8(x, out_a + a_strides.at(b, h, row) + column);
    tile::load8(y, out_b + b_strides.at(b, h, row) + column);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = (weight_a * x[i] + weight_b * y[i]) * inv_sum;
    tile::store8(out + o_strides.at(b, h, row) + column, x);
    if (column == 0) lse[index] = base + logf(sum);
}
