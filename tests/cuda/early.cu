#include "ptx.cuh"

// Launched with EARLY: global memory is touched only once the kernels before have ended.
#define WAIT ptx::grid_dependency_wait()

extern "C" __global__ void each_waits(const float* x, float* out) {
    WAIT;
    out[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void one_waits_and_all_meet(const float* x, float* out) {
    if (threadIdx.x == 70) WAIT;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void shared_memory_needs_no_wait(const float* x, float* out) {
    __shared__ float squares[128];
    squares[threadIdx.x] = threadIdx.x * threadIdx.x;
    __syncwarp();
    WAIT;
    out[threadIdx.x] = x[threadIdx.x] + squares[threadIdx.x ^ 1];
}

extern "C" __global__ void nobody_waits(const float* x, float* out) {
    out[threadIdx.x] = x[threadIdx.x];  // EARLY
}

extern "C" __global__ void reads_before(const float* x, float* out) {
    const float mine = x[threadIdx.x];  // EARLY
    WAIT;
    out[threadIdx.x] = mine;
}

extern "C" __global__ void one_waits_and_none_meet(const float* x, float* out) {
    if (threadIdx.x == 0) WAIT;
    if (threadIdx.x >= 32) out[threadIdx.x] = 1;  // EARLY
}

extern "C" __global__ void copies_before(const float* x, float* out) {
    __shared__ __align__(16) float tile[4];
    if (threadIdx.x == 0) {
        ptx::cp_async_16(tile, x, true);  // EARLY
        ptx::cp_async_commit();
    }
    WAIT;
    ptx::cp_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x % 4];
}
