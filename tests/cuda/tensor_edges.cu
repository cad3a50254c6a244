// A box of floats that begins anywhere, left of the tensor too; test_tensor_edges.py launches it.
#include "ptx.cuh"

extern "C" __global__ void move_box(const __grid_constant__ ptx::TensorMap from,
                                    const __grid_constant__ ptx::TensorMap to, float* seen, int load_column,
                                    int store_column) {
    __shared__ __align__(128) float tile[4 * 16];
    __shared__ __align__(8) uint64_t full;
    const int t = threadIdx.x;
    if (t == 0) {
        ptx::mbarrier_init(&full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(&full, sizeof tile);
        ptx::tma_load_2d(tile, &from, &full, load_column, 1);
    }
    __syncthreads();
    ptx::mbarrier_wait(&full, 0);
    for (int i = t; i < 64; i += 32) seen[i] = tile[i], tile[i] = i + 1;
    ptx::fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        ptx::tma_store_2d(&to, tile, store_column, 2);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
}
