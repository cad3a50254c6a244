// What the shim headers and ptx.cuh ask of the CPU executor. The runtime in src/ implements it.
#pragma once
#include <initializer_list>
#include <stddef.h>
#include <stdint.h>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern "C" {
extern uint3 threadIdx, blockIdx;  // of the CUDA thread that runs
extern dim3 blockDim, gridDim;
}

namespace ptx {
struct TensorMap;
}

// For functions that name their accesses to memory themselves, or touch other lanes' variables.
#define CPU_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "bounds")))
#define CPU_SITE_ONLY cpu::Site site = {__builtin_FILE(), __builtin_LINE()}  // of the call in the kernel
#define CPU_SITE , CPU_SITE_ONLY

namespace cpu {

struct Site {
  const char* file;
  int line;
};
// As element.cuh names them, and what wgmma alone multiplies.
enum class Element { float16, bfloat16, e4m3 };
// From atomic on: no race of two. An add is an atomic that needs what was there and gives nothing back.
enum class Access { read, write, atomic, volatile_read, volatile_write, add };

// ---- what all lanes of a warp do together

// The lanes of a finished collective: `argument[i]` is lane i's, where bit i of `mask` is set.
struct Lanes {
  void** argument;
  unsigned mask;
  int first_thread;
  Site site;
};
using Together = void (*)(const Lanes&);

// Waits until every lane of `mask` is at this collective; then `together` runs once. `kind` is how it is
// counted.
void warp_collective(const char* name, const char* kind, unsigned mask, void* argument, Together, Site);
void syncwarp(unsigned mask, Site);
int lane();
unsigned active_lanes();  // of the warp: those that have not returned

// ---- barriers of a block
void syncthreads(Site);
void barrier_sync(int id, int threads, Site);
void barrier_arrive(int id, int threads, Site);

// ---- memory
void access(int thread, const void* address, size_t bytes, Access, Site);    // checked, not counted
void count_rows(Access, const void* const* rows, int count, Site);           // 16-byte rows, eight a phase
void count_lanes(Access, const void* const* addresses, size_t bytes, Site);  // one of each of 32 lanes
void before_atomic(void* address, size_t bytes, Site);                       // checks, orders and counts it
void after_atomic(const void* address, bool changed, Site);
void* copy_bytes(void* to, const void* from, size_t bytes, Site);
void* fill_bytes(void* to, int value, size_t bytes, Site);
void scope_end(const void* variable, size_t bytes, const char* name, Site declared);
void fence(bool whole_gpu, Site);  // __threadfence, __threadfence_block
void grid_dependency_wait();
uint32_t shared_address(const void*, Site);
void check_tile(const void*, Site);  // of wgmma
[[noreturn]] void fault(const char* kind, Site, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
void problem(const char* kind, Site, const char* format, ...) __attribute__((format(printf, 3, 4)));
int fragment_element(int use, int lane, int index);  // WMMA: which of 256 elements a lane holds

// ---- the instructions of ptx.cuh, in its order
void store_16(void* destination, uint32_t x, uint32_t y, uint32_t z, uint32_t w, Site);
void add_floats(float* sums, const float* x, int count, Site);
void cp_async(void* destination, const void* source, int bytes, bool valid, Site);
void cp_async_commit(Site);
void cp_async_wait(int pending, Site);
void cp_async_wait_all(Site);
void cp_async_mbarrier_arrive(uint64_t*, Site);
void ldmatrix(uint32_t* registers, int matrices, bool transposed, const void* row, Site);
void stmatrix(void* row, const uint32_t* registers, int matrices, bool transposed, Site);
void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, Element, Site);
void mma_m16n8k8(float* d, const uint32_t* a, uint32_t b, Element, Site);
float ex2(float);
float tanh(float);
uint16_t bfloat16_bits(double);  // rounded once, to nearest even
float bfloat16_float(uint16_t);
uint32_t pack_pair(float low, float high, Element);
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c, Element);
uint32_t widen_e4m3(uint16_t two);
uint16_t pack_e4m3(float low, float high);
void mbarrier_init(uint64_t*, int arrivals, Site);
void mbarrier_arrive(uint64_t*, Site);
void mbarrier_arrive_expect(uint64_t*, uint32_t bytes, Site);
void mbarrier_arrive_remote(uint64_t*, uint32_t rank, Site);
void mbarrier_wait(uint64_t*, uint32_t parity, Site);
void fence_mbarrier_init(Site);
void fence_proxy_async(Site);
bool elect_one(Site);
void tma_load(void* destination, const ptx::TensorMap*, uint64_t* mbarrier,
              std::initializer_list<int> coordinates, unsigned ranks, Site);
void tma_store(const ptx::TensorMap*, const void* source, std::initializer_list<int> coordinates, Site);
void bulk_load(void* destination, const void* source, uint32_t bytes, uint64_t* mbarrier, Site);
void bulk_store(void* destination, const void* source, uint32_t bytes, bool add, Site);
void bulk_copy_to_rank(void* destination, const void* source, uint32_t bytes, uint64_t* mbarrier,
                       uint32_t rank, Site);
void store_async(void* destination, const void* value, uint32_t bytes, uint64_t* mbarrier, uint32_t rank,
                 Site);
void bulk_commit(Site);
void bulk_wait(int pending, bool read_only, Site);
uint32_t cluster_rank();
uint32_t cluster_blocks();
void cluster_arrive(bool release, Site);
void cluster_wait(Site);
void* remote(const void*, uint32_t rank, Site);
void set_registers(int registers, bool up, Site);
void wgmma_fence(Site);
void wgmma_commit(Site);
void wgmma_wait(int pending, Site);
void wgmma(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool transpose_b,
           int accumulate, Element, Site);

// ---- how the runtime calls a kernel: `arguments[i]` points to the i-th parameter's bytes
struct Parameter {
  uint32_t bytes;
  bool pointer, constant;
};
}  // namespace cpu
