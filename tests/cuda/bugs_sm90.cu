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

// Thread 32 fences between the two, but nothing tells it of the initialisation: the flag carries no fence.
extern "C" __global__ void tma_mbarrier_announced_by_a_stranger(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    __shared__ unsigned turn;
    if (t == 0) turn = 0;
    __syncthreads();
    if (t == 32) {
        while (atomicAdd(&turn, 0u) != 1) {}
        ptx::fence_proxy_async();
        atomicExch(&turn, 2u);
    }
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        atomicExch(&turn, 1u);
        while (atomicAdd(&turn, 0u) != 2) {}
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);  // BUG missing fence
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 0);
    if (t < 64) out[t] = tile[t];
}

extern "C" __global__ void tma_mbarrier_announced_by_another(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    if (t == 0) ptx::mbarrier_init(full, 1);
    __syncthreads();
    if (t == 32) ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);
    }
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
cluster_wait_by_some_lanes(float* out, const __grid_constant__ ptx::TensorMap map) {
    const int t = threadIdx.x;
    if (t < 64 && ptx::cluster_rank() == 0) out[t] = 0;
    ptx::cluster_arrive();
    if (t % 4 == 0) ptx::cluster_wait();  // BUG warp mask
    __shfl_sync(0xffffffff, t, 0);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_barrier_missed(float* out, const __grid_constant__ ptx::TensorMap map) {
    const int t = threadIdx.x;
    if (t < 64 && ptx::cluster_rank() == 0) out[t] = 0;
    if (t == 70 && ptx::cluster_rank() == 1) ptx::bar_sync(1, 64);
    ptx::cluster_arrive();
    ptx::cluster_wait();  // BUG deadlock
}

// Warps 2 and 3 arrive and return; the barrier waits for warp 1 nevertheless, which lets warp 0 go on.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_threads_arrive_and_return(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    __shared__ float mine[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 1) ptx::bar_sync(1, 64), mine[lane] = lane;
    ptx::cluster_arrive();
    if (warp == 2) ptx::bar_sync(1, 64);
    if (warp >= 2) return;
    ptx::cluster_wait();
    if (warp == 0 && ptx::cluster_rank() == 0) out[lane] = *ptx::remote(mine + lane, 1);
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

// Of a store_async of four floats.
__device__ __forceinline__ void expect_16_bytes(uint64_t* mbarrier) {
    if (threadIdx.x != 0) return;
    ptx::mbarrier_init(mbarrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(mbarrier, 16);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
store_async_into_a_block_that_returns(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ __align__(16) float theirs[4];
    __shared__ __align__(8) uint64_t mbarrier;
    expect_16_bytes(&mbarrier);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (ptx::cluster_rank() == 1) return;
    const float x[4] = {1, 2, 3, 4};
    if (threadIdx.x == 0) ptx::store_async(theirs, x, &mbarrier, 1);  // BUG finished block or missing wait
    if (threadIdx.x < 64) out[threadIdx.x] = 0;
}

// Of copies that an mbarrier counts too, whichever is waited for first.
extern "C" __global__ void cp_async_in_a_group_and_an_mbarrier(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    float* values = reinterpret_cast<float*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 64);
    __syncthreads();
    if (t < 64) {
        ptx::cp_async<4>(values + t, out + t);
        ptx::cp_async_commit();
        ptx::cp_async<4>(values + 64 + t, out + t);
        ptx::cp_async_mbarrier_arrive(full);
        ptx::cp_async<4>(values + 128 + t, out + t);
        ptx::cp_async_commit();
        ptx::cp_async_wait<1>();
        values[t] += 1;
        ptx::cp_async_wait_all();
        values[64 + t] += values[t] + values[128 + t];
    }
    if (t >= 64) ptx::mbarrier_wait(full, 0);
    __syncthreads();
    if (t >= 64) out[t - 64] = values[t] + values[t - 64];
    (void)tile;
}

extern "C" __global__ void cp_async_counted_and_read_by_another(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    float* values = reinterpret_cast<float*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 64);
    __syncthreads();
    if (t < 64) {
        ptx::cp_async<4>(values + t, out + t);
        ptx::cp_async_commit();
        ptx::cp_async_mbarrier_arrive(full);
        ptx::cp_async_wait_all();
    } else {
        ptx::mbarrier_wait(full, 0);
        values[128 + t] = values[t - 64];
    }
    __syncthreads();
    if (t >= 64) out[t - 64] = values[128 + t];
    (void)tile;
}

extern "C" __global__ void cp_async_newer_group_not_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    float* values = reinterpret_cast<float*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 64);
    __syncthreads();
    if (t < 64) {
        ptx::cp_async<4>(values + t, out + t);
        ptx::cp_async_commit();
        ptx::cp_async<4>(values + 64 + t, out + t);
        ptx::cp_async_commit();
        ptx::cp_async_mbarrier_arrive(full);
        ptx::cp_async_wait<1>();
        values[128 + t] = values[t] + values[64 + t];  // BUG missing wait
        ptx::mbarrier_wait(full, 0);
        out[t] = 0;
    }
    (void)tile;
}

extern "C" __global__ void tma_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);  // BUG missing wait
    }
    __syncthreads();
    if (t < 64) out[t] = __shfl_sync(~0u, t, 0);
    __syncthreads();
}

extern "C" __global__ void bulk_load_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        for (int i = 0; i < 2; i++) {
            ptx::mbarrier_arrive_expect(full, 256);
            ptx::bulk_load(tile + 128 * i, out, 256, full);  // BUG missing wait
            if (i == 0) ptx::mbarrier_wait(full, 0);
        }
    }
}

extern "C" __global__ void bulk_load_awaited_by_one_warp(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, 256);
        ptx::bulk_load(tile, out, 256, full);
    }
    __syncthreads();
    if (t < 96) return;
    ptx::mbarrier_wait(full, 0);
}

extern "C" __global__ void cp_async_mbarrier_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) ptx::mbarrier_init(full, 64);
    __syncthreads();
    if (t < 64) {
        ptx::cp_async<4>(reinterpret_cast<float*>(smem) + t, out + t);  // BUG missing wait
        ptx::cp_async_mbarrier_arrive(full);
    }
    (void)tile;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
store_async_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ __align__(16) float theirs[4];
    __shared__ __align__(8) uint64_t mbarrier;
    expect_16_bytes(&mbarrier);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const float x[4] = {1, 2, 3, 4};
    if (threadIdx.x == 0) ptx::store_async(theirs, x, &mbarrier, ptx::cluster_rank() ^ 1);  // BUG missing wait
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (threadIdx.x < 64 && ptx::cluster_rank() == 0) out[threadIdx.x] = 0;
}

// All read one word; three of the four warps meet before one of their threads writes it.
extern "C" __global__ void many_readers(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    __shared__ float word;
    if (t == 0) word = 1;
    __syncthreads();
    float x = word;
    if (t >= 32) ptx::bar_sync(1, 96);
    if (t == 127) word = 2;  // BUG race
    out[t % 64] = 0 * x;
    (void)tile;
}

extern "C" __global__ void many_readers_meet(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    __shared__ float word;
    for (int i = 0; i < 20; i++) {
        if (t == 7 * i % 128) word = i;
        __syncthreads();
        if (t < 64) out[t] = word;
        else tile[t] = word;
        __syncthreads();
    }
}

#define OPERANDS                                                            \
    store_tile(tile);                                                       \
    ptx::fence_proxy_async();                                               \
    __syncthreads();                                                        \
    const uint64_t b_tile = ptx::wgmma_tile(tile);                          \
    float sum[32] = {};                                                     \
    uint32_t a_rmem[4][4];                                                  \
    for (int k = 0; k < 4; k++)                                             \
        for (int i = 0; i < 4; i++) a_rmem[k][i] = ptx::pack_pair(k, t)

extern "C" __global__ void wgmma_operand_reused(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_commit();
    a_rmem[0][3] = t;  // BUG missing wait
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0] + a_rmem[0][3];
}

extern "C" __global__ void wgmma_operand_loaded(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_commit();
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[1], b_tile, 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::ldmatrix_x4(a_rmem[0], tile + t % 32 * 8);
    ptx::ldmatrix_x4(a_rmem[1], tile + t % 32 * 8);  // BUG missing wait
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_operand_of_a_step(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    OPERANDS;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t step_rmem[4];
        for (int i = 0; i < 4; i++) step_rmem[i] = a_rmem[k][i];
        ptx::wgmma_fence();
        ptx::wgmma_rs<64>(sum, step_rmem, b_tile, 1);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_operand_after_the_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    a_rmem[1][0] = t;
    ptx::wgmma_rs<64>(sum, a_rmem[1], b_tile, 1);  // BUG missing fence
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_sum_scaled_after_the_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    for (int i = 0; i < 2; i++) {
        if (i == 0) ptx::wgmma_fence();
        ptx::wgmma_rs<64>(sum, a_rmem[i], b_tile, 1);  // BUG missing fence
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        sum[5] *= 2;
    }
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_one_fence_is_enough(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    for (int k = 0; k < 4; k++) {
        ptx::wgmma_rs<64>(sum, a_rmem[k], b_tile, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
    }
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_sum_written_in_flight(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_commit();
    sum[31] = 0;  // BUG missing wait
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_sum_stored_in_flight(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_commit();
    ptx::stmatrix_x4(tile + TILE + t * 8, *(uint32_t(*)[4])(sum + 4));  // BUG missing wait
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_sum_as_operand(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    float other[32] = {};
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_rs<64>(other, *(uint32_t(*)[4])(sum + 4), b_tile, 1);  // BUG missing wait
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0] + other[0];
}

extern "C" __global__ void wgmma_sum_unset(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    store_tile(tile);
    ptx::fence_proxy_async();
    __syncthreads();
    float sum[32];
    ptx::wgmma_fence();
    ptx::wgmma_ss<64>(sum, ptx::wgmma_tile(tile), ptx::wgmma_tile(tile), 1);  // BUG uninitialised read
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_not_committed(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];  // BUG missing wait
}

extern "C" __global__ void wgmma_never_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);  // BUG missing wait
    ptx::wgmma_commit();
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void wgmma_by_one_warp(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    if (t < 32) {
        ptx::wgmma_fence();
        ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);  // BUG warp mask
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
    }
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_once_more_in_a_warp(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    for (int i = 0; i < (t / 32 == 2 ? 3 : 2); i++) {
        ptx::wgmma_fence();
        ptx::wgmma_rs<64>(sum, a_rmem[i], b_tile, 1);  // BUG warp mask
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
    }
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_of_other_tiles(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    const uint64_t tile_of_warp = ptx::wgmma_tile(tile) + (t < 32 ? 2 : 0);
    ptx::wgmma_fence();
    ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_rs<64>(sum, a_rmem[0], tile_of_warp, 1);  // BUG bad instruction
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void wgmma_in_two_places(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    OPERANDS;
    ptx::wgmma_fence();
    if (t < 64) ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);  // BUG bad instruction
    else
        ptx::wgmma_rs<64>(sum, a_rmem[0], b_tile, 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (t < 64) out[t] = sum[0];
}

extern "C" __global__ void tma_wrong_parity(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 1), out[t % 64] = tile[t];  // BUG missing wait or deadlock or race
}

extern "C" __global__ void tma_too_few_bytes(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);
        ptx::tma_load_2d(tile + TILE, &map, full, 0, 0);
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 0);
    if (t < 64) out[t] = tile[t] + tile[TILE + t];  // BUG missing wait or deadlock
}

extern "C" __global__ void tma_without_expecting(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::tma_load_2d(tile, &map, full, 0, 0);
        ptx::mbarrier_arrive(full);
    }
    __syncthreads();
    ptx::mbarrier_wait(full, 0);
    if (t < 64) out[t] = tile[t];  // BUG missing wait or deadlock
}

extern "C" __global__ void tma_store_source_reused(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&map, tile, 0, 0);
        ptx::bulk_commit();
        tile[5] = 2;  // BUG missing wait
        ptx::bulk_wait_read<0>();
    }
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void tma_store_not_committed(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&map, tile, 0, 0);  // BUG missing wait
        ptx::bulk_wait_read<0>();
    }
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void tma_store_awaited_by_another(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&map, tile, 0, 0);
        ptx::bulk_commit();
    }
    if (t == 32) ptx::bulk_wait_read<0>();
    __syncthreads();
    tile[t] = 2;  // BUG missing wait
    if (t == 0) ptx::bulk_wait_read<0>();
    if (t < 64) out[t] = 0;
}

extern "C" __global__ void bulk_store_read_back(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    float* values = reinterpret_cast<float*>(smem);
    if (t < 64) values[t] = t;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::bulk_store(out, values, 256);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        out[3] += 1;  // BUG missing wait
        ptx::bulk_wait<0>();
    }
    (void)tile, (void)full;
}

extern "C" __global__ void bulk_store_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    SETUP;
    float* values = reinterpret_cast<float*>(smem);
    if (t < 64) values[t] = t;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::bulk_store(out, values, 256);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        values[3] = 7;
        ptx::bulk_wait<0>();
        out[3] += 1;
    }
    (void)tile, (void)full;
}

extern "C" __global__ void slot_filled_before_its_fence(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
    }
    tile[t] = 0;
    __syncthreads();
    if (t == 0) {
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &map, full, 0, 0);  // BUG missing fence
    }
    ptx::mbarrier_wait(full, 0);
    if (t < 64) out[t] = tile[t];
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_arrives_twice(float* out, const __grid_constant__ ptx::TensorMap map) {
    ptx::cluster_arrive();
    ptx::cluster_arrive();  // BUG bad instruction
    ptx::cluster_wait();
    ptx::cluster_wait();
    if (threadIdx.x < 64 && ptx::cluster_rank() == 0) out[threadIdx.x] = 0;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_waits_without_arriving(float* out, const __grid_constant__ ptx::TensorMap map) {
    if (threadIdx.x < 96) ptx::cluster_arrive();
    ptx::cluster_wait();  // BUG bad instruction
    if (threadIdx.x < 64 && ptx::cluster_rank() == 0) out[threadIdx.x] = 0;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_reused_too_early(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ float mine[64];
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64) mine[t] = t;
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (ptx::cluster_rank() == 0 && threadIdx.x < 64) out[t] = *ptx::remote(mine + t, 1);
    __syncthreads();
    if (threadIdx.x < 64) mine[t] = 0;  // BUG race
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
store_async_not_awaited(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ __align__(16) float theirs[4];
    __shared__ __align__(8) uint64_t mbarrier;
    expect_16_bytes(&mbarrier);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const float x[4] = {1, 2, 3, 4};
    if (threadIdx.x == 0) ptx::store_async(theirs, x, &mbarrier, ptx::cluster_rank() ^ 1);
    if (threadIdx.x == 0 && ptx::cluster_rank() == 0) out[0] = theirs[1];  // BUG missing wait
    ptx::mbarrier_wait_cluster(&mbarrier, 0);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
store_async_before_the_other_starts(float* out, const __grid_constant__ ptx::TensorMap map) {
    __shared__ __align__(16) float theirs[4];
    __shared__ __align__(8) uint64_t mbarrier;
    expect_16_bytes(&mbarrier);
    __syncthreads();
    const float x[4] = {1, 2, 3, 4};
    if (threadIdx.x == 0) ptx::store_async(theirs, x, &mbarrier, ptx::cluster_rank() ^ 1);  // BUG race or missing fence or uninitialised read
    ptx::mbarrier_wait_cluster(&mbarrier, 0);
    if (threadIdx.x == 0 && ptx::cluster_rank() == 0) out[0] = theirs[1];
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
store_async_read(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    __shared__ __align__(16) float theirs[4];
    __shared__ __align__(8) uint64_t mbarrier;
    expect_16_bytes(&mbarrier);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const float x[4] = {1, 2, 3, 4};
    if (threadIdx.x == 0) ptx::store_async(theirs, x, &mbarrier, ptx::cluster_rank() ^ 1);
    ptx::mbarrier_wait_cluster(&mbarrier, 0);
    if (threadIdx.x == 0 && ptx::cluster_rank() == 0) out[0] = theirs[1];
}

extern "C" __global__ void registers_up_to_fewer(float* out, const __grid_constant__ ptx::TensorMap map) {
    if (threadIdx.x < 64) out[threadIdx.x] = 0;
    ptx::registers_down<40>();
    ptx::registers_up<24>();  // BUG bad instruction
}

extern "C" __global__ void registers_do_not_suffice(float* out, const __grid_constant__ ptx::TensorMap map) {
    if (threadIdx.x < 64) out[threadIdx.x] = 0;
    ptx::registers_up<240>();  // BUG deadlock
}

extern "C" __global__ void registers_suffice(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    if (threadIdx.x < 64) out[threadIdx.x] = 0;
    if (threadIdx.x < 128) ptx::registers_down<32>();
    else ptx::registers_up<240>();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
atomics_reach_the_other_block(float* out, const __grid_constant__ ptx::TensorMap map) {  // no bug
    __shared__ float mine;
    __shared__ unsigned n;
    if (threadIdx.x == 0) n = 0;
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (threadIdx.x == 0 && ptx::cluster_rank() == 1) {
        mine = 7;
        __threadfence();
        atomicAdd(ptx::remote(&n, 0), 1u);
    } else if (threadIdx.x == 0) {
        while (atomicAdd(&n, 0u) == 0) continue;
        __threadfence();
        out[0] = *ptx::remote(&mine, 1);
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

// What test_bugs.py says of the maps of these four: their extents are not the array's.
#define LOAD_TILE(row)                                  \
    SETUP;                                              \
    if (t == 0) {                                       \
        ptx::mbarrier_init(full, 1);                    \
        ptx::fence_mbarrier_init();                     \
        ptx::mbarrier_arrive_expect(full, TILE * 2);    \
        ptx::tma_load_2d(tile, &map, full, 0, row);     \
    }                                                   \
    __syncthreads();                                    \
    ptx::mbarrier_wait(full, 0);                        \
    if (t < 64) out[t] = tile[t]

extern "C" __global__ void tma_load_past_the_array(float* out, const __grid_constant__ ptx::TensorMap map) {
    LOAD_TILE(32);  // BUG out of bounds
}

extern "C" __global__ void tma_load_past_the_extents(float* out, const __grid_constant__ ptx::TensorMap map) {
    LOAD_TILE(16);  // no bug: zeros
}

extern "C" __global__ void tma_store_past_the_array(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t != 0) return;
    ptx::tma_store_2d(&map, tile, 0, 32);  // BUG out of bounds
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
}

extern "C" __global__ void tma_store_past_the_extents(float* out, const __grid_constant__ ptx::TensorMap map) {
    SETUP;
    for (int i = t; i < TILE; i += 128) tile[i] = 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t != 0) return;
    ptx::tma_store_2d(&map, tile, 0, 16);  // no bug: left out
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
}
