// One small kernel for each wrapper of ptx.cuh and each part of the CUDA dialect that the CPU executor stands
// in for. test_wrappers.py says what each must compute, on the CPU and on a GPU.
#include <cuda_fp16.h>
#include <mma.h>

#include "ptx.cuh"

using namespace nvcuda;

// ---- sm_80

extern "C" __global__ void store_16(const uint32_t* in, uint32_t* out) {  // [128]: a thread's words reversed
    const uint32_t* mine = in + 4 * threadIdx.x;
    ptx::store_16(out + 4 * threadIdx.x, mine[3], mine[2], mine[1], mine[0]);
}

extern "C" __global__ void load_acquire(uint32_t* words) {  // [33]: a block hands them to the next one, reversed
    const int lane = threadIdx.x;
    if (blockIdx.x == 0) {
        words[31 - lane] = 100 + lane;
        __syncwarp();  // all lanes have written theirs
        if (lane == 0) __threadfence(), atomicExch(words + 32, 1u);
        return;
    }
    while (ptx::load_acquire(words + 32) == 0) {}
    words[lane] += 1;
}

extern "C" __global__ void add_quad(const float* in, float* sums) {  // [128]: each warp adds all of it
    const int first = ptx::LANE_STRIDE * (threadIdx.x % 32);
    float x[4];
    for (int i = 0; i < 4; i++) x[i] = in[first + ptx::FLOAT_STRIDE * i];
    ptx::add_quad(sums + first, x);
}

extern "C" __global__ void cp_async_16(const half* in, half* out, int valid) {  // [256]; valid threads of 32
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    const int t = threadIdx.x;
    ptx::cp_async_16(tile + 8 * t, in + 8 * t, t < valid);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < 8; i++) out[8 * t + i] = tile[255 - (8 * t + i)];
}

extern "C" __global__ void cp_async_small(const float* in, float* out) {  // [96]: 4, then 8 bytes a thread
    extern __shared__ __align__(1024) unsigned char smem[];
    float* tile = reinterpret_cast<float*>(smem);
    const int t = threadIdx.x;
    ptx::cp_async<4>(tile + t, in + t);
    ptx::cp_async<8>(tile + 32 + 2 * t, in + 32 + 2 * t, t % 2 == 0);
    ptx::cp_async_wait_all();
    __syncthreads();
    for (int i = t; i < 96; i += 32) out[i] = tile[95 - i];
}

extern "C" __global__ void cp_async_groups(const float* in, float* out) {  // [4, 128]: one group a row
    extern __shared__ __align__(1024) unsigned char smem[];
    float* tile = reinterpret_cast<float*>(smem);
    const int t = threadIdx.x;
    for (int row = 0; row < 4; row++) {
        ptx::cp_async_16(tile + row * 128 + 4 * t, in + row * 128 + 4 * t);
        ptx::cp_async_commit();
    }
    ptx::cp_async_wait<2>();
    __syncwarp();  // rows 0 and 1 are there for every lane
    for (int i = 0; i < 8; i++) out[i * 32 + t] = tile[255 - (i * 32 + t)];
    ptx::cp_async_wait<0>();
    __syncwarp();  // and so are rows 2 and 3
    for (int i = 8; i < 16; i++) out[i * 32 + t] = tile[511 - (i * 32 + t) + 256];
}

extern "C" __global__ void cp_async_mbarrier(const half* in, half* out) {  // [512]; 32 threads load, 32 use
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + 1024);
    const int t = threadIdx.x % 32;
    if (threadIdx.x == 0) ptx::mbarrier_init(full, 32);
    __syncthreads();  // the mbarrier is initialised
    if (threadIdx.x < 32) {
        for (int i = 0; i < 2; i++) ptx::cp_async_16(tile + 16 * t + 8 * i, in + 16 * t + 8 * i);
        ptx::cp_async_mbarrier_arrive(full);
        ptx::cp_async_wait_all();  // a thread may not return with copies under way
    } else {
        ptx::mbarrier_wait(full, 0);
        for (int i = 0; i < 16; i++) out[i * 32 + t] = tile[511 - (i * 32 + t)];
    }
}

extern "C" __global__ void named_barriers(float* out, int rounds) {  // [rounds, 64]: 64 threads make, 64 take
    extern __shared__ __align__(1024) unsigned char smem[];
    float* ring = reinterpret_cast<float*>(smem);  // [2, 64]
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64)
        for (int i = 0; i < rounds; i++) {
            if (i >= 2) ptx::bar_sync(3 + i % 2, 128);
            ring[i % 2 * 64 + t] = i * 100 + t;
            ptx::bar_arrive(1 + i % 2, 128);
        }
    else
        for (int i = 0; i < rounds; i++) {
            ptx::bar_sync(1 + i % 2, 128);
            out[i * 64 + t] = ring[i % 2 * 64 + 63 - t];
            if (i + 2 < rounds) ptx::bar_arrive(3 + i % 2, 128);
        }
}

// in: [32, 8] rows of four 8x8 matrices; out: [4 registers, 32 lanes] as pairs of halves
extern "C" __global__ void ldmatrix(const half* in, uint32_t* out, int form) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half* tile = reinterpret_cast<half*>(smem);
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; i++) tile[lane * 8 + i] = in[lane * 8 + i];
    __syncwarp();
    uint32_t r[4] = {0, 0, 0, 0}, two[2];
    if (form == 0) ptx::ldmatrix_x4(r, tile + lane * 8);
    if (form == 1) ptx::ldmatrix_x4_trans(r, tile + lane * 8);
    if (form == 2) ptx::ldmatrix_x2(two, tile + lane % 16 * 8);
    if (form == 3) ptx::ldmatrix_x2_trans(two, tile + lane % 16 * 8);
    if (form >= 2) r[0] = two[0], r[1] = two[1];
    for (int i = 0; i < 4; i++) out[i * 32 + lane] = r[i];
}

// d[16, 8] = c + a[16, 16] b[16, 8]; b is given as [8, 16]
extern "C" __global__ void mma_m16n8k16(const half* a, const half* b, const float* c, float* d) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    uint32_t ra[4], rb[2];
    for (int i = 0; i < 4; i++)
        ra[i] = *reinterpret_cast<const uint32_t*>(a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8);
    for (int i = 0; i < 2; i++) rb[i] = *reinterpret_cast<const uint32_t*>(b + g * 16 + 2 * t + i * 8);
    float sum[4];
    for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    ptx::mma_m16n8k16(sum, ra, rb[0], rb[1]);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

extern "C" __global__ void arithmetic(const float* x, float* power, uint32_t* pairs, uint32_t* sums) {
    int t = threadIdx.x;
    ptx::pin(t);
    power[t] = ptx::ex2(x[t]);
    pairs[t] = ptx::pack_pair(x[t], -x[t]);
    sums[t] = ptx::fma_pairs(pairs[t], ptx::pack_pair(3.0f, x[t]), ptx::pack_pair(x[t], 2.0f));
}

// Every byte beside another one, and floats as bytes.
extern "C" __global__ void e4m3(const float* x, uint32_t* widened, uint16_t* packed) {
    const int t = threadIdx.x;
    widened[t] = ptx::widen_e4m3((uint16_t)(t | (255 - t) << 8));
    packed[t] = ptx::pack_e4m3(x[2 * t], x[2 * t + 1]);
}

extern "C" __global__ void capped(const float* x, float* y) { y[threadIdx.x] = ptx::tanh(x[threadIdx.x]); }

extern "C" __global__ void mbarrier_ring(float* out, int rounds) {  // [rounds, 32]: 32 threads make, 32 take
    extern __shared__ __align__(1024) unsigned char smem[];
    float* ring = reinterpret_cast<float*>(smem);  // [2, 32]
    uint64_t *full = reinterpret_cast<uint64_t*>(smem + 256), *empty = full + 2;
    const int t = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; i++) ptx::mbarrier_init(full + i, 32);
    __syncthreads();  // the mbarriers are initialised
    for (int i = 0; i < rounds; i++) {
        const int stage = i % 2, phase = i / 2 % 2;
        if (threadIdx.x < 32) {
            ptx::mbarrier_wait(empty + stage, phase ^ 1);
            ring[stage * 32 + t] = i * 100 + t;
            ptx::mbarrier_arrive(full + stage);
        } else {
            ptx::mbarrier_wait(full + stage, phase);
            out[i * 32 + t] = ring[stage * 32 + 31 - t];
            ptx::mbarrier_arrive(empty + stage);
        }
    }
}

// ---- the dialect

extern "C" __global__ void shuffles(const int* in, int* out) {  // [32] -> [8, 32]
    const int lane = threadIdx.x, x = in[lane];
    out[0 * 32 + lane] = __shfl_sync(0xffffffff, x, 5);
    out[1 * 32 + lane] = __shfl_sync(0xffffffff, x, lane + 3, 8);
    out[2 * 32 + lane] = __shfl_xor_sync(0xffffffff, x, 9);
    out[3 * 32 + lane] = __shfl_xor_sync(0xffffffff, x, 12, 8);
    out[4 * 32 + lane] = __shfl_down_sync(0xffffffff, x, 7);
    out[5 * 32 + lane] = __shfl_up_sync(0xffffffff, x, 3, 16);
    out[6 * 32 + lane] = __ballot_sync(0xffffffff, x > 0);
    int half_warp = 0;
    if (lane < 16) half_warp = __any_sync(0x0000ffff, x == in[3]);
    else half_warp = __all_sync(0xffff0000, x != in[3]);
    out[7 * 32 + lane] = half_warp;
}

extern "C" __global__ void atomics(
    const int* in, int* out, float* sum) {  // one block of 64, out [8] and sum [1]
    __shared__ int total;
    const int t = threadIdx.x;
    if (t == 0) total = 0;
    __syncthreads();  // total is zero
    atomicAdd(&total, in[t]);
    atomicMax(out + 1, in[t]);
    atomicMin(out + 2, in[t]);
    atomicOr(out + 3, 1 << t % 31);
    atomicAdd(sum, 1.0f);
    if (atomicCAS(out + 4, -1, t) == -1) out[5] = 1;
    atomicInc((unsigned*)out + 6, 9u);
    __syncthreads();  // everyone has added
    if (t == 0) out[0] = total;
}

// out[16, 16] = a[16, 16] b[16, 16] through shared memory; `form` bit 0: b by columns, bit 1: out by columns
extern "C" __global__ void wmma_16x16x16(const half* a, const half* b, float* out, int form) {
    __shared__ __align__(32) half a_smem[16 * 24], b_smem[16 * 24];
    __shared__ __align__(32) float out_smem[16 * 20];
    for (int i = threadIdx.x; i < 256; i += 32) {
        a_smem[i / 16 * 24 + i % 16] = a[i];
        b_smem[i / 16 * 24 + i % 16] = b[i];
    }
    __syncwarp();
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(left, a_smem, 24);
    if (form & 1) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
        wmma::load_matrix_sync(right, b_smem, 24);
        wmma::mma_sync(sum, left, right, sum);
    } else {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
        wmma::load_matrix_sync(right, b_smem, 24);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2.0f;
    wmma::store_matrix_sync(out_smem, sum, 20, form & 2 ? wmma::mem_col_major : wmma::mem_row_major);
    __syncwarp();
    wmma::load_matrix_sync(sum, out_smem, 20, wmma::mem_row_major);
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}

// The last of the grid's blocks adds up what each block left behind.
extern "C" __global__ void last_block_sums(const float* in, float* partial, unsigned* arrived, float* out) {
    __shared__ bool last;
    float x = in[blockIdx.x * 32 + threadIdx.x];
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(0xffffffff, x, d);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = x;
        __threadfence();  // the partial sum before the count
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
        __threadfence();  // the count before others' partial sums
    }
    __syncthreads();  // everyone knows whether this is the last block
    if (!last) return;
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += partial[i];
        *out = sum;
    }
}

// The same by a counter that orders memory itself and is 0 again at the end.
extern "C" __global__ void wrapping_counter(const float* in, float* partial, unsigned* arrived, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 32; i++) sum += in[blockIdx.x * 32 + i];
        partial[blockIdx.x] = sum;
        last = ptx::arrive_wrapping(arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();  // everyone knows whether this is the last block
    if (last && threadIdx.x < gridDim.x) out[threadIdx.x] = partial[threadIdx.x];
}

extern "C" __global__ void far_shuffles(const int* x, const int* far, int* out) {
    const int lane = threadIdx.x, mine = x[lane];
    out[lane] = __shfl_xor_sync(0xffffffff, mine, far[0]);
    out[32 + lane] = __shfl_down_sync(0xffffffff, mine, far[1]);
    out[64 + lane] = __shfl_up_sync(0xffffffff, mine, far[2]);
    out[96 + lane] = __shfl_sync(0xffffffff, mine, far[3]);
    out[128 + lane] = __shfl_sync(0xffffffff, mine, far[4]);
}
