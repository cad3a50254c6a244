// Wrappers of PTX instructions, some of which no stage uses: first what the GPU executes, then what the CPU
// executor does in its place (declared in cpu/shim/executor.h). The comment above a wrapper names the section
// of the PTX ISA that says what the instruction does. Shared memory is passed as ordinary pointers; `smem_*`
// must point into the block's shared memory, `gmem_*` into global memory. What needs more than sm_80 is in
// the second half. What sm_75 does otherwise follows an `#else`; with PTX_ARCH=750 as a define the CPU
// executor and newer GPUs do it too.
#pragma once
#include "element.cuh"

#ifndef PTX_ARCH
#ifdef FLASHCORE_CPU
#define PTX_ARCH 900
#else
#define PTX_ARCH __CUDA_ARCH__
#endif
#endif

#ifdef FLASHCORE_CPU
#include "executor.h"
#define CPU_ELEMENT cpu::Element::ELEMENT
#define PTX(on_gpu, on_cpu) { on_cpu; }
#define PTX_SITE_ONLY cpu::Site site = {__builtin_FILE(), __builtin_LINE()}  // of the call
#define PTX_SITE , PTX_SITE_ONLY
#define PTX_PASS_SITE , site
#define PTX_INLINE inline
#else
#define PTX(on_gpu, on_cpu) { on_gpu; }
#define PTX_SITE_ONLY
#define PTX_SITE
#define PTX_PASS_SITE
#define PTX_INLINE __device__ __forceinline__
#if PTX_ARCH >= 900
#define PTX_TRY_WAIT "try_wait"
#else
#define PTX_TRY_WAIT "test_wait"
#endif
#if PTX_ARCH >= 800
#define PTX_PACK "cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;"
#else
#define PTX_PACK "{ .reg .b16 low, high; cvt.rn." ELEMENT_PTX ".f32 high, %1;" \
    " cvt.rn." ELEMENT_PTX ".f32 low, %2; mov.b32 %0, {low, high}; }"
#endif
#ifdef __CUDACC_RTC__  // NVRTC has neither <stdint.h> nor <math.h>
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#else
#include <stdint.h>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#endif

namespace ptx {

// ISA: "State Spaces", shared: the 32-bit address that shared-memory instructions take
PTX_INLINE uint32_t smem_address(const void* smem PTX_SITE) PTX(
    return (uint32_t)__cvta_generic_to_shared(smem),
    return cpu::shared_address(smem, site))

// ---- stores

// ISA: "st", .v4: 16 bytes to a multiple of 16. Of a struct's assignment the compiler may make four stores.
PTX_INLINE void store_16(void* gmem_dst, uint32_t x, uint32_t y, uint32_t z, uint32_t w PTX_SITE) PTX(
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::
        "l"(gmem_dst), "r"(x), "r"(y), "r"(z), "r"(w) : "memory"),
    cpu::store_16(gmem_dst, x, y, z, w, site))

// ---- additions to global memory, which no thread hears of and which come in any order

// ISA: "red", .add.f32: a lane adds four floats to sums that are LANE_STRIDE * lane + FLOAT_STRIDE * i from
// where the warp's 128 begin; its own begin at `gmem_sums`, a multiple of 16 bytes from sm_90 on. An
// instruction of the warp meets whole lines: all four floats of each lane at once, or one of each.
#if PTX_ARCH >= 900
constexpr int LANE_STRIDE = 4, FLOAT_STRIDE = 1;

PTX_INLINE void add_quad(float* gmem_sums, const float (&x)[4] PTX_SITE) PTX(
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::
        "l"(gmem_sums), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory"),
    cpu::add_floats(gmem_sums, x, 4, site))
#else
constexpr int LANE_STRIDE = 1, FLOAT_STRIDE = 32;

PTX_INLINE void add_float(float* gmem_sum, float x PTX_SITE) PTX(
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"(gmem_sum), "f"(x) : "memory"),
    cpu::add_floats(gmem_sum, &x, 1, site))

PTX_INLINE void add_quad(float* gmem_sums, const float (&x)[4] PTX_SITE) {
#pragma unroll
    for (int i = 0; i < 4; i++) add_float(gmem_sums + FLOAT_STRIDE * i, x[i] PTX_PASS_SITE);
}
#endif

// ---- loads

// ISA: "ld", .acquire.gpu: what was written before a fence and then this value is seen after it
PTX_INLINE uint32_t load_acquire(const uint32_t* gmem_src PTX_SITE) PTX(
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(gmem_src) : "memory"); return x,
    const uint32_t x = *(const volatile uint32_t*)gmem_src; cpu::fence(true, site); return x)

// ISA: "ld", .acquire.sys: the same of what a copy engine or another GPU wrote
PTX_INLINE uint32_t load_acquire_system(const uint32_t* gmem_src PTX_SITE) PTX(
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(gmem_src) : "memory"); return x,
    const uint32_t x = *(const volatile uint32_t*)gmem_src; cpu::fence(true, site); return x)

// ---- arrivals at a counter in global memory

// ISA: "atom", .acq_rel.gpu.inc: counts up to `last`, then wraps to 0. Who counts later sees what was written
// before, by the thread or, before a barrier, by its block: atomicInc would need a fence on either side.
PTX_INLINE uint32_t arrive_wrapping(uint32_t* gmem_counter, uint32_t last PTX_SITE) PTX(
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
        : "=r"(before) : "l"(gmem_counter), "r"(last) : "memory"); return before,
    cpu::fence(true, site); const uint32_t before = atomicInc(gmem_counter, last, site);
    cpu::fence(true, site); return before)

// ---- asynchronous copies
#if PTX_ARCH >= 800

// ISA: "cp.async": 16 bytes past L1; with `valid` false, 16 zero bytes and gmem_src is not read
PTX_INLINE void cp_async_16(void* smem_dst, const void* gmem_src, bool valid = true PTX_SITE) PTX(
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
        "r"(smem_address(smem_dst)), "l"(gmem_src), "r"(valid ? 16 : 0) : "memory"),
    cpu::cp_async(smem_dst, gmem_src, 16, valid, site))

// ISA: "cp.async": 4, 8 or 16 bytes through L1
template <int BYTES>
PTX_INLINE void cp_async(void* smem_dst, const void* gmem_src, bool valid = true PTX_SITE) PTX(
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::
        "r"(smem_address(smem_dst)), "l"(gmem_src), "n"(BYTES), "r"(valid ? BYTES : 0) : "memory"),
    cpu::cp_async(smem_dst, gmem_src, BYTES, valid, site))

// ISA: "cp.async.commit_group": the thread's copies since the last commit form one group
PTX_INLINE void cp_async_commit(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.commit_group;" ::: "memory"),
    cpu::cp_async_commit(site))

// ISA: "cp.async.wait_group": until at most PENDING of the thread's newest groups are unfinished
template <int PENDING> PTX_INLINE void cp_async_wait(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"),
    cpu::cp_async_wait(PENDING, site))

// ISA: "cp.async.wait_all": all the thread's copies, committed or not
PTX_INLINE void cp_async_wait_all(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.wait_all;" ::: "memory"),
    cpu::cp_async_wait_all(site))

#else  // sm_75: a load and a store, which are done when the thread goes on: nothing is left to wait for

PTX_INLINE void cp_async_16(void* smem_dst, const void* gmem_src, bool valid = true PTX_SITE) {
    *(uint4*)smem_dst = valid ? *(const uint4*)gmem_src : make_uint4(0, 0, 0, 0);
}
template <int BYTES>
PTX_INLINE void cp_async(void* smem_dst, const void* gmem_src, bool valid = true PTX_SITE) {
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) ((uint32_t*)smem_dst)[i] = valid ? ((const uint32_t*)gmem_src)[i] : 0;
}
PTX_INLINE void cp_async_commit(PTX_SITE_ONLY) {}
template <int PENDING> PTX_INLINE void cp_async_wait(PTX_SITE_ONLY) {}
PTX_INLINE void cp_async_wait_all(PTX_SITE_ONLY) {}

#endif

// ISA: "cp.async.mbarrier.arrive.noinc": arrives on the mbarrier when the thread's copies so far are done
PTX_INLINE void cp_async_mbarrier_arrive(uint64_t* smem_mbarrier PTX_SITE) PTX(
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::
        "r"(smem_address(smem_mbarrier)) : "memory"),
    cpu::cp_async_mbarrier_arrive(smem_mbarrier, site))

// ---- named barriers

// ISA: "bar.sync": waits until `threads` threads, whole warps, have arrived at barrier `id` (0 is
// __syncthreads)
PTX_INLINE void bar_sync(int id, int threads PTX_SITE) PTX(
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"),
    cpu::barrier_sync(id, threads, site))

// ISA: "bar.arrive": arrives without waiting
PTX_INLINE void bar_arrive(int id, int threads PTX_SITE) PTX(
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"),
    cpu::barrier_arrive(id, threads, site))

// ---- warp-level matrix instructions

// ISA: "ldmatrix": 8x8 matrices of elements of two bytes; lane i gives the 16-byte row i % 8 of matrix i / 8.
// Register j of lane i then holds elements 2 (i % 4) and 2 (i % 4) + 1 of row i / 4 of matrix j; `_trans`: of
// column i / 4.
PTX_INLINE void ldmatrix_x4(uint32_t (&r)[4], const void* smem_row PTX_SITE) PTX(
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_address(smem_row)) : "memory"),
    cpu::ldmatrix(r, 4, false, smem_row, site))

PTX_INLINE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* smem_row PTX_SITE) PTX(
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_address(smem_row)) : "memory"),
    cpu::ldmatrix(r, 4, true, smem_row, site))

PTX_INLINE void ldmatrix_x2(uint32_t (&r)[2], const void* smem_row PTX_SITE) PTX(
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
        : "=r"(r[0]), "=r"(r[1]) : "r"(smem_address(smem_row)) : "memory"),
    cpu::ldmatrix(r, 2, false, smem_row, site))

PTX_INLINE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* smem_row PTX_SITE) PTX(
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
        : "=r"(r[0]), "=r"(r[1]) : "r"(smem_address(smem_row)) : "memory"),
    cpu::ldmatrix(r, 2, true, smem_row, site))

// ISA: "stmatrix": the inverse of ldmatrix, from sm_90 on
constexpr bool STMATRIX = PTX_ARCH >= 900;

PTX_INLINE void stmatrix_x4(void* smem_row, const uint32_t (&r)[4] PTX_SITE) PTX(
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
        "r"(smem_address(smem_row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory"),
    cpu::stmatrix(smem_row, r, 4, false, site))

PTX_INLINE void stmatrix_x4_trans(void* smem_row, const uint32_t (&r)[4] PTX_SITE) PTX(
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::
        "r"(smem_address(smem_row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory"),
    cpu::stmatrix(smem_row, r, 4, true, site))

// ISA: "mma", m16n8k16 with inputs of the element type and .f32 sums: d[16, 8] += a[16, 16] b[16, 8]. With
// g = lane / 4 and t = lane % 4: a = rows g, g + 8, g, g + 8 at columns 2t, 2t, 2t + 8, 2t + 8; b = rows 2t,
// 2t + 8 at column g; d = row g at columns 2t, 2t + 1, then row g + 8. Two elements per register, the lower
// column or row in the low bits.
#if PTX_ARCH >= 800
PTX_INLINE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 PTX_SITE) PTX(
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_PTX "." ELEMENT_PTX ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)),
    cpu::mma_m16n8k16(d, a, b0, b1, CPU_ELEMENT, site))
#else
// ISA: "mma", m16n8k8: the same with the first two registers of a and the first of b
PTX_INLINE void mma_m16n8k8(float (&d)[4], const uint32_t* a, uint32_t b PTX_SITE) PTX(
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." ELEMENT_PTX "." ELEMENT_PTX ".f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b)),
    cpu::mma_m16n8k8(d, a, b, CPU_ELEMENT, site))

PTX_INLINE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 PTX_SITE) {
    ptx::mma_m16n8k8(d, a, b0 PTX_PASS_SITE);
    ptx::mma_m16n8k8(d, a + 2, b1 PTX_PASS_SITE);
}
#endif

// ---- arithmetic

// ISA: "tanh", sm_75: on the special-function unit, to a relative 2^-10.987
PTX_INLINE float tanh(float x) PTX(
    float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y,
    return cpu::tanh(x))

// ISA: "ex2": 2^x on the special-function unit, about 2 ulp; ex2(-inf) = 0
PTX_INLINE float ex2(float x) PTX(
    float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y,
    return cpu::ex2(x))

// ISA: "cvt": two floats to two elements, rounded to nearest, `low` in the low bits
PTX_INLINE uint32_t pack_pair(float low, float high) PTX(
    uint32_t r; asm(PTX_PACK : "=r"(r) : "f"(high), "f"(low)); return r,
    return cpu::pack_pair(low, high, CPU_ELEMENT))

// ISA: "cvt", .f16x2.e4m3x2 and .e4m3x2.f32, sm_89: two bytes of e4m3 as .f16, which is exact, and two
// floats as such bytes, to nearest even and at most 448; a NaN stays one
#if PTX_ARCH >= 890
PTX_INLINE uint32_t widen_e4m3(uint16_t two) PTX(
    uint32_t r; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two)); return r,
    return cpu::widen_e4m3(two))

PTX_INLINE uint16_t pack_e4m3(float low, float high) PTX(
    uint16_t r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low)); return r,
    return cpu::pack_e4m3(low, high))
#else
// Its exponent where that of .f16 ends, a byte is 2^8 times less, subnormal or not. Its NaN, 0x7f, would be
// 480.
PTX_INLINE uint32_t widen_e4m3(uint16_t two) {
    const uint32_t upper = (two & 0xffu) << 8 | (two & 0xff00u) << 16, magnitude = upper & 0x7f007f00u;
    const uint32_t nan = (magnitude + 0x01000100u) & 0x80008000u;
    const uint32_t less = magnitude >> 1 | nan >> 1 | (upper & 0x80008000u);
    const half2 product = __hmul2(*(const half2*)&less, __float2half2_rn(256.0f));
    return *(const uint32_t*)&product;
}
PTX_INLINE uint32_t e4m3_of(float x) {
    const float least = 0.015625f, size = fminf(fabsf(x), 448.0f), units = size + 16384.0f;  // of 2^-9
    const uint32_t bits = *(const uint32_t*)&size, sign = *(const uint32_t*)&x >> 24 & 0x80;
    const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    return sign | (x != x ? 0x7f : size < least ? *(const uint32_t*)&units & 0xf : normal);
}
PTX_INLINE uint16_t pack_e4m3(float low, float high) {
    return (uint16_t)(e4m3_of(low) | e4m3_of(high) << 8);
}
#endif

// ISA: "fma", half precision and bf16: a * b + c of pairs of elements
PTX_INLINE uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) PTX(
    uint32_t r; asm("fma.rn." ELEMENT_PTX "x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r,
    return cpu::fma_pairs(a, b, c, CPU_ELEMENT))

// ---- mbarriers, sm_80: a count of arrivals, on sm_90 also of bytes, that flips a phase bit when it is met

// ISA: "mbarrier.init"
PTX_INLINE void mbarrier_init(uint64_t* smem_mbarrier, int arrivals PTX_SITE) PTX(
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::
        "r"(smem_address(smem_mbarrier)), "r"(arrivals) : "memory"),
    cpu::mbarrier_init(smem_mbarrier, arrivals, site))

// ISA: "mbarrier.arrive"
PTX_INLINE void mbarrier_arrive(uint64_t* smem_mbarrier PTX_SITE) PTX(
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::
        "r"(smem_address(smem_mbarrier)) : "memory"),
    cpu::mbarrier_arrive(smem_mbarrier, site))

// ISA: "mbarrier.test_wait, mbarrier.try_wait": waits until the phase of that parity is complete; the phases
// count 0, 1, 0, ..., so that parity 1 of a fresh mbarrier counts as complete
PTX_INLINE void mbarrier_wait(uint64_t* smem_mbarrier, uint32_t parity PTX_SITE) PTX(
    uint32_t done;
    do asm volatile("{ .reg .pred p; mbarrier." PTX_TRY_WAIT ".parity.shared.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(smem_address(smem_mbarrier)), "r"(parity) : "memory");
    while (!done),
    cpu::mbarrier_wait(smem_mbarrier, parity, site))

// ---- sm_90 from here on
#if defined(FLASHCORE_CPU) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ISA: "mbarrier.arrive.expect_tx": arrives, and lets the phase wait for `bytes` more
PTX_INLINE void mbarrier_arrive_expect(uint64_t* smem_mbarrier, uint32_t bytes PTX_SITE) PTX(
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
        "r"(smem_address(smem_mbarrier)), "r"(bytes) : "memory"),
    cpu::mbarrier_arrive_expect(smem_mbarrier, bytes, site))

// ISA: "mbarrier.arrive" with a .shared::cluster address: on the mbarrier at the same place in another
// block's memory
PTX_INLINE void mbarrier_arrive_remote(uint64_t* smem_mbarrier, uint32_t rank PTX_SITE) PTX(
    asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
        " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::
        "r"(smem_address(smem_mbarrier)), "r"(rank) : "memory"),
    cpu::mbarrier_arrive_remote(smem_mbarrier, rank, site))

// ISA: "mbarrier.try_wait" with .acquire.cluster: also sees what other blocks of the cluster wrote before
// they arrived
PTX_INLINE void mbarrier_wait_cluster(uint64_t* smem_mbarrier, uint32_t parity PTX_SITE) PTX(
    uint32_t done;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(smem_address(smem_mbarrier)), "r"(parity) : "memory");
    while (!done),
    cpu::mbarrier_wait(smem_mbarrier, parity, site))

// ISA: "membar/fence", .mbarrier_init: other blocks of the cluster and the copy engine see the initialised
// mbarriers
PTX_INLINE void fence_mbarrier_init(PTX_SITE_ONLY) PTX(
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"),
    cpu::fence_mbarrier_init(site))

// ISA: "membar/fence", .proxy.async: orders ordinary shared-memory accesses before those of TMA and wgmma
PTX_INLINE void fence_proxy_async(PTX_SITE_ONLY) PTX(
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"),
    cpu::fence_proxy_async(site))

// ISA: "membar/fence", .proxy.async: the same of global memory
PTX_INLINE void fence_proxy_async_global(PTX_SITE_ONLY) PTX(
    asm volatile("fence.proxy.async.global;" ::: "memory"),
    cpu::fence_proxy_async(site))

// ISA: "elect.sync": true in one lane of the warp
PTX_INLINE bool elect_one(PTX_SITE_ONLY) PTX(
    uint32_t chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen,
    return cpu::elect_one(site))

// ---- tensor memory access: one thread moves a box of a tensor

// A CUtensorMap, as the driver (or cpu.tensor_map) encodes it; a kernel takes it as `const
// __grid_constant__`.
struct __align__(64) TensorMap { uint64_t opaque[16]; };

// ISA: "cp.async.bulk.tensor": box to shared memory, its bytes counted by the mbarrier. Coordinates innermost
// first; what lies outside the tensor arrives as zeros.
PTX_INLINE void tma_load_2d(
    void* smem_dst, const TensorMap* map, uint64_t* smem_mbarrier, int c0, int c1 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];" :: "r"(smem_address(smem_dst)), "l"(map),
        "r"(smem_address(smem_mbarrier)), "r"(c0), "r"(c1) : "memory"),
    cpu::tma_load(smem_dst, map, smem_mbarrier, {c0, c1}, 0, site))

PTX_INLINE void tma_load_3d(
    void* smem_dst, const TensorMap* map, uint64_t* smem_mbarrier, int c0, int c1, int c2 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2];" :: "r"(smem_address(smem_dst)), "l"(map),
        "r"(smem_address(smem_mbarrier)), "r"(c0), "r"(c1), "r"(c2) : "memory"),
    cpu::tma_load(smem_dst, map, smem_mbarrier, {c0, c1, c2}, 0, site))

PTX_INLINE void tma_load_4d(
    void* smem_dst, const TensorMap* map, uint64_t* smem_mbarrier, int c0, int c1, int c2,
    int c3 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" :: "r"(smem_address(smem_dst)), "l"(map),
        "r"(smem_address(smem_mbarrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory"),
    cpu::tma_load(smem_dst, map, smem_mbarrier, {c0, c1, c2, c3}, 0, site))

PTX_INLINE void tma_load_5d(
    void* smem_dst, const TensorMap* map, uint64_t* smem_mbarrier, int c0, int c1, int c2, int c3,
    int c4 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" :: "r"(smem_address(smem_dst)), "l"(map),
        "r"(smem_address(smem_mbarrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory"),
    cpu::tma_load(smem_dst, map, smem_mbarrier, {c0, c1, c2, c3, c4}, 0, site))

// ISA: the same with .multicast::cluster: to the same place in every block whose bit is set in `ranks`
PTX_INLINE void tma_load_multicast_4d(
    void* smem_dst, const TensorMap* map, uint64_t* smem_mbarrier, int c0, int c1,
                                      int c2, int c3, uint16_t ranks PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::
        "r"(smem_address(smem_dst)), "l"(map), "r"(smem_address(smem_mbarrier)),
        "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(ranks) : "memory"),
    cpu::tma_load(smem_dst, map, smem_mbarrier, {c0, c1, c2, c3}, ranks, site))

// ISA: "cp.async.bulk.tensor", global from shared: what lies outside the tensor is not written
PTX_INLINE void tma_store_2d(const TensorMap* map, const void* smem_src, int c0, int c1 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::
        "l"(map), "r"(smem_address(smem_src)), "r"(c0), "r"(c1) : "memory"),
    cpu::tma_store(map, smem_src, {c0, c1}, site))

PTX_INLINE void tma_store_4d(
    const TensorMap* map, const void* smem_src, int c0, int c1, int c2, int c3 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
        "l"(map), "r"(smem_address(smem_src)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory"),
    cpu::tma_store(map, smem_src, {c0, c1, c2, c3}, site))

PTX_INLINE void tma_store_5d(
    const TensorMap* map, const void* smem_src, int c0, int c1, int c2, int c3, int c4 PTX_SITE) PTX(
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}],"
        " [%1];" :: "l"(map), "r"(smem_address(smem_src)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
        "r"(c4) : "memory"),
    cpu::tma_store(map, smem_src, {c0, c1, c2, c3, c4}, site))

// ISA: "cp.async.bulk": `bytes` in a row, a multiple of 16, no tensor map
PTX_INLINE void bulk_load(
    void* smem_dst, const void* gmem_src, uint32_t bytes, uint64_t* smem_mbarrier PTX_SITE) PTX(
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
        "r"(smem_address(smem_dst)), "l"(gmem_src), "r"(bytes), "r"(smem_address(smem_mbarrier)) : "memory"),
    cpu::bulk_load(smem_dst, gmem_src, bytes, smem_mbarrier, site))

PTX_INLINE void bulk_store(void* gmem_dst, const void* smem_src, uint32_t bytes PTX_SITE) PTX(
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::
        "l"(gmem_dst), "r"(smem_address(smem_src)), "r"(bytes) : "memory"),
    cpu::bulk_store(gmem_dst, smem_src, bytes, false, site))

// ISA: "cp.reduce.async.bulk", .add.f32: adds instead of writing
PTX_INLINE void bulk_add_f32(float* gmem_dst, const float* smem_src, uint32_t bytes PTX_SITE) PTX(
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::
        "l"(gmem_dst), "r"(smem_address(smem_src)), "r"(bytes) : "memory"),
    cpu::bulk_store(gmem_dst, smem_src, bytes, true, site))

// ISA: "cp.async.bulk", .shared::cluster from .shared::cta: into another block of the cluster; both addresses
// are the caller's own, meant at the same place in block `rank`
PTX_INLINE void bulk_copy_to_rank(
    void* smem_dst, const void* smem_src, uint32_t bytes, uint64_t* smem_mbarrier,
    uint32_t rank PTX_SITE) PTX(
    asm volatile("{ .reg .b32 dst; .reg .b32 bar; mapa.shared::cluster.u32 dst, %0, %4;"
        " mapa.shared::cluster.u32 bar, %3, %4;"
        " cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst], [%1], %2, [bar]; }" ::
        "r"(smem_address(smem_dst)), "r"(smem_address(smem_src)), "r"(bytes),
        "r"(smem_address(smem_mbarrier)), "r"(rank) : "memory"),
    cpu::bulk_copy_to_rank(smem_dst, smem_src, bytes, smem_mbarrier, rank, site))

// ISA: "st.async", .v4.f32: 16 bytes from registers into another block of the cluster, counted by its
// mbarrier; both addresses are the caller's own, meant at the same place in block `rank`
PTX_INLINE void store_async(
    void* smem_dst, const float (&x)[4], uint64_t* smem_mbarrier, uint32_t rank PTX_SITE) PTX(
    asm volatile("{ .reg .b32 dst; .reg .b32 bar; mapa.shared::cluster.u32 dst, %0, %2;"
        " mapa.shared::cluster.u32 bar, %1, %2;"
        " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [dst], {%3, %4, %5, %6}, [bar]; }" ::
        "r"(smem_address(smem_dst)), "r"(smem_address(smem_mbarrier)), "r"(rank),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory"),
    cpu::store_async(smem_dst, x, 16, smem_mbarrier, rank, site))

// ISA: "cp.async.bulk.commit_group": the thread's stores since the last commit form one group
PTX_INLINE void bulk_commit(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.bulk.commit_group;" ::: "memory"),
    cpu::bulk_commit(site))

// ISA: "cp.async.bulk.wait_group": until at most PENDING groups are unfinished; `_read`: until their shared
// memory has been read and may be written again
template <int PENDING> PTX_INLINE void bulk_wait(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory"),
    cpu::bulk_wait(PENDING, false, site))

template <int PENDING> PTX_INLINE void bulk_wait_read(PTX_SITE_ONLY) PTX(
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory"),
    cpu::bulk_wait(PENDING, true, site))

// ISA: "prefetch.tensormap"
PTX_INLINE void prefetch_map(const TensorMap* map) PTX(
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"),
    (void)map)

// ---- clusters: blocks that run together and reach each other's shared memory

// ISA: "%cluster_ctarank", "%cluster_nctarank"
PTX_INLINE uint32_t cluster_rank() PTX(
    uint32_t rank; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank,
    return cpu::cluster_rank())

PTX_INLINE uint32_t cluster_blocks() PTX(
    uint32_t blocks; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks)); return blocks,
    return cpu::cluster_blocks())

// ISA: "barrier.cluster": every thread of every block of the cluster arrives, and waits
PTX_INLINE void cluster_arrive(PTX_SITE_ONLY) PTX(
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"),
    cpu::cluster_arrive(true, site))

// ISA: the same, .relaxed: what the thread wrote is not announced, but for mbarriers by fence_mbarrier_init.
// A release would wait for all that the thread has begun, tiles that TMA fetches included.
PTX_INLINE void cluster_arrive_relaxed(PTX_SITE_ONLY) PTX(
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"),
    cpu::cluster_arrive(false, site))

PTX_INLINE void cluster_wait(PTX_SITE_ONLY) PTX(
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"),
    cpu::cluster_wait(site))

// ISA: "mapa": an ordinary pointer to the same place in the shared memory of block `rank`
template <class T> PTX_INLINE T* remote(T* smem, uint32_t rank PTX_SITE) PTX(
    uint64_t address;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(smem), "r"(rank));
    return (T*)address,
    return (T*)cpu::remote(smem, rank, site))

// ISA: "griddepcontrol": waits for, and releases, the kernel before and after in a programmatic launch
PTX_INLINE void grid_dependency_wait() PTX(
    asm volatile("griddepcontrol.wait;" ::: "memory"), cpu::grid_dependency_wait())
PTX_INLINE void grid_dependency_launch() PTX(asm volatile("griddepcontrol.launch_dependents;" ::: "memory"), )
#endif

// ---- sm_90a: matrix instructions of four warps
#if defined(FLASHCORE_CPU) || !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ISA: "setmaxnreg": the warps of a warpgroup hand back registers or take more; needs
// __launch_bounds__(threads, 1)
template <int REGISTERS> PTX_INLINE void registers_down(PTX_SITE_ONLY) PTX(
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS)),
    cpu::set_registers(REGISTERS, false, site))

template <int REGISTERS> PTX_INLINE void registers_up(PTX_SITE_ONLY) PTX(
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS)),
    cpu::set_registers(REGISTERS, true, site))

// ISA: "Matrix Descriptor Format": a tile of two-byte elements in shared memory, swizzled over 128 bytes,
// 1024-byte aligned. K-major (64 columns of k per row): row_bytes = 1024 from one 8-row group to the next,
// panel_bytes unused. MN-major (64 columns of m or n a row): row_bytes = 1024 from eight k to the next,
// panel_bytes from one 64 to the next. k16 steps: descriptor + 2 for K-major, + 128 for MN-major.
PTX_INLINE uint64_t wgmma_tile(
    const void* smem, uint32_t panel_bytes = 16, uint32_t row_bytes = 1024 PTX_SITE) {
#ifdef FLASHCORE_CPU
    cpu::check_tile(smem, site);  // a descriptor has no place for an address between two tiles
#endif
    const uint64_t start = (smem_address(smem PTX_PASS_SITE) & 0x3ffff) >> 4;
    return start | (uint64_t)(panel_bytes >> 4) << 16 | (uint64_t)(row_bytes >> 4) << 32 | (uint64_t)1 << 62;
}

// The same for e4m3, K-major: rows of 64 or 128 bytes, swizzled over as many. k32 steps: descriptor + 2.
template <int ROW_BYTES> PTX_INLINE uint64_t wgmma_rows(const void* smem PTX_SITE) {
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "swizzles of a whole row");
    const uint64_t tile = wgmma_tile(smem, 16, 8 * ROW_BYTES PTX_PASS_SITE);
    return ROW_BYTES == 128 ? tile : tile + ((uint64_t)1 << 62);
}

// ISA: "wgmma.fence": orders earlier accesses to the registers, and to each other, before the next wgmma
PTX_INLINE void wgmma_fence(PTX_SITE_ONLY) PTX(
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory"),
    cpu::wgmma_fence(site))

// ISA: "wgmma.commit_group"
PTX_INLINE void wgmma_commit(PTX_SITE_ONLY) PTX(
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"),
    cpu::wgmma_commit(site))

// ISA: "wgmma.wait_group": until at most PENDING groups are unfinished; before it neither the accumulators
// nor the shared-memory operands may be touched
template <int PENDING> PTX_INLINE void wgmma_wait(PTX_SITE_ONLY) PTX(
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"),
    cpu::wgmma_wait(PENDING, site))

// Keeps the compiler from moving uses of the accumulators across a wgmma_fence or wgmma_wait; no instruction.
template <int COUNT> PTX_INLINE void wgmma_pin(float (&d)[COUNT]) PTX(
    _Pragma("unroll") for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i]) :: "memory"),
    (void)d)

// The same for left operands: their registers stay theirs until here.
template <int COUNT> PTX_INLINE void wgmma_pin(uint32_t (&a)[COUNT][4]) PTX(
    _Pragma("unroll") for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]) :: "memory"),
    (void)a)

// What is computed from x is computed anew after this; no instruction.
PTX_INLINE void pin(int& x) PTX(
    asm volatile("" : "+r"(x)),
    (void)x)

// ISA: "wgmma.mma_async", m64nNk16 with inputs of the element type and .f32 sums: d[64, N] = a[64, 16]
// b[16, N] + (accumulate ? d : 0). Warp w of the warpgroup holds rows 16w to 16w + 15; d[4j ... 4j + 3] of a
// lane lie as in mma_m16n8k16, columns 8j on. `_ss`: a and b from shared memory, both K-major; `_rs`: a in
// registers as for mma_m16n8k16. TRANSPOSE_B: b MN-major.
template <int N, int TRANSPOSE_B> struct Wgmma;
// ISA: the same with .e4m3 inputs, m64nNk32: both operands K-major; of a in registers, a register has the
// four columns 4t to 4t + 3, or 4t + 16 to 4t + 19, of a row.
template <int N> struct WgmmaE4m3;

#ifndef FLASHCORE_CPU
#define PTX_D1(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define PTX_D2(i) PTX_D1(i), PTX_D1(i + 8)
#define PTX_D3(i) PTX_D2(i), PTX_D1(i + 16)
#define PTX_D4(i) PTX_D2(i), PTX_D2(i + 16)
#define PTX_D5(i) PTX_D4(i), PTX_D1(i + 32)
#define PTX_D6(i) PTX_D4(i), PTX_D2(i + 32)
#define PTX_D7(i) PTX_D4(i), PTX_D3(i + 32)
#define PTX_D8(i) PTX_D4(i), PTX_D4(i + 32)
#define PTX_D9(i) PTX_D8(i), PTX_D1(i + 64)
#define PTX_D10(i) PTX_D8(i), PTX_D2(i + 64)
#define PTX_D11(i) PTX_D8(i), PTX_D3(i + 64)
#define PTX_D12(i) PTX_D8(i), PTX_D4(i + 64)
#define PTX_D13(i) PTX_D8(i), PTX_D5(i + 64)
#define PTX_D14(i) PTX_D8(i), PTX_D6(i + 64)
#define PTX_D15(i) PTX_D8(i), PTX_D7(i + 64)
#define PTX_D16(i) PTX_D8(i), PTX_D8(i + 64)
#define PTX_R1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PTX_R2 PTX_R1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_R3 PTX_R2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PTX_R4 PTX_R3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_R5 PTX_R4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PTX_R6 PTX_R5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_R7 PTX_R6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PTX_R8 PTX_R7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_R9 PTX_R8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define PTX_R10 PTX_R9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define PTX_R11 PTX_R10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define PTX_R12 PTX_R11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_R13 PTX_R12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define PTX_R14 PTX_R13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define PTX_R15 PTX_R14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define PTX_R16 PTX_R15 ",%120,%121,%122,%123,%124,%125,%126,%127"
// EIGHTS: how many times eight accumulators; I0 ... I6: the numbers of the operands after them
#define PTX_WGMMA(N, EIGHTS, I0, I1, I2, I3, I4, I5, I6) \
    template <int TRANSPOSE_B> struct Wgmma<N, TRANSPOSE_B> { \
        static PTX_INLINE void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I2 ", 0; wgmma.mma_async.sync.aligned" \
                ".m64n" #N "k16.f32." ELEMENT_PTX "." ELEMENT_PTX " {" PTX_R##EIGHTS "}," \
                " %" #I0 ", %" #I1 ", p, 1, 1, 0, %" #I3 "; }" \
                : PTX_D##EIGHTS(0) : "l"(a), "l"(b), "r"(accumulate), "n"(TRANSPOSE_B)); } \
        static PTX_INLINE void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I5 ", 0; wgmma.mma_async.sync.aligned" \
                ".m64n" #N "k16.f32." ELEMENT_PTX "." ELEMENT_PTX " {" PTX_R##EIGHTS "}," \
                " {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 \
                ", p, 1, 1, %" #I6 "; }" : PTX_D##EIGHTS(0) \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANSPOSE_B)); } };
PTX_WGMMA(16, 1, 8, 9, 10, 11, 12, 13, 14)
PTX_WGMMA(32, 2, 16, 17, 18, 19, 20, 21, 22)
PTX_WGMMA(48, 3, 24, 25, 26, 27, 28, 29, 30)
PTX_WGMMA(64, 4, 32, 33, 34, 35, 36, 37, 38)
PTX_WGMMA(80, 5, 40, 41, 42, 43, 44, 45, 46)
PTX_WGMMA(96, 6, 48, 49, 50, 51, 52, 53, 54)
PTX_WGMMA(112, 7, 56, 57, 58, 59, 60, 61, 62)
PTX_WGMMA(128, 8, 64, 65, 66, 67, 68, 69, 70)
PTX_WGMMA(144, 9, 72, 73, 74, 75, 76, 77, 78)
PTX_WGMMA(160, 10, 80, 81, 82, 83, 84, 85, 86)
PTX_WGMMA(176, 11, 88, 89, 90, 91, 92, 93, 94)
PTX_WGMMA(192, 12, 96, 97, 98, 99, 100, 101, 102)
PTX_WGMMA(208, 13, 104, 105, 106, 107, 108, 109, 110)
PTX_WGMMA(224, 14, 112, 113, 114, 115, 116, 117, 118)
PTX_WGMMA(240, 15, 120, 121, 122, 123, 124, 125, 126)
PTX_WGMMA(256, 16, 128, 129, 130, 131, 132, 133, 134)
#define PTX_WGMMA_E4M3(N, EIGHTS, I0, I1, I2, I3, I4, I5) \
    template <> struct WgmmaE4m3<N> { \
        static PTX_INLINE void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I2 ", 0; wgmma.mma_async.sync.aligned" \
                ".m64n" #N "k32.f32.e4m3.e4m3 {" PTX_R##EIGHTS "}, %" #I0 ", %" #I1 ", p, 1, 1; }" \
                : PTX_D##EIGHTS(0) : "l"(a), "l"(b), "r"(accumulate)); } \
        static PTX_INLINE void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I5 ", 0; wgmma.mma_async.sync.aligned" \
                ".m64n" #N "k32.f32.e4m3.e4m3 {" PTX_R##EIGHTS "}," \
                " {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1; }" : PTX_D##EIGHTS(0) \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); } };
PTX_WGMMA_E4M3(64, 4, 32, 33, 34, 35, 36, 37)
PTX_WGMMA_E4M3(128, 8, 64, 65, 66, 67, 68, 69)
#endif

template <int N, int TRANSPOSE_B = 0>
PTX_INLINE void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate PTX_SITE) PTX(
    (Wgmma<N, TRANSPOSE_B>::ss(d, a, b, accumulate)),
    cpu::wgmma(d, N, nullptr, a, b, TRANSPOSE_B, accumulate, CPU_ELEMENT, site))

template <int N, int TRANSPOSE_B = 0>
PTX_INLINE void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate PTX_SITE) PTX(
    (Wgmma<N, TRANSPOSE_B>::rs(d, a, b, accumulate)),
    cpu::wgmma(d, N, a, 0, b, TRANSPOSE_B, accumulate, CPU_ELEMENT, site))

template <int N>
PTX_INLINE void wgmma_e4m3_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate PTX_SITE) PTX(
    (WgmmaE4m3<N>::ss(d, a, b, accumulate)),
    cpu::wgmma(d, N, nullptr, a, b, false, accumulate, cpu::Element::e4m3, site))

template <int N>
PTX_INLINE void wgmma_e4m3_rs(
    float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate PTX_SITE) PTX(
    (WgmmaE4m3<N>::rs(d, a, b, accumulate)),
    cpu::wgmma(d, N, a, 0, b, false, accumulate, cpu::Element::e4m3, site))
#endif

}  // namespace ptx
