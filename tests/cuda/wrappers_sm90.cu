// As wrappers.cu, for what needs sm_90 or sm_90a.
#include <cuda_fp16.h>

#include "ptx.cuh"

constexpr int TILE = 64 * 64;  // halves, [64, 64], 128 bytes a row, swizzled

// A 64x64 box of a [128, 128] matrix into shared memory, and from there to another place of `to`.
extern "C" __global__ void
tma_2d(const __grid_constant__ ptx::TensorMap from, const __grid_constant__ ptx::TensorMap to, half* seen,
       int row, int column) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(tile + TILE);
    if (threadIdx.x == 0) {
        ptx::prefetch_map(&from);
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2);
        ptx::tma_load_2d(tile, &from, full, column, row);
    }
    __syncthreads();  // the mbarrier is initialised
    ptx::mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < TILE; i += blockDim.x) seen[i] = tile[i];  // as it lies in shared memory
    __syncthreads();  // nobody reads any more
    if (threadIdx.x == 0) {
        ptx::tma_store_2d(&to, tile, 0, 64);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
}

extern "C" __global__ void tma_3d_4d(const __grid_constant__ ptx::TensorMap three,
                                     const __grid_constant__ ptx::TensorMap four,
                                     const __grid_constant__ ptx::TensorMap back, half* out) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);  // [16, 64] twice, then once more
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + 6144);
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive_expect(full, 2 * 16 * 64 * 2);
        ptx::tma_load_3d(tile, &three, full, 0, 5, 1);
        ptx::tma_load_4d(tile + 1024, &four, full, 0, 3, 1, 1);
    }
    __syncthreads();  // the mbarrier is initialised
    ptx::mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) out[i] = tile[i];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[2048 + i] = tile[i];
    ptx::fence_proxy_async();  // the tile's ordinary stores before TMA reads them
    __syncthreads();           // everyone has stored
    if (threadIdx.x == 0) {
        ptx::tma_store_4d(&back, tile + 2048, 0, 8, 0, 1);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        ptx::bulk_wait<0>();
    }
}

extern "C" __global__ void tma_5d(const __grid_constant__ ptx::TensorMap map,
                                  const __grid_constant__ ptx::TensorMap back, half* out, int row, int begin,
                                  int size) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);  // [16, 64]
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + 2048);
    const int bound = 1 << 30;  // as in warpgroup_rows.cuh
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive_expect(full, 16 * 64 * 2);
        ptx::tma_load_5d(tile, &map, full, 0, 1, bound - size + row, begin + size, bound);
    }
    __syncthreads();  // the mbarrier is initialised
    ptx::mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[i] = tile[i];
    if (threadIdx.x == 0) {
        ptx::tma_store_5d(&back, tile, 0, 1, bound - size + row, begin + size, bound);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
}

extern "C" __global__ void bulk_copies(const float* in, float* out, float* sum) {  // [256]
    extern __shared__ __align__(1024) unsigned char smem[];
    float* tile = reinterpret_cast<float*>(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + 2048);
    const int t = threadIdx.x;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, 1024);
        ptx::bulk_load(tile, in, 1024, full);
    }
    __syncthreads();  // the mbarrier is initialised
    ptx::mbarrier_wait(full, 0);
    for (int i = t; i < 256; i += 32) tile[256 + i] = 2 * tile[255 - i];
    ptx::fence_proxy_async();  // the doubled values before the copies read them
    __syncwarp();              // everyone has stored
    if (ptx::elect_one()) {
        ptx::bulk_store(out, tile + 256, 1024);
        ptx::bulk_add_f32(sum, tile + 256, 1024);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
    }
}

extern "C" __global__ void arrivals(uint32_t* words, uint32_t* out) {  // [33], [32]: fetched when they have come
    extern __shared__ __align__(1024) unsigned char smem[];
    uint32_t* tile = reinterpret_cast<uint32_t*>(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(tile + 32);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        words[31 - lane] = 100 + lane;
        __syncwarp();  // all lanes have written theirs
        if (lane == 0) __threadfence(), atomicExch(words + 32, 1u);
        return;
    }
    if (lane == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        while (ptx::load_acquire_system(words + 32) == 0) {}
        ptx::fence_proxy_async_global();  // the words before the copy reads them
        ptx::mbarrier_arrive_expect(full, 128);
        ptx::bulk_load(tile, words, 128, full);
    }
    __syncwarp();  // the mbarrier is initialised
    ptx::mbarrier_wait(full, 0);
    out[lane] = tile[lane] + 1;
}

extern "C" __global__ void stmatrix(const uint32_t* in, half* out, int transposed) {  // inverse of ldmatrix
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    const int lane = threadIdx.x;
    uint32_t r[4];
    for (int i = 0; i < 4; i++) r[i] = in[i * 32 + lane];
    if (transposed) ptx::stmatrix_x4_trans(tile + lane * 8, r);
    else ptx::stmatrix_x4(tile + lane * 8, r);
    __syncwarp();
    for (int i = 0; i < 8; i++) out[lane * 8 + i] = tile[lane * 8 + i];
}

// Each of four blocks adds up the others' shared memory, and is told by an mbarrier when they are done with
// its own.
extern "C" __global__ void __cluster_dims__(
    4, 1, 1) cluster_sums(const float* in, float* out) {  // [blocks, 32]
    __shared__ float mine[32];
    __shared__ __align__(8) uint64_t left;
    const int t = threadIdx.x, rank = ptx::cluster_rank(), blocks = ptx::cluster_blocks();
    mine[t] = in[blockIdx.x * 32 + t];
    if (t == 0) {
        ptx::mbarrier_init(&left, blocks);
        ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();  // everyone's values and mbarriers are there
    float sum = 0;
    for (int i = 0; i < blocks; i++) sum += *ptx::remote(mine + t, (rank + i) % blocks);
    out[blockIdx.x * 32 + t] = sum;
    __syncwarp();  // the whole warp has read
    if (t < blocks) ptx::mbarrier_arrive_remote(&left, t);
    ptx::mbarrier_wait_cluster(&left, 0);
    mine[t] = 0;  // nobody reads it any more
    ptx::cluster_arrive();
    ptx::cluster_wait();  // no block returns while another may still arrive on its mbarrier
}

// The two blocks of a pair send each other their values, four a thread.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_stores(const float* in, float* out) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* values = reinterpret_cast<float*>(smem);  // [32, 4]
    uint64_t* full = reinterpret_cast<uint64_t*>(values + 128);
    const int t = threadIdx.x;
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, 512);
    }
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();  // both mbarriers are initialised
    const float* mine = in + (blockIdx.x * 32 + t) * 4;
    const float x[4] = {mine[0], mine[1], mine[2], mine[3]};
    ptx::store_async(values + 4 * t, x, full, ptx::cluster_rank() ^ 1);
    ptx::mbarrier_wait_cluster(full, 0);
    for (int i = 0; i < 4; i++) out[(blockIdx.x * 32 + t) * 4 + i] = values[127 - 4 * t - i];
}

// Block 0 of each pair sends its values to block 1; a tile goes to both by multicast.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_copies(const float* in, const __grid_constant__ ptx::TensorMap map, float* out, half* tiles) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);  // [64, 64]
    float* values = reinterpret_cast<float*>(tile + TILE);
    uint64_t* full = reinterpret_cast<uint64_t*>(values + 64);
    const int t = threadIdx.x, rank = ptx::cluster_rank();
    values[t] = in[blockIdx.x * 32 + t];
    if (t == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect(full, TILE * 2 + (rank == 1 ? 128 : 0));
    }
    ptx::fence_proxy_async();  // the values before the copy reads them
    ptx::cluster_arrive();
    ptx::cluster_wait();  // both mbarriers are initialised, all values stored
    if (rank == 0 && t == 0) {
        ptx::tma_load_multicast_4d(tile, &map, full, 0, 0, 0, 0, 3);
        ptx::bulk_copy_to_rank(values + 32, values, 128, full, 1);
    }
    ptx::mbarrier_wait_cluster(full, 0);
    out[blockIdx.x * 32 + t] = values[rank * 32 + t];
    for (int i = t; i < TILE; i += 32) tiles[blockIdx.x * TILE + i] = tile[i];
    ptx::cluster_arrive();
    ptx::cluster_wait();  // block 0 stays while its values are read
}

// d[64, N] = a[64, 64] b, b as [N, 64], or with `transposed` as [64, N]. One warpgroup; the tiles are written
// by ordinary stores, swizzled as TMA would.
template <int N, int TRANSPOSED>
__device__ __forceinline__ void multiply(unsigned char* smem, const half* a, const half* b, float* d,
                                         int a_in_registers) {
    half *a_smem = reinterpret_cast<half*>(smem), *b_smem = a_smem + TILE;
    const int t = threadIdx.x, warp = t / 32, g = t % 32 / 4, pair = t % 4 * 2;
    for (int i = t; i < TILE; i += 128) a_smem[(i ^ (i / 64 % 8 * 8))] = a[i];
    for (int i = t; i < N * 64; i += 128) {
        const int row = TRANSPOSED ? i / N : i / 64, column = TRANSPOSED ? i % N : i % 64;
        const int in_panel = row * 64 + column % 64;  // N columns are panels of 64
        b_smem[column / 64 * TILE + (in_panel ^ (row % 8 * 8))] = b[i];
    }
    ptx::fence_proxy_async();  // the tiles before wgmma reads them
    __syncthreads();           // everyone has stored
    float sum[N / 2] = {};
    uint32_t a_rmem[4][4];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++)
            a_rmem[k][i] = *reinterpret_cast<const uint32_t*>(
                a + (warp * 16 + g + i % 2 * 8) * 64 + k * 16 + pair + i / 2 * 8);
    ptx::wgmma_pin(sum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint64_t b_tile = ptx::wgmma_tile(b_smem, TILE * 2) + k * (TRANSPOSED ? 128 : 2);
        if (a_in_registers) ptx::wgmma_rs<N, TRANSPOSED>(sum, a_rmem[k], b_tile, k > 0);
        else ptx::wgmma_ss<N, TRANSPOSED>(sum, ptx::wgmma_tile(a_smem) + k * 2, b_tile, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sum);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[(warp * 16 + g + i / 2 % 2 * 8) * N + i / 4 * 8 + pair + i % 2] = sum[i];
}

extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_64(const half* a, const half* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply<64, 0>(smem, a, b, d, a_in_registers);
}
extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_64_transposed(const half* a, const half* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply<64, 1>(smem, a, b, d, a_in_registers);
}
extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_176(const half* a, const half* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply<176, 0>(smem, a, b, d, a_in_registers);
}
extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_256_transposed(const half* a, const half* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply<256, 1>(smem, a, b, d, a_in_registers);
}

// The same in e4m3: d[64, 64 or 128] = a[64, ROW_BYTES] b[.., ROW_BYTES]^T, 16-byte chunks of a row swizzled.
template <int N, int ROW_BYTES>
__device__ __forceinline__ void multiply_e4m3(unsigned char* smem, const unsigned char* a,
                                              const unsigned char* b, float* d, int a_in_registers) {
    unsigned char *a_smem = smem, *b_smem = smem + 64 * ROW_BYTES;
    const int t = threadIdx.x, warp = t / 32, g = t % 32 / 4, four = t % 4 * 4;
    for (int i = t; i < 64 * ROW_BYTES; i += 128) a_smem[i ^ (i >> 7 & (ROW_BYTES / 16 - 1)) << 4] = a[i];
    for (int i = t; i < N * ROW_BYTES; i += 128) b_smem[i ^ (i >> 7 & (ROW_BYTES / 16 - 1)) << 4] = b[i];
    ptx::fence_proxy_async();  // the tiles before wgmma reads them
    __syncthreads();           // everyone has stored
    float sum[N / 2] = {};
    uint32_t a_rmem[ROW_BYTES / 32][4];
    for (int k = 0; k < ROW_BYTES / 32; k++)
        for (int i = 0; i < 4; i++)
            a_rmem[k][i] = *reinterpret_cast<const uint32_t*>(
                a + (warp * 16 + g + i % 2 * 8) * ROW_BYTES + k * 32 + four + i / 2 * 16);
    ptx::wgmma_pin(sum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROW_BYTES / 32; k++) {
        const uint64_t b_tile = ptx::wgmma_rows<ROW_BYTES>(b_smem) + 2 * k;
        if (a_in_registers) ptx::wgmma_e4m3_rs<N>(sum, a_rmem[k], b_tile, k > 0);
        else ptx::wgmma_e4m3_ss<N>(sum, ptx::wgmma_rows<ROW_BYTES>(a_smem) + 2 * k, b_tile, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sum);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[(warp * 16 + g + i / 2 % 2 * 8) * N + i / 4 * 8 + t % 4 * 2 + i % 2] = sum[i];
}

extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_e4m3_128(const unsigned char* a, const unsigned char* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply_e4m3<128, 128>(smem, a, b, d, a_in_registers);
}
extern "C" __global__ void __launch_bounds__(128, 1)
wgmma_e4m3_64(const unsigned char* a, const unsigned char* b, float* d, int a_in_registers) {
    extern __shared__ __align__(1024) unsigned char smem[];
    multiply_e4m3<64, 64>(smem, a, b, d, a_in_registers);
}

extern "C" __global__ void __launch_bounds__(256, 1) registers(float* out) {  // two warpgroups
    if (threadIdx.x < 128) ptx::registers_down<40>();
    else ptx::registers_up<232>();
    ptx::grid_dependency_wait();
    out[threadIdx.x] = threadIdx.x;
    ptx::grid_dependency_launch();
}
