// Kernels with one mistake each. `BUG kind` in a comment says what must be reported at that line;
// test_bugs.py reads it. All take float* out [64] and run as one block of 64 threads with 48 KB of shared
// memory unless test_bugs.py says otherwise.
#include <cuda_fp16.h>
#include <mma.h>

#include "ptx.cuh"

#define SMEM                                                \
    extern __shared__ __align__(1024) unsigned char smem[]; \
    float* tile = reinterpret_cast<float*>(smem)
#define T const int t = threadIdx.x
using namespace nvcuda;

extern "C" __global__ void no_barrier(float* out) {
    SMEM; T;
    tile[t] = t;
    out[t] = tile[63 - t];  // BUG race
}

extern "C" __global__ void no_syncwarp(float* out) {
    SMEM; T;
    tile[t] = t;
    out[t] = tile[t ^ 1];  // BUG race
}

extern "C" __global__ void syncwarp_between_warps(float* out) {
    SMEM; T;
    tile[t] = t;
    __syncwarp();
    out[t] = tile[63 - t];  // BUG race
}

extern "C" __global__ void shuffle_orders_nothing(float* out) {
    SMEM; T;
    tile[t] = __shfl_xor_sync(0xffffffff, t, 1);
    const float other = __shfl_xor_sync(0xffffffff, t, 1);
    out[t] = tile[t ^ 1] + other;  // BUG race
}

extern "C" __global__ void no_trailing_barrier(float* out) {
    SMEM; T;
    for (int i = 0; i < 3; i++) {
        tile[t] = t + i;  // BUG race
        __syncthreads();
        out[t] = tile[63 - t];
    }
}

extern "C" __global__ void all_write_one(float* out) {
    T;
    if (t < 40) out[0] = t;  // BUG race
}

extern "C" __global__ void neighbouring_halves_are_apart(float* out) {  // no bug: two bytes each
    SMEM; T;
    reinterpret_cast<half*>(tile)[t] = t;
    __syncthreads();
    out[t] = reinterpret_cast<half*>(tile)[63 - t];
}

extern "C" __global__ void neighbouring_bytes_are_apart(float* out) {  // no bug
    SMEM; T;
    smem[t] = t;
    __syncthreads();
    out[t] = smem[63 - t] + 0 * tile[0];
}

extern "C" __global__ void divides_by_zero(float* out, const float* in) {
    T;
    out[t] = t / (int)in[t];  // BUG division by zero
}

extern "C" __global__ void shifts_all_bits(float* out, const float* in) {
    T;
    out[t] = 1u << (32 + (int)in[t]);  // BUG undefined value
}

extern "C" __global__ void a_float_beyond_the_integers(float* out, const float* in) {
    T;
    const float large = in[t] + 2147483648.0f;
    out[t] = (int)large;  // BUG undefined value
}

extern "C" __global__ void the_last_bit_and_the_last_integers(float* out, const float* in) {  // no bug
    T;
    const float large = in[t] + 2147483520.0f;
    out[t] = (int)large + (int)-large + (1 << (31 + (int)in[t])) + (unsigned)(2.0f * large) + (int)(in[t] - 0.5f);
}

extern "C" __global__ void blocks_write_one(float* out) {  // two blocks
    T;
    out[t] = blockIdx.x;  // BUG race between blocks
}

extern "C" __global__ void
last_block_without_fence(float* out, float* partial, unsigned* arrived) {  // two blocks
    __shared__ unsigned order;
    T;
    if (t == 0) partial[blockIdx.x] = blockIdx.x;
    if (t == 0) order = atomicAdd(arrived, 1u);
    __syncthreads();
    if (order == 1 && t == 0) out[0] = partial[0] + partial[1];  // BUG race between blocks
}

extern "C" __global__ void
last_block_with_a_fence_of_its_block(float* out, float* partial, unsigned* arrived) {  // two blocks
    __shared__ unsigned order;
    T;
    if (t == 0) {
        partial[blockIdx.x] = blockIdx.x;
        __threadfence_block();
        order = atomicAdd(arrived, 1u);
        __threadfence_block();
    }
    __syncthreads();
    if (order == 1 && t == 0) out[0] = partial[0] + partial[1];  // BUG race between blocks
}

extern "C" __global__ void
last_block_takes_with_a_fence_of_its_block(float* out, float* partial, unsigned* arrived) {  // two blocks
    T;
    if (t) return;
    partial[blockIdx.x] = blockIdx.x;
    __threadfence();
    const unsigned order = atomicAdd(arrived, 1u);
    __threadfence_block();
    if (order == 1) out[0] = partial[0] + partial[1];  // BUG race between blocks
}

// What came from another block by a fence of the GPU goes on to a thread of this one by a fence of the block.
extern "C" __global__ void
last_block_hands_on_within_itself(float* out, float* partial, unsigned* arrived) {  // no bug: two blocks
    __shared__ unsigned order;
    T;
    if (t == 0) order = 2;
    __syncthreads();
    if (t == 0) {
        partial[blockIdx.x] = blockIdx.x;
        __threadfence();
        const unsigned mine = atomicAdd(arrived, 1u);
        __threadfence_block();
        __threadfence();
        atomicExch(&order, mine);
    }
    if (t != 32) return;
    while (atomicAdd(&order, 0u) == 2) {}
    __threadfence_block();
    if (atomicAdd(&order, 0u) == 1) out[0] = partial[0] + partial[1];
}

extern "C" __global__ void
plain_read_of_a_counter(float* out, float* partial, unsigned* arrived) {  // two blocks
    T;
    if (t == 0) atomicAdd(arrived, 1u);
    if (t == 1) out[0] = *arrived;  // BUG race
}

extern "C" __global__ void blocks_add_to_one(float* out, float* sums) {  // no bug: two blocks, two warps each
    const float x[4] = {1, 2, 3, 4};
    ptx::add_quad(sums + 4 * (threadIdx.x % 32), x);
}

extern "C" __global__ void add_beside_a_store(float* out, float* sums) {  // two blocks
    T;
    const float x[4] = {1, 2, 3, 4};
    if (blockIdx.x == 0) ptx::add_quad(sums + 4 * t, x);
    else sums[t] = 0;  // BUG race between blocks
}

extern "C" __global__ void read_beside_an_add(float* out, float* sums) {
    T;
    const float x[4] = {1, 2, 3, 4};
    ptx::add_quad(sums + 4 * t, x);
    out[t] = sums[t];  // BUG race
}

extern "C" __global__ void add_to_what_was_never_written(float* out, float* sums) {
    const float x[4] = {1, 2, 3, 4};
    ptx::add_quad(sums + 4 * threadIdx.x, x);  // BUG uninitialised read
}

extern "C" __global__ void add_at_a_misaligned_place(float* out, float* sums) {
    const float x[4] = {1, 2, 3, 4};
    ptx::add_quad(sums + 2 * threadIdx.x, x);  // BUG misaligned
}

extern "C" __global__ void cp_async_no_wait(float* out, const float* in) {
    SMEM; T;
    ptx::cp_async_16(tile + 4 * t, in + 4 * t);
    ptx::cp_async_commit();
    __syncthreads();
    out[t] = tile[63 - t];  // BUG missing wait
    ptx::cp_async_wait<0>();
}

extern "C" __global__ void cp_async_one_group_short(float* out, const float* in) {
    SMEM; T;
    for (int i = 0; i < 3; i++) {
        ptx::cp_async<4>(tile + 64 * i + t, in + 64 * i + t);
        ptx::cp_async_commit();
    }
    for (int i = 0; i < 3; i++) {
        ptx::cp_async_wait<2>();
        __syncthreads();
        out[t] = tile[64 * i + 63 - t];  // BUG missing wait
    }
    ptx::cp_async_wait_all();
}

extern "C" __global__ void cp_async_no_barrier(float* out, const float* in) {
    SMEM; T;
    ptx::cp_async<4>(tile + t, in + t);
    ptx::cp_async_wait_all();
    out[t] = tile[63 - t];  // BUG race
}

extern "C" __global__ void cp_async_never_awaited(float* out, const float* in) {
    SMEM; T;
    ptx::cp_async<4>(tile + t, in + t);  // BUG missing wait
    ptx::cp_async_commit();
    out[t] = 0;
}

extern "C" __global__ void cp_async_overwrites_readers(float* out, const float* in) {
    SMEM; T;
    for (int i = 0; i < 3; i++) {
        ptx::cp_async<4>(tile + t, in + t);  // BUG race
        ptx::cp_async_wait_all();
        __syncthreads();
        out[t] = tile[63 - t];
    }
}

extern "C" __global__ void two_barriers_part(float* out) {
    T;
    if (t < 32) __syncthreads();
    else __syncthreads();  // BUG divergent barrier
    out[t] = 0;
}

extern "C" __global__ void some_return_early(float* out) {
    T;
    if (t >= 50) return;
    __syncthreads();  // BUG barrier after exit
    out[t] = 0;
}

extern "C" __global__ void barrier_too_few(float* out) {
    T;
    if (t < 32) ptx::bar_sync(1, 64);  // BUG deadlock
    out[t] = 0;
}

extern "C" __global__ void two_barriers_crossed(float* out) {
    T;
    if (t < 32) ptx::bar_sync(1, 64);  // BUG deadlock
    if (t >= 32) ptx::bar_sync(2, 64);
    out[t] = 0;
}

extern "C" __global__ void mbarrier_too_few(float* out) {
    SMEM; T;
    uint64_t* full = reinterpret_cast<uint64_t*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 65);
    __syncthreads();
    ptx::mbarrier_arrive(full);
    ptx::mbarrier_wait(full, 0);  // BUG deadlock
    out[t] = 0;
}

extern "C" __global__ void mbarrier_not_initialised(float* out) {
    SMEM; T;
    uint64_t* full = reinterpret_cast<uint64_t*>(smem);
    ptx::mbarrier_arrive(full);  // BUG uninitialised read
    out[t] = 0;
}

extern "C" __global__ void mbarrier_init_not_seen(float* out) {
    SMEM; T;
    uint64_t* full = reinterpret_cast<uint64_t*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 64);
    __syncwarp();
    ptx::mbarrier_arrive(full);  // BUG race or uninitialised read
    ptx::mbarrier_wait(full, 0);
    out[t] = 0;
}

extern "C" __global__ void mask_without_source(float* out) {
    T;
    if (t < 16) out[t] = __shfl_sync(0x0000ffff, t, 20);  // BUG warp mask
}

extern "C" __global__ void mask_without_self(float* out) {
    T;
    out[t] = __shfl_xor_sync(0x0000ffff, t, 1);  // BUG warp mask
}

extern "C" __global__ void lanes_part(float* out) {
    T;
    if (t % 32 < 16) out[t] = __shfl_xor_sync(0xffffffff, t, 1);
    else out[t] = __shfl_xor_sync(0xffffffff, t, 2);  // BUG warp mask
}

extern "C" __global__ void lane_has_returned(float* out) {
    T;
    if (t % 32 == 7) return;
    out[t] = __shfl_xor_sync(0xffffffff, t, 1);  // BUG warp mask
}

extern "C" __global__ void past_the_end(float* out) {
    T;
    out[t + 1] = t;  // BUG out of bounds
}

extern "C" __global__ void before_the_start(float* out, const float* in) {
    T;
    out[t] = in[t - 1];  // BUG out of bounds
}

extern "C" __global__ void cp_async_past_the_end(float* out, const float* in) {
    SMEM; T;
    ptx::cp_async_16(tile + 4 * t, in + 4 * t + 4);  // BUG out of bounds
    ptx::cp_async_wait_all();
    out[t] = 0;
}

extern "C" __global__ void past_shared_memory(float* out) {
    SMEM; T;
    tile[12 * 1024 - 63 + t] = t;  // BUG out of bounds
    out[t] = 0;
}

extern "C" __global__ void past_a_static_array(float* out) {
    __shared__ float few[64];
    T;
    few[t + 1] = t;  // BUG out of bounds
    out[t] = 0;
}

extern "C" __global__ void past_a_local_array(float* out) {
    float few[4] = {1, 2, 3, 4};
    T;
    out[t] = few[t % 5];  // BUG out of bounds
}

extern "C" __global__ void shared_never_written(float* out) {
    SMEM; T;
    tile[t] = t;
    __syncthreads();
    out[t] = tile[t + 1];  // BUG uninitialised read
}

extern "C" __global__ void scratch_never_written(float* out, float* scratch) {
    T;
    if (t < 60) scratch[t] = t;
    out[t] = scratch[t];  // BUG uninitialised read
}

extern "C" __global__ void misaligned_vector(float* out, const float* in) {
    T;
    out[t] = reinterpret_cast<const float4*>(in + t)->x;  // BUG misaligned
}

extern "C" __global__ void misaligned_wide_copy(float* out) {
    SMEM; T;
    for (int i = t; i < 4096; i += 64) tile[i] = 0;
    __syncthreads();
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + t);  // BUG misaligned
    out[t] = reinterpret_cast<const float*>(&bits)[t % 4];
}

extern "C" __global__ void misaligned_cp_async(float* out, const float* in) {
    SMEM; T;
    ptx::cp_async_16(tile + 4 * t, in + 2 * t);  // BUG misaligned
    ptx::cp_async_wait_all();
    out[t] = 0;
}

extern "C" __global__ void misaligned_ldmatrix(float* out) {
    SMEM; T;
    for (int i = t; i < 4096; i += 64) tile[i] = 0;
    __syncthreads();
    uint32_t r[4];
    ptx::ldmatrix_x4(r, tile + t % 32 * 4 + 1);  // BUG misaligned
    out[t] = r[0];
}

extern "C" __global__ void misaligned_wmma(float* out) {
    SMEM; T;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::store_matrix_sync(tile + 4, sum, 16, wmma::mem_row_major);  // BUG misaligned
    out[t] = 0;
}

extern "C" __global__ void wmma_warps_overlap(float* out) {
    SMEM; T;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::store_matrix_sync(tile, sum, 16, wmma::mem_row_major);  // BUG race
    out[t] = 0;
}

extern "C" __global__ void sixteen_barriers(float* out) {
    T;
    ptx::bar_sync(16, 64);  // BUG bad instruction
    out[t] = 0;
}

extern "C" __global__ void barrier_counts_differ(float* out) {
    T;
    ptx::bar_sync(1, t < 32 ? 64 : 32);  // BUG bad instruction or deadlock
    out[t] = 0;
}

extern "C" __global__ void ldmatrix_from_global(float* out, const float* in) {
    T;
    uint32_t r[4];
    ptx::ldmatrix_x4(r, in);  // BUG bad instruction
    out[t] = r[0];
}

extern "C" __global__ void flag_never_set(float* out) {
    volatile __shared__ int flag;
    T;
    if (t == 0) flag = 0;
    __syncthreads();
    while (flag == 0) {}  // BUG endless loop
    out[t] = 0;
}

extern "C" __global__ void wrong_in_one_schedule_only(float* out) {  // the value is right forwards
    SMEM; T;
    if (t == 0) tile[0] = 1;
    out[t] = t == 0 ? 0 : tile[0];  // BUG race
}

extern "C" __global__ void wmma_sum_never_filled(float* out) {
    SMEM; T;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(a, __float2half(1));
    wmma::fill_fragment(b, __float2half(1));
    wmma::mma_sync(sum, a, b, sum);  // BUG uninitialised read
    wmma::store_matrix_sync(tile + t / 32 * 256, sum, 16, wmma::mem_row_major);
    out[t] = tile[t];
}

extern "C" __global__ void unset_scalar(float* out, const float* in) {
    T;
    float acc;
    for (int i = 0; i < 4; i++) acc += in[i];  // BUG uninitialised read
    out[t] = acc;
}

extern "C" __global__ void unset_maximum(float* out, const float* in) {  // fmaxf hides the value
    T;
    float m[2];
    m[0] = -INFINITY;
    for (int i = 0; i < 4; i++) m[i % 2] = fmaxf(m[i % 2], in[i]);  // BUG uninitialised read
    out[t] = m[0] + m[1];
}

__device__ void add_to(float (&sum)[2], const float* in);

extern "C" __global__ void unset_in_a_function(float* out, const float* in) {
    T;
    float sum[2];
    sum[0] = 0;
    add_to(sum, in);
    out[t] = sum[0] + sum[1];
}

__device__ void add_to(float (&sum)[2], const float* in) {
    sum[0] += in[0];
    sum[1] += in[1];  // BUG uninitialised read
}

extern "C" __global__ void unset_in_one_thread(float* out, const float* in) {
    T;
    int index;
    if (t != 40) index = t;
    out[t] = index == t ? in[index] : 0;  // BUG uninitialised read
}

extern "C" __global__ void unset_operand(float* out, const float* in) {
    T;
    uint32_t a[4];
    float sum[4] = {};
    for (int i = 0; i < 3; i++) a[i] = in[i];
    ptx::mma_m16n8k16(sum, a, 0, 0);  // BUG uninitialised read
    out[t] = sum[0];
}

extern "C" __global__ void unset_until_the_same_condition(float* out, const float* in) {  // no bug
    T;
    float x, y;
    unsigned n;
    struct { float first, unused; } pair;
    if (t > 20) x = in[t], n = t;
    pair.first = t;
    auto copy = pair;
    for (int i = 0; i < 3; i++) {
        if (i == 0) y = copy.first;
        out[t] = y;
    }
    if (t > 20) out[t] += x + n;
}

extern "C" __global__ void volatile_store_races(float* out) {
    volatile __shared__ int flag;
    T;
    if (t == 0) flag = 1;
    __syncthreads();
    if (t == 33) flag = 2;
    out[t] = *(int*)&flag;  // BUG race
}

extern "C" __global__ void syncwarp_of_half_a_warp(float* out) {
    SMEM; T;
    tile[t] = t;
    if (t < 16) {
        __syncwarp(0x0000ffff);
        out[t] = tile[t + 16];  // BUG race
    }
}

extern "C" __global__ void shuffle_in_half_a_warp(float* out) {
    T;
    if (t % 32 < 16) out[t] = __shfl_down_sync(0xffffffff, t, 8);  // BUG warp mask
}

extern "C" __global__ void ldmatrix_of_nothing(float* out) {
    SMEM; T;
    if (t < 7) for (int i = 0; i < 4; i++) tile[4 * t + i] = 0;
    __syncthreads();
    uint32_t r[2];
    ptx::ldmatrix_x2(r, tile + t % 8 * 4);  // BUG uninitialised read
    out[t] = 0;
}

extern "C" __global__ void cp_async_source_is_overwritten(float* out, float* in) {
    SMEM; T;
    ptx::cp_async<4>(tile + t, in + t);  // BUG missing wait
    in[t] = 1;
    ptx::cp_async_wait_all();
    out[t] = tile[t];
}

extern "C" __global__ void mbarrier_overwritten(float* out) {
    SMEM; T;
    uint64_t* full = reinterpret_cast<uint64_t*>(smem);
    if (t == 0) {
        ptx::mbarrier_init(full, 64);
        tile[1] = 0;
    }
    __syncthreads();
    ptx::mbarrier_arrive(full);  // BUG bad instruction
    ptx::mbarrier_wait(full, 0);
    out[t] = 0;
}

extern "C" __global__ void mbarrier_wrong_parity(float* out) {
    SMEM; T;
    uint64_t* full = reinterpret_cast<uint64_t*>(smem);
    if (t == 0) ptx::mbarrier_init(full, 32);
    __syncthreads();
    if (t < 32) {
        tile[8 + t] = t;
        ptx::mbarrier_arrive(full);
    } else {
        ptx::mbarrier_wait(full, 1), out[t] = tile[8 + t - 32];  // BUG race or deadlock
    }
}

extern "C" __global__ void named_barrier_of_others(float* out) {  // warps 0 and 1 should meet at barrier 1
    SMEM; T;
    tile[t] = t;
    if (t < 32) ptx::bar_sync(1, 32);
    else ptx::bar_sync(2, 32);
    out[t] = tile[63 - t];  // BUG race
}

extern "C" __global__ void arrives_before_it_has_read(float* out) {
    SMEM; T;
    uint64_t *full = reinterpret_cast<uint64_t*>(smem), *empty = full + 1;
    float* slot = tile + 16;
    if (t == 0) ptx::mbarrier_init(full, 32), ptx::mbarrier_init(empty, 32);
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        if (t < 32) {
            ptx::mbarrier_wait(empty, i % 2 ^ 1);
            slot[t] = i;  // BUG race
            ptx::mbarrier_arrive(full);
        } else {
            ptx::mbarrier_wait(full, i % 2);
            ptx::mbarrier_arrive(empty);
            out[t] = slot[t - 32];
        }
    }
}

extern "C" __global__ void copies_a_row_at_once(float* out, const float* in) {
    SMEM; T;
    memset(tile + 16 * t, 0, 64);
    __syncthreads();
    memcpy(tile + 16 * t, in, 64);
    out[t] = tile[16 * (63 - t)];  // BUG race
}

extern "C" __global__ void unset_after_the_last_turn(float* out, const float* in) {  // no bug
    T;
    float x = in[t], next, both[2], pair[2];
    for (int i = 0; i < 3; i++) {
        if (i + 1 < 3) next = in[t + i], pair[0] = pair[1] = x;
        out[t] = x;
        x = next;
        for (int j = 0; j < 2; j++) both[j] = pair[j];
    }
}

extern "C" __global__ void unset_and_copied(float* out, const float* in) {
    T;
    float x = in[t], next;
    for (int i = 0; i < 3; i++) {
        out[t] = fmaxf(x, 0);  // BUG uninitialised read
        x = next;
    }
}

extern "C" __global__ void unset_and_stored(float* out) {
    T;
    float x;
    out[t] = x;  // BUG uninitialised read
}

__device__ float deeper(float* out, int depth);

extern "C" __global__ void recursion_without_end(float* out) {
    T;
    out[t] = deeper(out, t);
}

__device__ __noinline__ float deeper(float* out, int depth) {  // BUG stack overflow
    return deeper(out, depth + 1) + out[depth % 64];
}

extern "C" __global__ void counts_for_ever(float* out) {  // and changes memory: only its time tells
    T;
    while (out[t] >= 0) out[t] = out[t] < 1000 ? out[t] + 1 : 0;  // BUG time limit
}

// ---- what one block's shared memory carries, and flags that are only looked at
#define PUBLISH(address, value) (*(address) = (value), __threadfence())

extern "C" __global__ void shared_atomics_order_no_blocks(float* out, float* all) {  // two blocks
    __shared__ unsigned n;
    if (threadIdx.x) return;
    n = 0;
    if (blockIdx.x == 0) PUBLISH(all, 7);
    atomicAdd(&n, 1u);
    __threadfence();
    if (blockIdx.x == 1) out[0] = all[0];  // BUG race between blocks
}

extern "C" __global__ void global_atomics_order_blocks(float* out, float* all) {  // no bug: two blocks
    unsigned* n = reinterpret_cast<unsigned*>(all + 128);
    if (threadIdx.x) return;
    PUBLISH(all + blockIdx.x, 7);
    if (atomicAdd(n, 1u) == 0) return;
    __threadfence();
    out[0] = all[0] + all[1];
}

extern "C" __global__ void shared_atomics_order_warps(float* out) {  // no bug: two blocks of two warps
    SMEM; T;
    __shared__ unsigned n;
    if (t == 0) n = 0;
    __syncthreads();
    if (t == 0) {
        PUBLISH(tile, 7);
        atomicAdd(&n, 1u);
    } else if (t == 32) {
        while (atomicAdd(&n, 0u) == 0) continue;
        __threadfence();
        if (blockIdx.x == 0) out[0] = tile[0];
    }
}

extern "C" __global__ void volatile_reads_beside_reads(float* out, float* all) {  // no bug: two blocks
    T;
    if (t == 0 && *(volatile float*)all > 1) out[0] = 1;
    if (t == 32 && all[0] > 1) out[32] = 1;
}

extern "C" __global__ void volatile_reads_beside_a_flag(float* out, float* all) {  // no bug: two blocks
    T;
    if (t == 32 && blockIdx.x == 0) *(volatile float*)all = 1;
    const float x = *(volatile float*)all;
    if (blockIdx.x == 0) out[t] = x;
}

extern "C" __global__ void volatile_read_beside_a_write(float* out, float* all) {
    T;
    if (t == 0) out[t] = *(volatile float*)all;
    if (t == 32) all[0] = 1;  // BUG race
}

extern "C" __global__ void volatile_read_of_another_block(float* out, float* all) {  // two blocks
    T;
    if (t == 0 && blockIdx.x == 0) out[t] = *(volatile float*)all;
    if (t == 32 && blockIdx.x == 1) all[0] = 1;  // BUG race between blocks
}
