// What the compiler inserts. Kernels are built with -fsanitize=thread,alignment,bounds, but neither sanitizer
// is linked: their entry points are defined here, so that every access of a kernel to memory comes to the
// executor.
#include "runtime.h"

namespace cpu {
namespace {
constexpr ptrdiff_t ROOM = 32 << 10;  // of a stack, that what is called here may need

inline void hook(const void* address, size_t bytes, Access access, const void* pc) {
  Fiber* fiber = current;
  if (!fiber) return;
  const bool looked = access == Access::volatile_read || access == Access::volatile_write;
  if (heeded && !looked) heed(address, (Place)pc);  // a second look in the same state would be a circle
  settle_write();
  beats++;
  if ((char*)__builtin_frame_address(0) - fiber->stack < ROOM) overflow((Place)pc);
  if (launch.checks || launch.counts) touch(*fiber, address, bytes, access, (Place)pc, true);
  if (access == Access::write) before_write(address, bytes);
  suspect();
}

// A volatile access is a flag between threads: others run before it, and it carries what fences released.
void hook_volatile(void* address, size_t bytes, Access access, const void* pc) {
  if (!current) return;
  poll(address, (Place)pc);
  hook(address, bytes, access, pc);
  carry(*current, address, access == Access::volatile_read, access == Access::volatile_write);
  if (access == Access::volatile_write) note_change(address, (Place)pc);
}
}  // namespace
}  // namespace cpu

using cpu::Access;
#define PC __builtin_return_address(0)
#define HOOKS(bytes)                                                                                      \
  extern "C" void __tsan_read##bytes(void* p) { cpu::hook(p, bytes, Access::read, PC); }                  \
  extern "C" void __tsan_write##bytes(void* p) { cpu::hook(p, bytes, Access::write, PC); }                \
  extern "C" void __tsan_unaligned_read##bytes(void* p) { cpu::hook(p, bytes, Access::read, PC); }        \
  extern "C" void __tsan_unaligned_write##bytes(void* p) { cpu::hook(p, bytes, Access::write, PC); }      \
  extern "C" void __tsan_read_write##bytes(void* p) {                                                     \
    cpu::hook(p, bytes, Access::read, PC);                                                                \
    cpu::hook(p, bytes, Access::write, PC);                                                               \
  }                                                                                                       \
  extern "C" void __tsan_unaligned_volatile_read##bytes(void* p) { VOLATILE(p, bytes, volatile_read); }   \
  extern "C" void __tsan_unaligned_volatile_write##bytes(void* p) { VOLATILE(p, bytes, volatile_write); } \
  extern "C" void __tsan_volatile_read##bytes(void* p) { VOLATILE(p, bytes, volatile_read); }             \
  extern "C" void __tsan_volatile_write##bytes(void* p) { VOLATILE(p, bytes, volatile_write); }
#define VOLATILE(p, bytes, access) cpu::hook_volatile(p, bytes, Access::access, PC)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" {
void __tsan_read_range(void* p, size_t bytes) { cpu::hook(p, bytes, Access::read, PC); }
void __tsan_write_range(void* p, size_t bytes) { cpu::hook(p, bytes, Access::write, PC); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  cpu::hook(from, bytes, Access::read, PC);
  cpu::hook(to, bytes, Access::write, PC);
  return memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  cpu::hook(to, bytes, Access::write, PC);
  return memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

// The compiler passes where in the source the check stands, in this form.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

struct TypeDescriptor {
  uint16_t kind, info;  // of an integer: bit 0 whether it is signed, above it log2 of its bits
  char name[];
};
struct AccessData {
  SourceLocation at;
  const TypeDescriptor* type;
  uint8_t log_alignment, kind;
};
struct IndexData {
  SourceLocation at;
  const TypeDescriptor *array, *index;
};

static int64_t integer(const TypeDescriptor& type, uint64_t value) {
  const int unused = 64 - (1 << (type.info >> 1));
  return type.info & 1 ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

// Neither returns to an access that would end the process: wide loads and stores, and a division by zero, do.
extern "C" void __ubsan_handle_type_mismatch_v1(void* data, uint64_t address) {
  auto& of = *(AccessData*)data;
  if (!cpu::current) return;
  const cpu::Site site = {of.at.file, (int)of.at.line};
  const std::string who = cpu::who(cpu::current->agent);
  if (!address) cpu::fault("out of bounds", site, "a null pointer is used by %s", who.c_str());
  const int wanted = 1 << of.log_alignment;
  cpu::fault("misaligned", site, "it must start at a multiple of %d bytes and starts %d past one, by %s", wanted,
             (int)(address % wanted), who.c_str());
}
extern "C" void __ubsan_handle_divrem_overflow(void* data, uint64_t, uint64_t) {
  auto* at = (SourceLocation*)data;
  cpu::fault("division by zero", {at->file, (int)at->line}, "an integer is divided by zero, by %s",
             cpu::who(cpu::current->agent).c_str());
}
// Both have a value here, and another one on a GPU.
static void undefined(void* data, const char* what) {
  auto* at = (SourceLocation*)data;
  if (!cpu::current || !cpu::launch.checks) return;
  const std::string who = cpu::who(cpu::current->agent);
  cpu::problem("undefined value", {at->file, (int)at->line}, "%s, by %s", what, who.c_str());
}
extern "C" void __ubsan_handle_shift_out_of_bounds(void* data, uint64_t, uint64_t) {
  undefined(data, "an integer is shifted by a negative number of bits, or by as many as it has or more");
}
extern "C" void __ubsan_handle_float_cast_overflow(void* data, uint64_t) {
  undefined(data, "a float becomes an integer that its type does not have");
}
extern "C" void __ubsan_handle_out_of_bounds(void* data, uint64_t index) {
  auto& of = *(IndexData*)data;
  if (!cpu::current || !cpu::launch.checks) return;
  const std::string name = of.array->name;  // 'float [8]'
  cpu::problem("out of bounds", {of.at.file, (int)of.at.line}, "index %ld of a `%s` is used by %s",
               (long)integer(*of.index, index), name.substr(1, name.size() - 2).c_str(),
               cpu::who(cpu::current->agent).c_str());
}
