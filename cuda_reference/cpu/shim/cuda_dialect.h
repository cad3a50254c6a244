// CUDA C++ for a host compiler (g++ >= 12, clang >= 15): included before every kernel source.
#pragma once
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "executor.h"

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __constant__ static
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ thread_local  // the module's block of thread-local storage is the block's shared memory
#define CUDART_INF_F INFINITY

// Dynamic shared memory. Kernels declare it `extern` with a type of their own, so it is defined without one.
asm(".pushsection .tbss,\"awT\",@nobits\n.globl smem\n.hidden smem\n.type smem, @object\n.size smem, 232448\n"
    ".balign 1024\nsmem:\n.zero 232448\n.popsection");
extern "C" thread_local unsigned char cpu_dynamic_bytes[] asm("smem");

static const int warpSize = 32;

#define CPU_VECTOR(T, name)                                                          \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                 \
  struct name##3 { T x, y, z; };                                                     \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                 \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CPU_VECTOR(float, float)
CPU_VECTOR(int, int)
CPU_VECTOR(short, short)
CPU_VECTOR(unsigned short, ushort)
CPU_VECTOR(unsigned char, uchar)
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
// Byte i is the one of y:x that the lower three bits of nibble i number.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) found |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return found;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) {
  float product = a * b;
  asm("" : "+m"(product));  // or the compiler fuses it with an addition, which a GPU does not
  return product;
}
inline float __saturatef(float x) { return x > 0.f ? fminf(x, 1.f) : 0.f; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
template <class T>
inline void __stcs(T* p, T v) {
  *p = v;
}
inline unsigned __float_as_uint(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline int __float_as_int(float f) {
  int i;
  memcpy(&i, &f, 4);
  return i;
}
inline float __int_as_float(int i) {
  float f;
  memcpy(&f, &i, 4);
  return f;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __mul24(int a, int b) { return a * b; }
inline void __nanosleep(unsigned) {}
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }

// ---- barriers, fences
inline void __syncthreads(CPU_SITE_ONLY) { cpu::syncthreads(site); }
inline void __syncwarp(unsigned mask = ~0u CPU_SITE) { cpu::syncwarp(mask, site); }
inline void __threadfence(CPU_SITE_ONLY) { cpu::fence(true, site); }
inline void __threadfence_block(CPU_SITE_ONLY) { cpu::fence(false, site); }
inline unsigned __activemask() { return cpu::active_lanes(); }

// ---- shuffles and votes
namespace cpu {
template <class T>
struct Shuffle {
  T given, taken;
  int source;
};

template <class T>
CPU_UNCHECKED inline void take_from_sources(const Lanes& lanes) {
  for (int i = 0; i < 32; i++) {
    if (!(lanes.mask >> i & 1)) continue;
    auto* mine = (Shuffle<T>*)lanes.argument[i];
    if (!(lanes.mask >> mine->source & 1))
      fault("warp mask", lanes.site, "lane %d of warp %d reads lane %d, which the mask %08x does not name", i,
            lanes.first_thread / 32, mine->source, lanes.mask);
    mine->taken = ((Shuffle<T>*)lanes.argument[mine->source])->given;
  }
}

template <class T>
CPU_UNCHECKED inline T shuffle(const char* name, unsigned mask, T value, int source, Site site) {
  Shuffle<T> mine{value, value, source};
  warp_collective(name, "shuffle", mask, &mine, take_from_sources<T>, site);
  return mine.taken;
}

struct Vote {
  bool given;
  unsigned votes;
};
CPU_UNCHECKED inline void collect_votes(const Lanes& lanes) {
  unsigned votes = 0;
  for (int i = 0; i < 32; i++)
    if (lanes.mask >> i & 1) votes |= (unsigned)((Vote*)lanes.argument[i])->given << i;
  for (int i = 0; i < 32; i++)
    if (lanes.mask >> i & 1) ((Vote*)lanes.argument[i])->votes = votes;
}
CPU_UNCHECKED inline unsigned vote(const char* name, unsigned mask, bool given, Site site) {
  Vote mine{given, 0};
  warp_collective(name, "vote", mask, &mine, collect_votes, site);
  return mine.votes;
}
}  // namespace cpu

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32 CPU_SITE) {
  const int lane = cpu::lane();
  return cpu::shuffle("__shfl_sync", mask, value, (lane & ~(width - 1)) | (source & (width - 1)), site);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32 CPU_SITE) {
  const int lane = cpu::lane(), source = lane ^ (bits & 31);  // shfl reads five bits
  const bool outside = (source & ~(width - 1)) > (lane & ~(width - 1));
  return cpu::shuffle("__shfl_xor_sync", mask, value, outside ? lane : source, site);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32 CPU_SITE) {
  const int lane = cpu::lane();
  delta &= 31;
  const bool outside = (lane & (width - 1)) + delta >= width;
  return cpu::shuffle("__shfl_down_sync", mask, value, outside ? lane : lane + delta, site);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32 CPU_SITE) {
  const int lane = cpu::lane();
  delta &= 31;
  return cpu::shuffle("__shfl_up_sync", mask, value, (lane & (width - 1)) < delta ? lane : lane - delta,
                      site);
}
inline unsigned __ballot_sync(unsigned mask, int value CPU_SITE) {
  return cpu::vote("__ballot_sync", mask, value, site);
}
inline int __any_sync(unsigned mask, int value CPU_SITE) {
  return cpu::vote("__any_sync", mask, value, site) != 0;
}
inline int __all_sync(unsigned mask, int value CPU_SITE) {
  return cpu::vote("__all_sync", mask, !value, site) == 0;
}

// ---- atomics: only one CUDA thread runs at a time, so that reading and writing back is atomic
#define CPU_ATOMIC(name, updated)                                         \
  template <class T, class U>                                             \
  CPU_UNCHECKED inline T name(T* address, U value CPU_SITE) {             \
    cpu::before_atomic(address, sizeof(T), site);                         \
    const T old = *address, now = updated;                                \
    *address = now;                                                       \
    cpu::after_atomic(address, memcmp(&old, &now, sizeof(T)) != 0, site); \
    return old;                                                           \
  }
CPU_ATOMIC(atomicAdd, old + (T)value)
CPU_ATOMIC(atomicSub, old - (T)value)
CPU_ATOMIC(atomicExch, (T)value)
CPU_ATOMIC(atomicMin, (T)value < old ? (T)value : old)
CPU_ATOMIC(atomicMax, old < (T)value ? (T)value : old)
CPU_ATOMIC(atomicAnd, old&(T)value)
CPU_ATOMIC(atomicOr, old | (T)value)
CPU_ATOMIC(atomicXor, old ^ (T)value)
CPU_ATOMIC(atomicInc, old >= (T)value ? (T)0 : old + 1)
CPU_ATOMIC(atomicDec, old == 0 || old > (T)value ? (T)value : old - 1)
template <class T>
CPU_UNCHECKED inline T atomicCAS(T* address, T expected, T value CPU_SITE) {
  cpu::before_atomic(address, sizeof(T), site);
  const T old = *address;
  if (old == expected) *address = value;
  cpu::after_atomic(address, old == expected && old != value, site);
  return old;
}

// ---- entry points: what Python calls, made for every kernel of a source file
namespace cpu {
template <class T>
struct Bare {
  using type = T;
};
template <class T>
struct Bare<const T> {
  using type = T;
};
template <class T>
struct Describe {
  static constexpr Parameter value{sizeof(T), false, false};
};
template <class T>
struct Describe<T*> {
  static constexpr Parameter value{sizeof(T*), true, false};
};
template <class T>
struct Describe<const T*> {
  static constexpr Parameter value{sizeof(T*), true, true};
};

template <class T>
__attribute__((noinline)) CPU_UNCHECKED T read_argument(const void* bytes) {
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}
template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct CountTo<0, I...> {
  using type = Indices<I...>;
};

template <class... P, size_t... I>
__attribute__((noinline)) CPU_UNCHECKED void call(void (*kernel)(P...), void** arguments, Indices<I...>) {
  kernel(read_argument<typename Bare<P>::type>(arguments[I])...);
}
template <class... P>
inline void call(void (*kernel)(P...), void** arguments) {
  call(kernel, arguments, typename CountTo<sizeof...(P)>::type{});
}
template <class... P>
inline int describe(void (*)(P...), Parameter* out) {
  const Parameter all[] = {Describe<typename Bare<P>::type>::value..., {0, false, false}};
  for (size_t i = 0; i < sizeof...(P); i++) out[i] = all[i];
  return sizeof...(P);
}
}  // namespace cpu

#define CPU_EXPORT extern "C" __attribute__((visibility("default")))
#define CPU_MODULE                                                    \
  CPU_EXPORT void* cpu_dynamic_shared() { return cpu_dynamic_bytes; }
#define CPU_KERNEL(name, cluster, bounds, ...)                                                    \
  CPU_EXPORT void cpu_run_##name(void** arguments) { cpu::call(&name, arguments); }               \
  CPU_EXPORT int cpu_describe_##name(cpu::Parameter* out) { return cpu::describe(&name, out); }   \
  CPU_EXPORT CPU_UNCHECKED void cpu_limits_##name(unsigned* out) {                                \
    const unsigned blocks[] = {CPU_LIST cluster}, threads[] = {CPU_LIST bounds};                  \
    for (unsigned i = 0; i < 3; i++) out[i] = i < sizeof blocks / sizeof *blocks ? blocks[i] : 1; \
    out[3] = threads[0];                                                                          \
  }                                                                                               \
  CPU_EXPORT const char* cpu_declared_##name() { return CPU_TEXT(__VA_ARGS__); }
#define CPU_LIST(...) __VA_ARGS__
#define CPU_TEXT(...) #__VA_ARGS__  // with its macros expanded

// The compiler makes loads and stores of a small memcpy, which are seen; of a large one a call, which is not.
#define CPU_SMALL(bytes) (__builtin_constant_p(bytes) && (bytes) <= 16)
#define CPU_HERE (cpu::Site{__builtin_FILE(), __builtin_LINE()})
#define memcpy(to, from, bytes)                                                                       \
  (CPU_SMALL(bytes) ? __builtin_memcpy(to, from, bytes) : cpu::copy_bytes(to, from, bytes, CPU_HERE))
#define memmove(to, from, bytes) memcpy(to, from, bytes)
#define memset(to, value, bytes)                                                                        \
  (CPU_SMALL(bytes) ? __builtin_memset(to, value, bytes) : cpu::fill_bytes(to, value, bytes, CPU_HERE))
