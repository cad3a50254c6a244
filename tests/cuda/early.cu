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

// Lane 3 of a warp in which all wait tells the next one, by an mbarrier.
extern "C" __global__ void all_wait_and_one_arrives(const float* x, float* out) {
    __shared__ __align__(8) uint64_t told;
    if (threadIdx.x == 0) ptx::mbarrier_init(&told, 1);
    __syncthreads();
    if (threadIdx.x / 32 == 1) {
        WAIT;
        if (threadIdx.x % 32 == 3) ptx::mbarrier_arrive(&told);
    }
    ptx::mbarrier_wait(&told, 0);
    out[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void one_waits_and_another_arrives(const float* x, float* out) {
    __shared__ __align__(8) uint64_t told;
    if (threadIdx.x == 0) ptx::mbarrier_init(&told, 1);
    __syncthreads();
    if (threadIdx.x == 32) WAIT;
    if (threadIdx.x == 33) ptx::mbarrier_arrive(&told);
    ptx::mbarrier_wait(&told, 0);
    if (threadIdx.x >= 64) out[threadIdx.x] = x[threadIdx.x];  // EARLY
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
