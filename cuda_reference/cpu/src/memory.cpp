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
  if (in_dynamic >= 0 && in_dynamic < 232448) return text("shared memory at byte %ld", in_dynamic) + of;
  return text("static shared memory at byte %zu", offset) + of;
}

const char* verb(Access access) {
  return access == Access::read ? "read" : access == Access::write ? "written" : "changed by an atomic";
}

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
  if (!is_thread(actor.agent) || !is_thread(other)) return "wait";
  if (actor.agent / per_block != other / per_block) return "cluster barrier";
  return actor.agent % per_block / 32 == other % per_block / 32 ? "__syncwarp or barrier" : "barrier";
}

void check_against_writer(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (!cell.write_clock || cell.writer == actor.agent) return;
  if (cell.atomic && access == Access::atomic) return;
  const Access before = cell.atomic ? Access::atomic : Access::write;
  if (!has_seen(actor, cell.writer, cell.write_clock)) {
    report_race(race_kind(actor, cell.writer), actor, access, place, name(), cell.writer, before,
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

Readers* new_readers() {
  if (launch.free_readers.empty()) return &launch.readers.emplace_back();
  Readers* readers = launch.free_readers.back();
  launch.free_readers.pop_back();
  readers->count = 0;
  return readers;
}

void remember_reader(const Actor& actor, Cell& cell, Place place) {
  if (!cell.readers) cell.readers = new_readers();
  Reader *list = cell.readers->list, *end = list + cell.readers->count;
  Reader* mine = std::find_if(list, end, [&](Reader& reader) { return reader.agent == actor.agent; });
  if (mine == end && cell.readers->count < READERS)
    cell.readers->count++;
  else if (mine == end) {  // forgets one of the same warp, or any
    mine = std::find_if(list, end, [&](Reader& reader) { return reader.agent / 32 == actor.agent / 32; });
    if (mine == end) mine = list + actor.agent % READERS;
  }
  *mine = {actor.agent, actor.now, place};
}

void check_against_readers(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (!cell.readers) return;
  for (int i = 0; i < cell.readers->count; i++) {
    const Reader& reader = cell.readers->list[i];
    if (reader.agent == actor.agent || has_seen(actor, reader.agent, reader.clock)) continue;
    report_race(race_kind(actor, reader.agent), actor, access, place, name(), reader.agent, Access::read,
                reader.place, missing_between(actor, reader.agent));
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
  cell.atomic = access == Access::atomic;
}

// One byte is half a cell: who touched the other half is no matter, and whoever touches both is checked.
void touch_half_cell(const Actor& actor, Cell& cell, Access access, Place place) {
  if (access != Access::read) remember_writer(actor, cell, access, place);
}

void touch_cell(const Actor& actor, Cell& cell, Access access, Place place, const auto& name) {
  if (cell.in_flight)
    add_problem("missing wait", place, cell.written_at,
                name() + text(" is %s by %s before the cp.async that fills it was waited for", verb(access),
                              who(actor.agent).c_str()));
  check_against_writer(actor, cell, access, place, name);
  check_proxy(actor, cell, access, place, name);
  if (access == Access::read) return remember_reader(actor, cell, place);
  check_against_readers(actor, cell, access, place, name);
  remember_writer(actor, cell, access, place);
}

Cell& global_cell(Buffer& buffer, uint64_t index) {
  auto& page = buffer.pages[index / PAGE_CELLS];
  if (page.empty()) page.resize(PAGE_CELLS);
  return page[index % PAGE_CELLS];
}

// Whether the actor knows, by way of atomics and fences, what an agent of an earlier cluster did.
bool knew(const Actor& actor, uint32_t cluster, uint16_t agent, uint32_t clock) {
  if (!actor.fiber) return false;
  auto known = actor.fiber->past.find(cluster);
  return known != actor.fiber->past.end() && (*known->second)[agent] >= clock;
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
    const bool both_atomic = cell.atomic && access == Access::atomic;
    if (!both_atomic && !knew(actor, cell.write_cluster, cell.writer, cell.write_clock))
      report_blocks(actor, access, place, name(), cell.atomic ? Access::atomic : Access::write,
                    cell.written_at);
    if (access != Access::read) cell.write_clock = 0;
  }
  if (cell.readers && cell.readers->count && cell.read_cluster != launch.cluster) {
    const Reader reader = cell.readers->list[0];
    if (access != Access::read && !knew(actor, cell.read_cluster, reader.agent, reader.clock))
      report_blocks(actor, access, place, name(), Access::read, reader.place);
    cell.readers->count = 0;
  }
}

std::string place_in_buffer(const Buffer& buffer, const char* address) {
  return text("%s at byte %zu", buffer.name.c_str(), (size_t)(address - buffer.start));
}

[[noreturn]] void out_of_bounds(const Fiber& fiber, const char* address, size_t bytes, Access access,
                                Place place) {
  const Buffer* nearest = nullptr;
  size_t distance = 1 << 24;
  for (auto& buffer : launch.buffers) {
    const size_t away = address < buffer.start ? buffer.start - address : address + bytes - buffer.end;
    if (away < distance) nearest = &buffer, distance = away;
  }
  std::string where =
      nearest ? text("%zu bytes %s %s", distance, address < nearest->start ? "before" : "past the end of",
                     nearest->name.c_str())
              : text("address %p, near no array of the launch", (const void*)address);
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
}  // namespace

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
    if (access == Access::read && !cell.write_clock)
      add_problem("uninitialised read", place, 0,
                  name() + text(" is read by %s, and the block never wrote it", who(actor.agent).c_str()));
    if (bytes == 1)
      touch_half_cell(actor, cell, access, place);
    else
      touch_cell(actor, cell, access, place, name);
  }
}

// A block may end only when it knows that the others are done with its shared memory.
void check_nobody_reaches_in(Fiber& returned) {
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

void touch_global(const Actor& actor, const void* address, size_t bytes, Access access, Place place) {
  const int at = buffer_of(address, bytes);
  if (at < 0) return;
  Buffer& buffer = launch.buffers[at];
  if (buffer.constant) return;
  const uint64_t start = (const char*)address - buffer.start;
  for (uint64_t i = start / 2; i < (start + bytes + 1) / 2; i++) {
    Cell& cell = global_cell(buffer, i);
    const auto name = [&] { return place_in_buffer(buffer, buffer.start + i * 2); };
    if (access == Access::read && buffer.scratch && !cell.write_clock)
      add_problem("uninitialised read", place, 0,
                  name() + text(" is read by %s, and nobody wrote it", who(actor.agent).c_str()));
    check_between_clusters(actor, cell, access, place, name);
    (access == Access::read ? cell.read_cluster : cell.write_cluster) = launch.cluster;
    if (access == Access::read && cell.write_clock && cell.write_cluster != launch.cluster) {
      remember_reader(actor, cell, place);
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
    if (launch.checks && is_accumulator_in_use(fiber, address))
      add_problem("missing wait", place, 0,
                  text("a wgmma accumulator is %s before wgmma.wait_group, by %s", verb(access),
                       who(fiber.agent).c_str()));
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
    if (counted && launch.counts) log_access(fiber, address, bytes, access, place, -1);
    return;
  }
  const int buffer = buffer_of(address, bytes);
  if (buffer >= 0) {
    if (launch.checks) touch_global(actor_of(fiber), address, bytes, access, place);
    if (counted && launch.counts) log_access(fiber, address, bytes, access, place, buffer);
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

uint32_t shared_address(const void* address, Site site) {
  Block& block = *current->block;
  if (!inside(address, block.storage, launch.storage_bytes))
    fault("bad instruction", site, "the address is not in the block's shared memory");
  return (const char*)address - block.dynamic;
}

void check_tile(const void* address, Site site) {
  constexpr uint32_t SWIZZLE = 1024;  // bytes after which its pattern repeats
  if (const uint32_t behind = shared_address(address, site) % SWIZZLE)
    fault("misaligned", site, "a tile of wgmma starts at a multiple of %u bytes, this one %u behind one, by %s",
          SWIZZLE, behind, who(current->agent).c_str());
}

int fragment_element(int use, int lane, int index) { return launch.permutation[use][lane * 8 + (index & 7)]; }

std::string place_of(const void* address) {
  if (Block* block = shared_owner(address)) return place_in_shared(*block, (const char*)address - block->storage);
  const int at = buffer_of(address, 1);
  return at < 0 ? "memory" : place_in_buffer(launch.buffers[at], (const char*)address);
}

// Who changed what a poll looks at, as far as that is known, and where.
std::string last_change(const void* address, Place poll, Place& where) {
  const auto known = launch.changed.find(address);
  if (known != launch.changed.end()) {
    where = known->second.first;
    return "this was last changed by " + known->second.second;
  }
  const Cell* cell = nullptr;
  if (Block* block = shared_owner(address)) {
    if (block->cells) cell = &block->cells[((const char*)address - block->storage) / 2];
  } else if (const int at = buffer_of(address, 1); at >= 0) {
    Buffer& buffer = launch.buffers[at];
    cell = &global_cell(buffer, ((const char*)address - buffer.start) / 2);
  }
  if (!cell || !cell->written_at || cell->written_at == poll) return "nobody has written this in the launch";
  where = cell->written_at;
  const bool here = shared_owner(address) || cell->write_cluster == launch.cluster;
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
  Past& carried = launch.atomics[(uint64_t)address];
  if (acquire) join_past(fiber.acquired, carried);
  if (!release || !fiber.released) return;
  Past mine = fiber.released_past;
  mine[launch.cluster] = fiber.released;
  join_past(carried, mine);
}
}  // namespace cpu
