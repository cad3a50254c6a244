// Every access to memory comes through here: which memory it is, and whether it may be made. Races are found
// by happens-before on epochs: a cell remembers who wrote it last and who has read it since, each with the
// clock he had; an access is ordered after those whose clocks it has seen.
#include <algorithm>
#include "runtime.h"

namespace cpu {
namespace {
constexpr size_t PAGE_CELLS = 2048;  // of global memory

std::string place_in_shared(const Block& block, size_t offset) {
  const long in_dynamic = (long)(block.storage + offset - block.dynamic);
  const std::string of = launch.blocks.size() > 1 ? text(" of block %u in the cluster", block.rank) : "";
  if (in_dynamic >= 0 && in_dynamic < 232448) return fact("shared", in_dynamic) + of;
  return fact("static", (long)offset) + of;
}

const char* verb(Access access) {
  static const char* const verbs[] = {"read", "written", "changed by an atomic", "read through a volatile",
                                      "written through a volatile", "added to"};
  return verbs[(int)access];
}

bool is_read(Access access) { return access == Access::read || access == Access::volatile_read; }
bool needs_value(Access access) { return is_read(access) || access == Access::add; }
Access counted_as(Access access) {
  if (access == Access::volatile_read) return Access::read;
  if (access == Access::add) return Access::atomic;
  return access == Access::volatile_write ? Access::write : access;
}
bool is_strong(Access access) { return access >= Access::atomic; }  // two of these are no race
Access access_of(const Reader& reader) { return reader.strong ? Access::volatile_read : Access::read; }

bool has_seen(const Actor& actor, uint16_t agent, uint32_t clock) {
  return actor.clock->seen[agent] >= clock;
}

bool is_thread(size_t agent) { return agent % launch.agents_of_block() < (size_t)launch.threads; }

void report_race(const char* kind, const Actor& actor, Access access, Place place, const std::string& what,
                 size_t other, Access other_access, Place other_place, const char* lacking) {
  add_problem(kind, place, other_place,
              text("%s is %s by %s and %s by %s, with no %s between", what.c_str(), verb(access),
                   who(actor.agent).c_str(), verb(other_access), who(other).c_str(), lacking));
}

const char* race_kind(const Actor& actor, size_t other) {
  return is_thread(actor.agent) && is_thread(other) ? "race" : "missing wait";
}

// What should have been between two accesses of one agent pair.
const char* missing_between(const Actor& actor, size_t other) {
  const size_t per_block = launch.agents_of_block();
  if (!is_thread(actor.agent) || !is_thread(other)) return "wait for it";
  if (actor.agent / per_block != other / per_block) return "cluster barrier";
  return actor.agent % per_block / 32 == other % per_block / 32 ? "__syncwarp or barrier" : "barrier";
}

void check_against_writer(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (!cell.write_clock || cell.writer == actor.agent) return;
  if (is_strong(cell.how) && is_strong(access)) return;
  if (!has_seen(actor, cell.writer, cell.write_clock)) {
    report_race(race_kind(actor, cell.writer), actor, access, place, name(), cell.writer, cell.how,
                cell.written_at, missing_between(actor, cell.writer));
  }
}

// Ordinary writes reach TMA and wgmma only through a fence.proxy.async.
void check_proxy(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (!actor.async_proxy || !cell.write_clock || cell.by_async_proxy) return;
  if (!has_seen(actor, cell.writer, cell.write_clock) || actor.clock->fenced[cell.writer] >= cell.write_clock)
    return;
  report_race("missing fence", actor, access, place, name(), cell.writer, Access::write, cell.written_at,
              "fence.proxy.async");
}

Readers* new_readers(uint32_t capacity) {
  auto& memory = launch.readers.emplace_back(new char[sizeof(Readers) + (capacity - 1) * sizeof(Reader)]);
  auto* readers = (Readers*)memory.get();
  readers->capacity = capacity;
  readers->count = 0;
  return readers;
}

Readers* some_readers() {
  if (launch.free_readers.empty()) return new_readers(6);
  Readers* readers = launch.free_readers.back();
  launch.free_readers.pop_back();
  readers->count = 0;
  return readers;
}

// An agent whose read the clocks `seen` do not know, or -1; `self` aside.
int unseen(const Reader& reader, const std::vector<uint32_t>& seen, int self) {
  for (uint32_t left = reader.agents; left; left &= left - 1) {
    const int agent = 32 * reader.group + __builtin_ctz(left);
    if (seen[agent] < reader.clock && agent != self) return agent;
  }
  return -1;
}

// What the actor knows, by way of atomics and fences, of an earlier cluster; null: nothing.
const std::vector<uint32_t>* known_of(const Actor& actor, uint32_t cluster) {
  if (!actor.fiber) return nullptr;
  auto known = actor.fiber->past.find(cluster);
  return known == actor.fiber->past.end() ? nullptr : known->second.get();
}

bool knew(const Actor& actor, uint32_t cluster, uint16_t agent, uint32_t clock) {
  auto* known = known_of(actor, cluster);
  return known && (*known)[agent] >= clock;
}

// Whether some read of an earlier cluster is not known to the actor.
bool unknown(const Actor& actor, const Reader& reader) {
  auto* known = known_of(actor, reader.cluster);
  return !known || unseen(reader, *known, -1) >= 0;
}

constexpr size_t EARLIER = 64;  // readers of earlier clusters that a cell of global memory keeps

// A write that comes after this read comes after all that this one comes after: those are forgotten.
void forget_seen_readers(const Actor& actor, Readers& readers) {
  size_t earlier = 0;
  auto seen = [&](const Reader& reader) {
    if (reader.cluster == launch.cluster) return unseen(reader, actor.clock->seen, actor.agent) < 0;
    return !unknown(actor, reader) || ++earlier > EARLIER;
  };
  readers.count = std::remove_if(readers.begin(), readers.end(), seen) - readers.begin();
}

// Room for one more; a cell that needs more room than it has hands its list to others.
void make_room(const Actor& actor, Cell& cell) {
  if (cell.readers->count < cell.readers->capacity) return;
  forget_seen_readers(actor, *cell.readers);
  if (cell.readers->count <= cell.readers->capacity / 2) return;
  Readers* more = new_readers(4 * cell.readers->capacity);
  more->count = cell.readers->count;
  std::copy(cell.readers->begin(), cell.readers->end(), more->begin());
  launch.free_readers.push_back(cell.readers);
  cell.readers = more;
}

void remember_reader(const Actor& actor, Cell& cell, Access access, Place place) {
  if (!cell.readers) cell.readers = some_readers();
  const uint16_t group = actor.agent / 32;
  const uint32_t mine = 1u << actor.agent % 32;
  const bool strong = is_strong(access);
  for (Reader* reader = cell.readers->end(); reader-- != cell.readers->begin();)
    if (reader->clock == actor.now && reader->group == group && reader->place == place &&
        reader->cluster == launch.cluster && reader->strong == strong) {
      reader->agents |= mine;
      return;
    }
  make_room(actor, cell);
  cell.readers->list[cell.readers->count++] = {group, strong, launch.cluster, actor.now, mine, place};
}

void check_against_readers(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (!cell.readers) return;
  for (const Reader& reader : *cell.readers) {
    if (reader.cluster != launch.cluster) continue;  // check_between_clusters has looked at it
    if (reader.strong && is_strong(access)) continue;
    const int other = unseen(reader, actor.clock->seen, actor.agent);
    if (other < 0) continue;
    report_race(race_kind(actor, other), actor, access, place, name(), other, access_of(reader), reader.place,
                missing_between(actor, other));
    break;
  }
  cell.readers->count = 0;
}

void remember_writer(const Actor& actor, Cell& cell, Access access, Place place) {
  cell.writer = actor.agent;
  cell.write_clock = actor.now;
  cell.written_at = place;
  cell.by_async_proxy = actor.async_proxy;
  cell.in_flight = false;
  cell.how = access;
}

// One byte is half a cell: accesses to the other half do not matter; an access to both is checked.
void touch_half_cell(const Actor& actor, Cell& cell, Access access, Place place) {
  if (!is_read(access)) remember_writer(actor, cell, access, place);
}

void touch_cell(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (cell.in_flight)
    add_problem("missing wait", place, cell.written_at,
                name() + text(" is %s by %s before the cp.async that fills it was waited for", verb(access),
                              who(actor.agent).c_str()));
  check_against_writer(actor, cell, access, place, name);
  check_proxy(actor, cell, access, place, name);
  if (is_read(access)) return remember_reader(actor, cell, access, place);
  check_against_readers(actor, cell, access, place, name);
  remember_writer(actor, cell, access, place);
}

Cell& global_cell(Buffer& buffer, uint64_t index) {
  auto& page = buffer.pages[index / PAGE_CELLS];
  if (page.empty()) page.resize(PAGE_CELLS);
  return page[index % PAGE_CELLS];
}

void report_blocks(const Actor& actor, Access access, Place place, const std::string& name, Access before,
                   Place other) {
  add_problem("race between blocks", place, other,
              text("%s is %s by %s and was %s by another block, with no atomic between two __threadfence "
                   "that orders them",
                   name.c_str(), verb(access), who(actor.agent).c_str(), verb(before)));
}

// Forgets what earlier clusters did to a cell, after a look at whether this access comes after it.
void check_between_clusters(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (cell.write_clock && cell.write_cluster != launch.cluster) {
    const bool both_strong = is_strong(cell.how) && is_strong(access);
    if (!both_strong && !knew(actor, cell.write_cluster, cell.writer, cell.write_clock))
      report_blocks(actor, access, place, name(), cell.how, cell.written_at);
    if (!is_read(access)) cell.write_clock = 0;
  }
  if (!cell.readers || is_read(access)) return;
  for (const Reader& reader : *cell.readers)
    if (reader.cluster != launch.cluster && !(reader.strong && is_strong(access)) && unknown(actor, reader)) {
      report_blocks(actor, access, place, name(), access_of(reader), reader.place);
      break;
    }
}

std::string place_in_buffer(const Buffer& buffer, const char* address) {
  return fact("global", address - buffer.start, buffer.name);
}

// Of scratch: whether what is read was written, in this launch or in one before; what is written is, from now on.
void check_written(const Actor& actor, Buffer& buffer, uint64_t start, size_t bytes, Access access, Place place) {
  uint8_t* const written = buffer.written + start;
  const void* missing = needs_value(access) ? memchr(written, 0, bytes) : nullptr;
  if (missing)
    add_problem("uninitialised read", place, 0,
                place_in_buffer(buffer, buffer.start + ((uint8_t*)missing - buffer.written)) +
                    text(" is %s by %s, and nobody wrote it", verb(access), who(actor.agent).c_str()));
  if (!is_read(access)) memset(written, 1, bytes);
}

[[noreturn]] void out_of_bounds(const Fiber& fiber, const char* address, size_t bytes, Access access,
                                Place place) {
  const Buffer* nearest = nullptr;
  size_t distance = 1 << 24;  // how far the access reaches from the array
  for (auto& buffer : launch.buffers) {
    const size_t away = address < buffer.start ? buffer.start - address : address + bytes - buffer.end;
    if (away < distance) nearest = &buffer, distance = away;
  }
  std::string where = fact("nowhere", (long)address);
  if (nearest && address < nearest->start)
    where = text("%zu bytes before %s", distance, nearest->name.c_str());
  else if (nearest && address > nearest->end)
    where = text("%zu bytes past the end of %s", distance - bytes, nearest->name.c_str());
  else if (nearest)
    where = text("%s the end of %s", address < nearest->end ? "across" : "just past", nearest->name.c_str());
  add_problem(
      "out of bounds", place, 0,
      text("%zu bytes are %s %s, by %s", bytes, verb(access), where.c_str(), who(fiber.agent).c_str()));
  stop_launch();
}

void check_shared_bounds(const Fiber& fiber, const Block& block, const char* address, size_t bytes,
                         Place place) {
  const size_t end = address + bytes - block.dynamic;
  if (address < block.dynamic || end <= launch.dynamic_bytes || address >= block.dynamic + 232448) return;
  add_problem("out of bounds", place, 0,
              text("byte %zu of dynamic shared memory is touched, the launch asked for %u, by %s", end - 1,
                   launch.dynamic_bytes, who(fiber.agent).c_str()));
  stop_launch();
}

bool is_own_stack(const Fiber& fiber, const void* address) { return inside(address, fiber.stack, STACK_BYTES); }

#ifdef __clang__
constexpr uint16_t FILL = 0xaaaa;
#else
constexpr uint16_t FILL = 0xfefe;
#endif

// Whether every byte is what -ftrivial-auto-var-init=pattern fills local variables with. Of a single byte any
// value is a likely one.
inline bool is_unset(const void* address, size_t bytes) {
  auto* halves = (const uint16_t*)address;
  if (halves[0] != FILL || bytes < 2) return false;
  for (size_t i = 1; i < bytes / 2; i++)
    if (halves[i] != FILL) return false;
  return true;
}
}  // namespace

void check_set(Fiber& fiber, const void* address, size_t bytes, Place place) {
  if (is_unset(address, bytes) && launch.unset.insert(place).second)
    fiber.unset.push_back({(const char*)address, bytes, place});
}

void touch_registers(Fiber& fiber, const void* address, size_t bytes, Access access, Place place) {
  if (is_read(access)) check_set(fiber, address, bytes, place);
  if (!fiber.use) return;
  WarpProducts& products = fiber.block->products[fiber.warp()];
  const size_t first = ((const char*)address - fiber.stack) / 4;
  fiber.use->lowest = std::min(fiber.use->lowest, first);
  for (size_t i = 0; i < (bytes + 3) / 4; i++) fiber.use->fences[first + i] = products.fences;
  if (!products.in_flight[fiber.lane()].empty()) check_in_flight(fiber, address, bytes, access, place);
}

static void add_unset(const Fiber& fiber, const Unset& unset, const std::string& what, Place declared) {
  add_problem("uninitialised read", unset.place, declared,
              text("%s is read by %s, and nothing was assigned to it", what.c_str(), who(fiber.agent).c_str()));
}

static std::string part_of(const char* name, size_t bytes, size_t read) {
  return (bytes > 16 ? "an element of " : bytes > read ? "a part of "
                                                       : "") +
         fact("variable", 0, name);
}

void scope_end(const void* variable, size_t bytes, const char* name, Site declared) {
  Fiber& fiber = *current;
  const char *start = (const char*)variable, *end = start + bytes;
  auto is_part = [&](const char* address) { return address >= start && address < end; };
  for (auto& each : fiber.unset)
    if (is_part(each.address)) add_unset(fiber, each, part_of(name, bytes, each.bytes), intern(declared));
  fiber.unset.erase(std::remove_if(fiber.unset.begin(), fiber.unset.end(),
                                   [&](auto& each) { return is_part(each.address); }),
                    fiber.unset.end());
  if (!fiber.use) return;
  // A left operand was taken when the product was issued: registers of a variable that is gone are reused.
  auto& operands = fiber.block->products[fiber.warp()].in_flight[fiber.lane()];
  operands.erase(std::remove_if(operands.begin(), operands.end(),
                                [&](auto& each) { return !each.accumulators && is_part(each.start); }),
                 operands.end());
}

void report_unset(Fiber& fiber) {
  for (auto& each : fiber.unset) add_unset(fiber, each, "a local variable", 0);
  fiber.unset.clear();
}

Actor actor_of(Fiber& fiber) {
  return {fiber.agent, &fiber.clock, fiber.clock.seen[fiber.agent], false, &fiber};
}

Block* shared_owner(const void* address) {
  for (auto& block : launch.blocks)
    if (inside(address, block->storage, launch.storage_bytes)) return block.get();
  return nullptr;
}

void touch_shared(const Actor& actor, Block& block, size_t offset, size_t bytes, Access access, Place place) {
  if (actor.fiber && actor.fiber->block != &block && !block.live)
    add_problem(
        "finished block", place, 0,
        text("all threads of block %u in the cluster have returned: its shared memory is gone", block.rank));
  if (actor.fiber && actor.fiber->block != &block) block.reached_into[actor.agent] = {actor.now, place};
  for (size_t i = offset / 2; i < (offset + bytes + 1) / 2; i++) {
    Cell& cell = block.cells[i];
    const auto name = [&] { return place_in_shared(block, i * 2); };
    if (needs_value(access) && !cell.write_clock)
      add_problem("uninitialised read", place, 0,
                  name() + text(" is %s by %s, and the block has not written it before", verb(access),
                                who(actor.agent).c_str()));
    if (bytes == 1)
      touch_half_cell(actor, cell, access, place);
    else
      touch_cell(actor, cell, access, place, name);
  }
}

// A block may end only when it knows that the others are done with its shared memory.
void check_nobody_reaches_in(Fiber& returned) {
  if (!launch.checks) return;
  Block& block = *returned.block;
  if (block.returned.seen.empty()) block.returned.reset(launch.agents);
  block.returned.join(returned.clock);
  if (block.live) return;
  for (auto& [agent, last] : block.reached_into)
    if (block.returned.seen[agent] < last.first)
      add_problem("finished block", last.second, 0,
                  text("%s reaches into block %u of the cluster, whose threads may have returned by then",
                       who(agent).c_str(), block.rank));
}

int buffer_of(const void* address, size_t bytes) {
  for (size_t i = 0; i < launch.buffers.size(); i++)
    if (address >= launch.buffers[i].start && (const char*)address + bytes <= launch.buffers[i].end) return i;
  return -1;
}

// Whether the kernels before have ended for sure: the actor, or somebody that it has met, waited for them.
bool has_awaited(const Actor& actor) {
  if (actor.fiber && !actor.fiber->may_be_early) return true;
  const size_t own = actor.agent / launch.agents_of_block();
  for (size_t i = 0; i < launch.blocks.size(); i++) {
    auto& awaited = launch.blocks[(own + i) % launch.blocks.size()]->awaited;
    for (auto& each : awaited)
      if (has_seen(actor, each.first, each.second)) {
        if (actor.fiber) actor.fiber->may_be_early = false;
        std::swap(each, awaited.front());  // others are likely to have met the same one
        return true;
      }
  }
  return false;
}

void touch_global(int at, const Actor& actor, const void* address, size_t bytes, Access access, Place place) {
  Buffer& buffer = launch.buffers[at];
  if (launch.early && !has_awaited(actor))
    add_problem("missing wait", place, 0,
                text("%s is %s by %s, which nobody told that the kernels before have ended: no "
                     "griddepcontrol.wait comes before",
                     place_in_buffer(buffer, (const char*)address).c_str(), verb(access), who(actor.agent).c_str()) +
                    fact("about", 0, "kernels before"));
  if (buffer.constant) return;
  const uint64_t start = (const char*)address - buffer.start;
  if (buffer.written) check_written(actor, buffer, start, bytes, access, place);
  for (uint64_t i = start / 2; i < (start + bytes + 1) / 2; i++) {
    Cell& cell = global_cell(buffer, i);
    const auto name = [&] { return place_in_buffer(buffer, buffer.start + i * 2); };
    check_between_clusters(actor, cell, access, place, name);
    if (!is_read(access)) cell.write_cluster = launch.cluster;
    if (is_read(access) && cell.write_clock && cell.write_cluster != launch.cluster) {
      remember_reader(actor, cell, access, place);
      continue;
    }
    if (bytes == 1)
      touch_half_cell(actor, cell, access, place);
    else
      touch_cell(actor, cell, access, place, name);
  }
}

// A new block's shared memory was touched by nobody.
void forget_cells(Block& block) {
  if (launch.cells.size() <= block.rank) launch.cells.resize(block.rank + 1);
  Cell*& cells = launch.cells[block.rank];
  if (!cells) cells = (Cell*)calloc(launch.storage_bytes / 2 + 16, sizeof(Cell));
  block.cells = cells;
  auto forget = [&](size_t start, size_t end) {
    for (size_t i = start / 2; i < (end + 1) / 2; i++) {
      if (cells[i].readers) launch.free_readers.push_back(cells[i].readers);
      cells[i] = Cell();
    }
  };
  const size_t dynamic = block.dynamic - block.storage;
  forget(0, dynamic + launch.dynamic_bytes);
  forget(dynamic + 232448, launch.storage_bytes);
}

void set_in_flight(const void* destination, size_t bytes, bool in_flight, Place place) {
  Block* block = shared_owner(destination);
  if (!block) return;
  const size_t offset = (const char*)destination - block->storage;
  for (size_t i = offset / 2; i < (offset + bytes) / 2; i++) {
    block->cells[i].in_flight = in_flight;
    block->cells[i].written_at = place;
  }
}

void touch(Fiber& fiber, const void* address, size_t bytes, Access access, Place place, bool counted) {
  if (is_own_stack(fiber, address)) {
    if (launch.checks) touch_registers(fiber, address, bytes, access, place);
    return;
  }
  if (inside(address, &threadIdx, sizeof threadIdx) || inside(address, &blockIdx, sizeof blockIdx)) return;
  Block* owner =
      inside(address, fiber.block->storage, launch.storage_bytes) ? fiber.block : shared_owner(address);
  if (owner) {
    if (launch.checks) {
      check_shared_bounds(fiber, *owner, (const char*)address, bytes, place);
      touch_shared(actor_of(fiber), *owner, (const char*)address - owner->storage, bytes, access, place);
    }
    if (counted && launch.counts) log_access(fiber, address, bytes, counted_as(access), place, -1);
    return;
  }
  const int buffer = buffer_of(address, bytes);
  if (buffer >= 0) {
    if (launch.checks) touch_global(buffer, actor_of(fiber), address, bytes, access, place);
    if (counted && launch.counts) log_access(fiber, address, bytes, counted_as(access), place, buffer);
    return;
  }
  if (inside(address, launch.image_start, launch.image_end - launch.image_start)) return;
  if (inside(address, &blockDim, sizeof blockDim) || inside(address, &gridDim, sizeof gridDim)) return;
  for (auto& block : launch.blocks)
    for (auto& other : block->fibers)
      if (is_own_stack(other, address)) return;  // the shim may look into other lanes' variables
  if (launch.arguments && launch.checks) out_of_bounds(fiber, (const char*)address, bytes, access, place);
}

void access(int thread, const void* address, size_t bytes, Access kind, Site site) {
  if (kind == Access::write) launch.changes++;
  touch(current->block->fibers[thread], address, bytes, kind, intern(site), false);
}

// memcpy and memset of more than a vector, by words where both ends allow it.
static size_t step_of(const void* one, const void* other, size_t bytes) {
  return ((uintptr_t)one | (uintptr_t)other | bytes) % 4 ? 1 : 4;
}

void* copy_bytes(void* to, const void* from, size_t bytes, Site site) {
  launch.changes++;
  const size_t step = step_of(to, from, bytes);
  for (size_t i = 0; i < bytes; i += step) {
    touch(*current, (const char*)from + i, step, Access::read, intern(site), true);
    touch(*current, (char*)to + i, step, Access::write, intern(site), true);
  }
  return memmove(to, from, bytes);
}

void* fill_bytes(void* to, int value, size_t bytes, Site site) {
  launch.changes++;
  const size_t step = step_of(to, to, bytes);
  for (size_t i = 0; i < bytes; i += step) touch(*current, (char*)to + i, step, Access::write, intern(site), true);
  return memset(to, value, bytes);
}

void store_16(void* destination, uint32_t x, uint32_t y, uint32_t z, uint32_t w, Site site) {
  const uint32_t words[] = {x, y, z, w};
  if ((uintptr_t)destination % sizeof words)
    fault("misaligned", site, "a store of 16 bytes at an address that is no multiple of 16, by %s",
          who(current->agent).c_str());
  if (shared_owner(destination)) fault("bad instruction", site, "the destination is not in global memory");
  touch(*current, destination, sizeof words, Access::write, intern(site), true);
  before_write(destination, sizeof words);
  memcpy(destination, words, sizeof words);
}

void add_floats(float* sums, const float* x, int count, Site site) {
  const size_t bytes = count * sizeof(float);
  if ((uintptr_t)sums % bytes)
    fault("misaligned", site, "an addition of %zu bytes at an address that is no multiple of it, by %s", bytes,
          who(current->agent).c_str());
  if (shared_owner(sums)) fault("bad instruction", site, "the destination is not in global memory");
  touch(*current, sums, bytes, Access::add, intern(site), true);
  launch.changes++;
  for (int i = 0; i < count; i++) sums[i] += x[i];
}

uint32_t shared_address(const void* address, Site site) {
  Block& block = *current->block;
  if (!inside(address, block.storage, launch.storage_bytes))
    fault("bad instruction", site, "the address is not in the block's shared memory");
  return (const char*)address - block.dynamic;
}

void check_tile(const void* address, Site site) {
  constexpr uint32_t SWIZZLE = 1024;  // bytes after which its pattern repeats
  if (const uint32_t past = shared_address(address, site) % SWIZZLE)
    fault("misaligned", site, "a tile of wgmma starts at a multiple of %u bytes, this one %u past one, by %s",
          SWIZZLE, past, who(current->agent).c_str());
}

int fragment_element(int use, int lane, int index) { return launch.permutation[use][lane * 8 + (index & 7)]; }

std::string place_of(const void* address) {
  if (Block* block = shared_owner(address)) return place_in_shared(*block, (const char*)address - block->storage);
  const int at = buffer_of(address, 1);
  return at < 0 ? "memory" : place_in_buffer(launch.buffers[at], (const char*)address);
}

// Who changed what a poll looks at, as far as that is known, and where.
std::string last_change(const void* address, Place poll, Place& where) {
  const Block* owner = shared_owner(address);
  const auto& changed = owner ? owner->changed : launch.changed;
  const auto known = changed.find(address);
  if (known != changed.end()) {
    where = known->second.first;
    return "this was last changed by " + known->second.second;
  }
  const Cell* cell = nullptr;
  if (owner) {
    if (owner->cells) cell = &owner->cells[((const char*)address - owner->storage) / 2];
  } else if (const int at = buffer_of(address, 1); at >= 0) {
    Buffer& buffer = launch.buffers[at];
    cell = &global_cell(buffer, ((const char*)address - buffer.start) / 2);
  }
  if (!cell || !cell->written_at || cell->written_at == poll) return "nobody has written this in the launch";
  where = cell->written_at;
  const bool here = owner || cell->write_cluster == launch.cluster;
  return "this was last written by " + (here ? who(cell->writer) : "another block");
}

// ---- atomics carry what their writers' fences released
void before_atomic(void* address, size_t bytes, Site site) {
  Fiber& fiber = *current;
  if ((uintptr_t)address % bytes)
    fault("misaligned", site, "an atomic of %zu bytes at an address that is no multiple of it", bytes);
  pause_at_atomic(address, intern(site));
  touch(fiber, address, bytes, Access::atomic, intern(site), true);
  carry(fiber, address, true, true);
}

void carry(Fiber& fiber, const void* address, bool acquire, bool release) {
  if (!launch.checks) return;
  const uint64_t key = (uint64_t)address;
  Block* owner = shared_owner(address);
  auto& everywhere = owner ? owner->atomics : launch.atomics;
  auto& here = fiber.block->atomics_here;
  if (acquire) {
    if (const auto carried = everywhere.find(key); carried != everywhere.end()) join_past(fiber.acquired, carried->second);
    if (const auto carried = here.find(key); carried != here.end()) join_past(fiber.acquired_here, carried->second);
  }
  if (release && fiber.released) join_past(everywhere[key], *fiber.released);
  if (release && fiber.released_here) join_past(here[key], *fiber.released_here);
}
}  // namespace cpu
