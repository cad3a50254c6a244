// Threads that wait for each other through memory. The first half is right in any order of threads and blocks;
// of the second half none ends: `ENDLESS` in a comment is a line that must be named. test_progress.py launches
// them, most with 2 blocks of 64 threads; out is float [4096], flags unsigned [64], both zero.
#include "ptx.cuh"

#define T const int t = threadIdx.x

extern "C" __global__ void flag_in_shared(float* out, unsigned* flags) {
    __shared__ unsigned flag;
    __shared__ float value;
    T;
    if (t == 0) flag = 0;
    __syncthreads();
    if (t == 32) {
        value = 3;
        __threadfence_block();
        atomicExch(&flag, 1u);
    }
    if (t == 0) {
        while (atomicAdd(&flag, 0u) == 0) {}
        __threadfence_block();
        out[blockIdx.x] = value;
    }
}

extern "C" __global__ void flag_to_a_later_warp(float* out, unsigned* flags) {
    __shared__ unsigned flag;
    __shared__ float value;
    T;
    if (t == 0) flag = 0;
    __syncthreads();
    if (t == 0) {
        value = 3;
        __threadfence_block();
        atomicMax(&flag, 1u);
    }
    if (t == 63) {
        while (atomicOr(&flag, 0u) == 0) {}
        __threadfence_block();
        out[blockIdx.x] = value;
    }
}

extern "C" __global__ void volatile_flag(float* out, volatile unsigned* flags) {
    T;
    if (t == 0) {
        out[blockIdx.x + 8] = 3;
        __threadfence();
        flags[blockIdx.x] = 1;
    }
    if (t == 63) {
        while (flags[blockIdx.x] == 0) __nanosleep(20);
        __threadfence();
        out[blockIdx.x] = out[blockIdx.x + 8];
    }
}

extern "C" __global__ void lock_of_each_thread(float* out, unsigned* flags) {
    bool done = false;
    while (!done) {
        if (atomicCAS(flags, 0u, 1u) == 0) {
            __threadfence();
            out[0] += 1;
            __threadfence();
            atomicExch(flags, 0u);
            done = true;
        }
    }
}

extern "C" __global__ void lock_with_backoff(float* out, unsigned* flags) {
    unsigned wait = 8;
    while (atomicExch(flags, 1u)) {
        __nanosleep(wait);
        wait *= 2;
    }
    __threadfence();
    out[0] += 1;
    __threadfence();
    atomicExch(flags, 0u);
}

extern "C" __global__ void tickets(float* out, unsigned* flags) {
    const unsigned mine = atomicAdd(flags, 1u);
    while (atomicAdd(flags + 1, 0u) != mine) {}
    __threadfence();
    out[0] += 1;
    __threadfence();
    atomicAdd(flags + 1, 1u);
}

extern "C" __global__ void ring_between_blocks(float* out, unsigned* flags) {  // block 0 sends, block 1 takes
    T;
    for (unsigned i = 0; i < 40; i++) {
        if (blockIdx.x == 0 && t == 0) {
            while (i - atomicAdd(flags + 1, 0u) >= 4) {}
            __threadfence();
            out[16 + i % 4] = i;
            __threadfence();
            atomicAdd(flags, 1u);
        }
        if (blockIdx.x == 1 && t == 0) {
            while (atomicAdd(flags, 0u) <= i) {}
            __threadfence();
            out[0] += out[16 + i % 4];
            __threadfence();
            atomicAdd(flags + 1, 1u);
        }
    }
}

__device__ void wait_for_all(unsigned* flags, unsigned goal) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(flags, 1u);
        while (atomicAdd(flags, 0u) < goal) {}
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void grid_barrier(float* out, unsigned* flags) {
    const int blocks = gridDim.x, size = blockDim.x, t = threadIdx.x;
    for (int turn = 0; turn < 6; turn++) {
        out[blockIdx.x * size + t] = turn + 1;
        wait_for_all(flags, (2 * turn + 1) * blocks);
        const float seen = out[(blockIdx.x + 1) % blocks * size + (t + 1) % size];
        wait_for_all(flags, (2 * turn + 2) * blocks);
        if (seen != turn + 1) out[blockIdx.x * size + t] = -100;
    }
}

extern "C" __global__ void scan_from_the_first_block(float* out, unsigned* flags) {
    T;
    if (t) return;
    while (atomicAdd(flags, 0u) != blockIdx.x) {}
    __threadfence();
    out[blockIdx.x + 1] = out[blockIdx.x] + 1;
    __threadfence();
    atomicAdd(flags, 1u);
}

extern "C" __global__ void scan_from_the_last_block(float* out, unsigned* flags) {
    T;
    if (t) return;
    const unsigned mine = gridDim.x - 1 - blockIdx.x;
    while (atomicAdd(flags, 0u) != mine) {}
    __threadfence();
    out[mine + 1] = out[mine] + 1;
    __threadfence();
    atomicAdd(flags, 1u);
}

extern "C" __global__ void gives_up(float* out, unsigned* flags) {
    T;
    int tries = 0;
    while (atomicAdd(flags, 0u) == 0 && tries < 5000) tries++;
    if (t == 0) out[blockIdx.x] = tries;
}

extern "C" __global__ void counts_while_it_waits(float* out, unsigned* flags) {  // memory changes all the time
    T;
    float waited = 0;
    if (t == 0) {
        while (atomicAdd(flags, 0u) == 0) out[64 + blockIdx.x] = waited++;
        out[blockIdx.x] = 3;
    }
    if (t == 40 && blockIdx.x == 1) atomicExch(flags, 1u);
}

extern "C" __global__ void vote_until_all_are_done(float* out, volatile unsigned* flags) {
    T;
    if (t >= 32 && blockIdx.x == 1) flags[t - 32] = 1;
    if (t < 32)
        while (!__all_sync(~0u, flags[t])) {}
    if (t == 0) out[blockIdx.x] = 3;
}

extern "C" __global__ void long_in_registers(float* out, unsigned* flags) {
    unsigned x = threadIdx.x + 1;
    for (int i = 0; i < 20000000 / 64; i++) x = x * 1664525 + 1013904223;
    if (threadIdx.x == 0) out[blockIdx.x] = x != 0 ? 3 : 0;
}

extern "C" __global__ void long_without_a_store(float* out, unsigned* flags) {
    float sum = 0;
    for (int turn = 0; turn < 20; turn++) {
        sum = 0;
        for (int i = 0; i < 1024; i++) sum += out[1024 + i];
        if (turn % 4 == 0) __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = 3 + sum;
}

// ---- what never ends

extern "C" __global__ void nobody_sets_the_flag(float* out, unsigned* flags) {
    T;
    if (t == 7) atomicExch(flags, 2u);
    if (t < 32)
        while (atomicAdd(flags, 0u) != 1) {}  // ENDLESS
    __syncthreads();
    out[t] = 1;
}

extern "C" __global__ void nobody_sets_the_volatile(float* out, volatile unsigned* flags) {
    if (threadIdx.x == 5)
        while (flags[3] == 0) {}  // ENDLESS
    out[threadIdx.x] = 1;
}

extern "C" __global__ void counts_its_looks(float* out, unsigned* flags) {
    int looks = 0;
    if (threadIdx.x == 5)
        while (atomicAdd(flags, 0u) == 0) looks++;  // ENDLESS
    out[threadIdx.x] = looks;
}

extern "C" __global__ void lock_never_released(float* out, unsigned* flags) {
    while (atomicCAS(flags, 0u, 1u) != 0) {}  // ENDLESS
    out[0] += 1;
}

extern "C" __global__ void locks_in_both_orders(float* out, unsigned* flags) {
    const int first = blockIdx.x;
    if (threadIdx.x) return;
    atomicExch(flags + first, 1u);
    atomicAdd(flags + 2, 1u);
    while (atomicAdd(flags + 2, 0u) < 2) {}
    while (atomicCAS(flags + 1 - first, 0u, 1u)) {}  // ENDLESS
    out[0] = 1;
}

extern "C" __global__ void one_block_too_many(float* out, unsigned* flags) {
    if (threadIdx.x == 0) {
        atomicAdd(flags, 1u);
        while (atomicAdd(flags, 0u) <= gridDim.x) {}  // ENDLESS
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void plain_loop(float* out, unsigned* flags) {
    float sum = 0;
    for (int i = 0; i < 64; i += out[70] > 0) sum = out[i + 128];  // ENDLESS
    out[threadIdx.x] = sum;
}

extern "C" __global__ void loop_with_a_barrier(float* out, unsigned* flags) {
    __shared__ int done;
    if (threadIdx.x == 0) done = 0;
    __syncthreads();
    while (!done) __syncthreads();  // ENDLESS
    out[threadIdx.x] = 1;
}

extern "C" __global__ void vote_for_ever(float* out, volatile unsigned* flags) {
    while (!__any_sync(~0u, flags[1])) {}  // ENDLESS
    out[threadIdx.x] = 1;
}

extern "C" __global__ void empty_loop(float* out, unsigned* flags) {
    if (threadIdx.x == 3)
        while (true) {}  // ENDLESS
    out[threadIdx.x] = 1;
}

// ---- for limits of time and of memory

extern "C" __global__ void changes_memory_for_ever(float* out, unsigned* flags) {
    T;
    while (out[t] >= 0) out[t] = out[t] < 1000 ? out[t] + 1 : 0;
}

extern "C" __global__ void registers_for_ever(float* out, unsigned* flags) {
    unsigned long long x = threadIdx.x + 1;
    while (x != 0) x = x * 6364136223846793005ull + 2 * (x >> 63) + 2;
    out[threadIdx.x] = x;
}

extern "C" __global__ void first_block_ends(float* out, unsigned* flags) {
    __shared__ unsigned turn;
    if (threadIdx.x == 0) turn = atomicAdd(flags, 1u);  // the first of those that begin, in whichever order
    __syncthreads();
    if (turn)
        while (out[0] >= 0) out[0] = out[0] < 1000 ? out[0] + 1 : 0;
}

extern "C" __global__ void many_loads(float* out, unsigned* flags, int loads) {
    float sum = 0;
    for (int i = 0; i < loads; i++) sum += out[1024 + (i * 64 + threadIdx.x) % 2048];
    if (sum == 0) out[threadIdx.x] = 1;
}

extern "C" __global__ void local_array(float* out, unsigned* flags) {
    float local[100000];  // 400 KB
    T;
    for (int i = 0; i < 100000; i++) local[i] = i + t;
    out[t] = local[t * 1000];
}

extern "C" __global__ void local_array_too_large(float* out, unsigned* flags) {
    float local[180000];  // 720 KB
    T;
    for (int i = 0; i < 180000; i++) local[i] = i + t;
    out[t] = local[t * 1000];
}
