// One access of one warp to shared memory: lane i touches element index[i] of 1, 2, 4, 8 or 16 bytes, -1
// nothing.
#include <cuda_fp16.h>

#include "ptx.cuh"

template <class T> __device__ __forceinline__ void touch(unsigned char* smem, const int* index, T* out) {
    const int lane = threadIdx.x;
    T* shared = reinterpret_cast<T*>(smem);
    if (index[lane] >= 0) out[lane] = shared[index[lane]];  // LOAD
    if (index[lane] >= 0) shared[index[lane]] = out[lane];  // STORE
}

extern "C" __global__ void touch_4(const int* index, float* out) {
    extern __shared__ __align__(1024) unsigned char smem[];
    touch(smem, index, out);
}
extern "C" __global__ void touch_8(const int* index, float2* out) {
    extern __shared__ __align__(1024) unsigned char smem[];
    touch(smem, index, out);
}
extern "C" __global__ void touch_16(const int* index, float4* out) {
    extern __shared__ __align__(1024) unsigned char smem[];
    touch(smem, index, out);
}

// ldmatrix of a [64, 64] tile of halves, 16 x 16 a warp instruction, with or without the XOR swizzle
extern "C" __global__ void ldmatrix_tile(uint32_t* out, int swizzle) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    const int lane = threadIdx.x;
    for (int row = lane; row < 64; row += 32)
        for (int c = 0; c < 64; c++) tile[row * 64 + c] = 0;
    __syncwarp();
    for (int i = 0; i < 16; i++) {
        const int row = i / 4 * 16 + lane % 16, chunk = i % 4 * 2 + lane / 16;
        uint32_t r[4];
        ptx::ldmatrix_x4(r, tile + row * 64 + (swizzle ? chunk ^ (row & 7) : chunk) * 8);
        out[i * 32 + lane] = r[0];
    }
}

// What each thread asks of global memory: `stride` floats apart, one in `every` lanes
extern "C" __global__ void global_load(const float* in, float* out, int stride, int every) {
    if (threadIdx.x % every == 0) out[threadIdx.x] = in[threadIdx.x * stride];  // LOAD
}

// Lanes that leave a loop at different turns, and meet again
extern "C" __global__ void ragged_loop(const float* in, float* out) {
    float sum = 0;
    for (int i = 0; i < threadIdx.x % 4 + 1; i++) sum += in[32 * i + threadIdx.x];  // LOAD
    __syncwarp();
    out[threadIdx.x] = sum + in[threadIdx.x];  // AGAIN
}

// One cp.async of 16 bytes a lane: 4 rows of 128 bytes, from row `first` of `in` on, to rows `pitch` bytes
// apart
extern "C" __global__ void copy_rows(const char* in, int first, int pitch) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const int row = first + threadIdx.x / 8, byte = threadIdx.x % 8 * 16;
    ptx::cp_async_16(smem + row * pitch + byte, in + row * 128 + byte);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
}
