// As bugs.cu, for what needs sm_90. `map` is a tensor map of a [64, 64] matrix of halves; 128 threads.
#include <cuda_fp16.h>

#include "ptx.cuh"

constexpr int TILE = 64 * 64;
#define SETUP                                                              \
    extern __shared__ __align__(1024) unsigned char smem[];                \
    half* tile = reinterpret_cast<half*>(smem);                            \
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + 4 * TILE);         \
    const int t = threadIdx.x

extern "C" __global__ void tma_no_wait(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);
    }
    __syncthreads();
    if (t < 64) out[t] = tile[t];  // BUG missing wait
}

extern "C" __global__ void tma_wrong_bytes(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2 + 16);
        ptx::tma_load_2d(tile, &map, full, 0, 0);
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 0);  // BUG deadlock
    out[t % 32] = t;
}

extern "C" __global__ void tma_mbarrier_unannounced(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);  // BUG missing fence
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 0);
    if (t < 64) out[t] = tile[t];
}

extern "C" __global__ void tma_overwrites_readers(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        if (t == 0) {
            ptx::mbarrier_arrive_expect(full, TILE * 2);
            ptx::tma_load_2d(tile, &map, full, 0, 0);  // BUG missing wait
        }
        ptx::mbarrier_wait(full, i % 2);
        if (t < 64) out[t] = tile[t];
    }
}

extern "C" __global__ void tma_store_no_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&map, tile, 0, 0);  // BUG missing fence
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void tma_store_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&map, tile, 0, 0);  // BUG missing wait
        ptx::bulk_commit();
    }
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void tma_misaligned_tile(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile + 64, &map, full, 0, 0);  // BUG misaligned
    }
    if (t < 64) out[t] = 0;
}

__device__ __forceinline__ void store_tile(half* tile) {
    for (int i = threadIdx.x; i < TILE; i += 128) tile[i] = 1;
}

extern "C" __global__ void wgmma_no_proxy_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    __syncthreads();
    float sum[32];
    ptx::wgmma_fence();
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile), 0);  // BUG missing fence
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_no_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    store_tile(tile);
    ptx::fence_proxy_async();
    __syncthreads();
    float sum[32];
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile), 0);  // BUG missing fence
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_misaligned_tile(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    store_tile(tile);
    ptx::fence_proxy_async();
    __syncthreads();
    float sum[32];
    ptx::wgmma_fence();
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile + 1), 0);  // BUG misaligned
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_no_wait(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    store_tile(tile);
    ptx::fence_proxy_async();
    __syncthreads();
    float sum[32];
    ptx::wgmma_fence();
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile), 0);
    ptx::wgmma_commit();
    if (t < 64) out[t] = sum[0];  // BUG missing wait
    ptx::wgmma_wait<0>();
}

extern "C" __global__ void wgmma_tile_overwritten(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    store_tile(tile);
    ptx::fence_proxy_async();
    __syncthreads();
    float sum[32];
    ptx::wgmma_fence();
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile), 0);
    ptx::wgmma_commit();
    tile[t] = 2;  // BUG missing wait
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
block_is_gone(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ float mine[64];
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64) mine[t] = t;
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (ptx::cluster_rank() == 0 || threadIdx.x >= 64) return;
    out[t] = *ptx::remote(mine + t, 0);  // BUG finished block
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_no_barrier(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ float mine[64];
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64) mine[t] = t;
    __syncthreads();
    if (ptx::cluster_rank() == 0 && threadIdx.x < 64) out[t] = *ptx::remote(mine + t, 1);  // BUG race
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_relaxed(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ float mine[64];
    __shared__ __align__(8) uint64_t mbarrier;
    const int t = threadIdx.x % 64;
    if (threadIdx.x == 64) {
        ptx::mbarrier_init(&mbarrier, 1);
        ptx::fence_mbarrier_init();
    }
    if (threadIdx.x < 64) mine[t] = t;
    ptx::cluster_arrive_relaxed();  // announces the mbarrier, not the values
    ptx::cluster_wait();
    if (threadIdx.x == 64) ptx::mbarrier_arrive_remote(&mbarrier, ptx::cluster_rank() ^ 1);
    if (ptx::cluster_rank() == 0 && threadIdx.x < 64) out[t] = *ptx::remote(mine + t, 1);  // BUG race
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_barrier_missed(float* out, const __grid_constant__ ptx::TensorMap map) {
    const int t = threadIdx.x;
    if (t < 64 && ptx::cluster_rank() == 0) out[t] = 0;
    if (t == 70 && ptx::cluster_rank() == 1) ptx::bar_sync(1, 64);
    ptx::cluster_arrive();
    ptx::cluster_wait();  // BUG deadlock
}
