// One block brings keys and says so, the other waits for them and loads them, as the loading thread of a
// stage does. Keys come as 64 rows at a time, the last ones first.
#include "warpgroup_rows.cuh"

extern "C" __global__ void __cluster_dims__(2, 1, 1)  // which the executor runs at one time
arrivals(const __grid_constant__ ptx::TensorMap map,           // of keys, boxes of [64, 64]
         element* keys, const element* source, element* seen,  // [128, 64]
         int* keys_from) {
    extern __shared__ __align__(1024) unsigned char smem[];
    element* tile = (element*)smem;  // [64, 64]
    uint64_t* full = (uint64_t*)(smem + 64 * 64 * 2);
    if (blockIdx.x == 1) {
        for (int first = 64; first >= 0; first -= 64) {
            for (int i = threadIdx.x; i < 64 * 64; i += 32) keys[first * 64 + i] = source[first * 64 + i];
            __syncwarp();  // all lanes have written
            if (threadIdx.x == 0) {
                __threadfence();  // whoever sees the number sees the keys
                *(volatile int*)keys_from = first;
            }
        }
        return;
    }
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();  // the mbarrier is initialised
    Sizes sizes{};
    sizes.group = 1;
    sizes.features.keys_from = keys_from;
    Arrivals arrivals;
    for (int first = 64, n = 0; first >= 0; first -= 64, n++) {
        if (threadIdx.x == 0) {
            arrivals.wait(sizes, 0, first);
            ptx::mbarrier_arrive_expect(full, 64 * 64 * 2);
            load_tile<64>(tile, &map, full, first, 0, 0);
        }
        ptx::mbarrier_wait(full, n);
        for (int i = threadIdx.x; i < 64 * 64; i += 32) {
            const int row = i / 64, chunk = i % 64 / 8 ^ row % 8;  // the swizzle
            seen[(first + row) * 64 + i % 64] = tile[row * 64 + chunk * 8 + i % 8];
        }
        __syncthreads();  // the tile has been read
    }
}
