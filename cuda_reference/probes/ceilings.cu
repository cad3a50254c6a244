// How fast each unit of a GPU can be: a kernel a unit, which keeps that unit busy and the others idle. Every
// thread writes what it computed, so the compiler can leave nothing out, and the host, which knows the right
// sums, sees that every operation was done. Values are small whole numbers, so that float sums are exact.
// flashcore_numba/measure/ceilings.py chooses grids and rounds.
#include "ptx.cuh"

constexpr int CHAINS = 8;           // independent operations in flight a thread, which hide their latency
constexpr int TILE_VECTORS = 2048;  // of 16 bytes

extern "C" __global__ void empty() {}

// Adds step `rounds` times in each of the chains, by fused multiply-adds with a factor of 1 that only the
// host knows.
extern "C" __global__ void __launch_bounds__(1024, 1)
fma_chains(float* out, float factor, float step, int rounds) {
    float x[CHAINS], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i] = i;
#pragma unroll 8
    for (int n = 0; n < rounds; n++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) x[i] = fmaf(x[i], factor, step);
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// The chain x = 2^-x, which tends to 0.64; the sum of its values tells how many there were.
extern "C" __global__ void __launch_bounds__(1024, 1) ex2_chains(float* out, int rounds) {
    float x[CHAINS], sums[CHAINS] = {}, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i] = i;
#pragma unroll 4
    for (int n = 0; n < rounds; n++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) {
            x[i] = ptx::ex2(-x[i]);
            sums[i] += x[i];
        }
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Tensor cores through mma.sync with operands that stay in registers: a [4, 32] and b [2, 32] are the
// fragments of all lanes. Each round adds a b to each of the chains.
extern "C" __global__ void __launch_bounds__(512, 1)
mma_chains(const uint32_t* a, const uint32_t* b, float* out, int rounds) {
    const int lane = threadIdx.x % 32;
    const uint32_t a_rmem[4] = {a[lane], a[32 + lane], a[64 + lane], a[96 + lane]};
    const uint32_t b0 = b[lane], b1 = b[32 + lane];
    float d[CHAINS][4] = {}, sum = 0.0f;
#pragma unroll 4
    for (int n = 0; n < rounds; n++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) ptx::mma_m16n8k16(d[i], a_rmem, b0, b1);
#pragma unroll
    for (int i = 0; i < CHAINS * 4; i++) sum += d[i / 4][i % 4];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Shared memory, 16 bytes per lane, 512 consecutive bytes per warp: four wavefronts per request, no conflict.
extern "C" __global__ void __launch_bounds__(1024, 1) shared_reads(float* out, int rounds) {
    __shared__ __align__(16) float4 tile_smem[TILE_VECTORS];
    for (int i = threadIdx.x; i < TILE_VECTORS; i += blockDim.x)
        tile_smem[i] = make_float4(i % 3, i % 5, i % 7, i % 11);
    __syncthreads();  // the tile is whole
    float4 sum = {};
    for (int n = 0; n < rounds; n++) {
        const float4* first = tile_smem + (threadIdx.x + 32 * n) % 1024;  // no two rounds alike
#pragma unroll
        for (int i = 0; i < CHAINS; i++) {
            const float4 x = first[i * 128];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum.x + sum.y + sum.z + sum.w;
}

// Global memory that fits in the L2: every block reads all `chunks` (a power of two) of 1024 vectors, each
// from another place on, so that the L1 never holds what comes next.
extern "C" __global__ void __launch_bounds__(1024, 1)
l2_reads(const float4* data, float* out, int chunks, int sweeps) {
    const int start = (long long)chunks * blockIdx.x / gridDim.x;
    float4 sum = {};
    for (int n = start; n < start + chunks * sweeps; n += CHAINS) {
#pragma unroll
        for (int i = 0; i < CHAINS; i++) {
            const float4 x = data[((n + i) & (chunks - 1)) * 1024 + threadIdx.x];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum.x + sum.y + sum.z + sum.w;
}

// Device memory, read and written once: four vectors a thread, as many as the grid has room for.
extern "C" __global__ void __launch_bounds__(512) copy(const float4* from, float4* to) {
    const long long first = blockIdx.x * 4ll * blockDim.x + threadIdx.x;
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = from[first + i * blockDim.x];
#pragma unroll
    for (int i = 0; i < 4; i++) to[first + i * blockDim.x] = x[i];
}

// Device memory, read once and never written: in each round the blocks read one stretch of it together, eight
// vectors per thread, all in flight at once.
extern "C" __global__ void __launch_bounds__(512) reads(const float4* data, float* out, int rounds) {
    float4 sum = {};
    for (int n = 0; n < rounds; n++) {
        const float4* first = data + ((long long)n * gridDim.x + blockIdx.x) * CHAINS * blockDim.x + threadIdx.x;
        float4 x[CHAINS];
#pragma unroll
        for (int i = 0; i < CHAINS; i++) x[i] = first[i * blockDim.x];
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            sum.x += x[i].x, sum.y += x[i].y, sum.z += x[i].z, sum.w += x[i].w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum.x + sum.y + sum.z + sum.w;
}
