// Counting. The accesses of a warp's lanes at one place and one visit form a request. Lanes run one after
// another here, so each lane's accesses are logged and put together when all lanes of the warp have met: then
// the k-th access of every lane at a place is the k-th request. The rules of sectors and wavefronts are those
// of an H200.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include "runtime.h"

namespace cpu {
namespace {
constexpr int WARP = 32, BANKS = 32, WORD = 4, SECTOR = 32, LINE = 128;
const char* const OPERATIONS[] = {"load", "store", "atomic"};

struct Request {
  uint64_t address[WARP], source[WARP] = {};
  bool here[WARP] = {};
  uint32_t bytes = 0;
};

// Do any two active lanes that differ in `bit` touch the same element?
bool pairs_agree(const Request& request, int bit) {
  for (int i = 0; i < WARP; i++)
    if (request.here[i] && request.here[i ^ bit] && request.address[i] != request.address[i ^ bit])
      return false;
  return true;
}

// How many distinct words the busiest bank has among the lanes from `start` on; a word is `unit` bytes.
int busiest_bank(const Request& request, int start, int width, int unit) {
  const int banks = BANKS * WORD / unit;
  uint64_t words[WARP];
  int count = 0, per_bank[BANKS] = {}, most = 0;
  for (int i = start; i < start + width; i++) {
    if (!request.here[i]) continue;
    const uint64_t word = request.address[i] / unit;
    if (std::find(words, words + count, word) != words + count) continue;
    words[count++] = word;
    most = std::max(most, ++per_bank[word % banks]);
  }
  return most;
}

// The wavefronts of lanes that each copy 16 bytes past L1. The copy works on sectors: each wavefront writes
// into one line of shared memory, and of a line of global memory, what each sector has for one sector there.
// A sector that begins in the middle of one there takes two, and is fetched twice.
uint64_t copy_wavefronts(const Request& request) {
  std::set<std::array<uint64_t, 2>> parts;  // sectors from and to
  for (int i = 0; i < WARP; i++)
    if (request.source[i]) parts.insert({request.source[i] / SECTOR, request.address[i] / SECTOR});
  std::map<std::array<uint64_t, 3>, uint64_t> into_line;  // a sector's parts in one line of shared memory
  for (auto& [from, to] : parts) into_line[{from * SECTOR / LINE, to * SECTOR / LINE, from}]++;
  std::map<std::array<uint64_t, 2>, uint64_t> most;
  for (auto& [key, parts_of_sector] : into_line) {
    uint64_t& here = most[{key[0], key[1]}];
    here = std::max(here, parts_of_sector);
  }
  uint64_t wavefronts = 0;
  for (auto& [lines, here] : most) wavefronts += here;
  return wavefronts;
}

// A store's passes never join: eight lanes that each store 16 bytes, one of each four, took four wavefronts on
// an H200, where a load of theirs takes two.
void count_wavefronts(const Request& request, int access, Traffic& traffic) {
  const int unit = std::max<int>(WORD, request.bytes);
  const bool joined = access == (int)Access::read && (pairs_agree(request, 1) || pairs_agree(request, 2));
  const int width = unit > WORD ? WARP * WORD / unit * (joined ? 2 : 1) : WARP;
  Request direct = request;
  for (int i = 0; i < WARP; i++) direct.here[i] = request.here[i] && !request.source[i];
  uint64_t wavefronts = copy_wavefronts(request), ideal = 0;
  for (int start = 0; start < WARP; start += width) {
    wavefronts += busiest_bank(direct, start, width, unit);
    ideal += busiest_bank(request, start, width, unit) > 0;
  }
  traffic.wavefronts += wavefronts;
  traffic.ideal += ideal;
  traffic.worst = std::max(traffic.worst, wavefronts);
}

uint64_t distinct(uint64_t* values, int count) {
  std::sort(values, values + count);
  return std::unique(values, values + count) - values;
}

void count_request(const Request& request, Place place, int access, int buffer) {
  Traffic& traffic = launch.traffic[{place, OPERATIONS[access], buffer}];
  uint64_t addresses[WARP], sectors[2 * WARP];
  int lanes = 0, touched = 0;
  for (int i = 0; i < WARP; i++) {
    if (!request.here[i]) continue;
    addresses[lanes++] = request.address[i];
    sectors[touched++] = request.address[i] / SECTOR;
    sectors[touched++] = (request.address[i] + request.bytes - 1) / SECTOR;
  }
  traffic.requests++;
  traffic.lanes += lanes;
  traffic.requested_bytes += lanes * request.bytes;
  traffic.unique_bytes += distinct(addresses, lanes) * request.bytes;
  if (buffer < 0) return count_wavefronts(request, access, traffic);
  const uint64_t moved = distinct(sectors, touched);
  traffic.sectors += moved;
  traffic.worst = std::max(traffic.worst, moved);
}

uint64_t address_for_counting(const Fiber& fiber, const void* address, int buffer) {
  if (buffer >= 0) return (uint64_t)address;
  Block* owner = shared_owner(address);
  return (uint64_t)((const char*)address - (owner ? owner : fiber.block)->dynamic) + (1 << 20);
}
}  // namespace

// A lane that is this far ahead lets the others catch up; a log this long is counted as far as it is complete.
constexpr uint32_t AHEAD = 2048;
constexpr size_t LONG_LOG = 2 * WARP * AHEAD;

void log_access(Fiber& fiber, const void* address, size_t bytes, Access access, Place place, int buffer,
                const void* source) {
  if (buffer == -2) address = nullptr;
  const uint64_t at = buffer == -2 ? 0 : address_for_counting(fiber, address, buffer);
  Block& block = *fiber.block;
  const int warp = fiber.warp(), lane = fiber.lane();
  block.log[warp].push_back({place, at, (uint64_t)source, (uint32_t)bytes, 0, (uint8_t)access,
                             (uint8_t)(buffer == -1), (uint8_t)lane, (uint8_t)(buffer + 2)});
  if (++block.logged[warp][lane] % AHEAD == 0) heeded |= LOG_FULL;
  if (block.log[warp].size() >= LONG_LOG) trim_log(block, warp);
}

namespace {
bool same_place(const Logged& a, const Logged& b) {
  return a.place == b.place && a.access == b.access && a.buffer == b.buffer && a.bytes == b.bytes;
}

// The lanes that may touch memory before the warp meets.
uint32_t lanes_under_way(const Block& block, int warp) {
  uint32_t lanes = 0;
  for (int i = 0; i < WARP && warp * WARP + i < launch.threads; i++) {
    const State state = block.fibers[warp * WARP + i].state;
    lanes |= (uint32_t)(state == State::ready || state == State::polling) << i;
  }
  return lanes;
}

// Counts the requests in a log. Those that one of the lanes in `open` may still join stay in it.
void count_log(std::vector<Logged>& log, uint32_t open) {
  auto key = [](const Logged& l) { return std::make_tuple(l.place, l.access, l.buffer, l.bytes); };
  std::stable_sort(log.begin(), log.end(), [&](const Logged& a, const Logged& b) {
    return std::make_tuple(key(a), a.lane) < std::make_tuple(key(b), b.lane);
  });
  for (size_t i = 1; i < log.size(); i++)
    if (same_place(log[i], log[i - 1]) && log[i].lane == log[i - 1].lane) log[i].visit = log[i - 1].visit + 1;
  std::sort(log.begin(), log.end(), [&](const Logged& a, const Logged& b) {
    return std::make_tuple(key(a), a.visit, a.lane) < std::make_tuple(key(b), b.visit, b.lane);
  });
  size_t kept = 0;
  for (size_t start = 0, end; start < log.size(); start = end) {
    Request request;
    uint32_t lanes = 0;
    for (end = start;
         end < log.size() && same_place(log[end], log[start]) && log[end].visit == log[start].visit; end++) {
      lanes |= 1u << log[end].lane;
      request.here[log[end].lane] = true;
      request.address[log[end].lane] = log[end].address;
      request.source[log[end].lane] = log[end].source;
    }
    if (open & ~lanes) {
      for (size_t i = start; i < end; i++) {
        log[kept] = log[i];
        log[kept++].visit = 0;
      }
      continue;
    }
    request.bytes = log[start].bytes;
    if (log[start].buffer == 0)
      count_event(log[start].place, "barrier");
    else
      count_request(request, log[start].place, log[start].access, (int)log[start].buffer - 2);
  }
  log.resize(kept);
}
}  // namespace

void flush_warp(Block& block, int warp) {
  auto& log = block.log[warp];
  if (log.empty()) return;
  count_log(log, 0);
  block.logged[warp].fill(0);
}

void trim_log(Block& block, int warp) {
  auto& log = block.log[warp];
  count_log(log, lanes_under_way(block, warp));
  if (log.size() > LONG_LOG / 2) flush_warp(block, warp);
  block.logged[warp].fill(0);
  for (const Logged& left : log) block.logged[warp][left.lane]++;
}

void count_event(Place place, const char* operation, uint64_t lanes) {
  Traffic& traffic = launch.traffic[{place, operation, -2}];
  traffic.requests++;
  traffic.lanes += lanes;
}

void count_bulk(Place place, const char* operation, const void* address, size_t bytes) {
  Traffic& traffic = launch.traffic[{place, operation, buffer_of(address, 1)}];
  traffic.requests++;
  traffic.requested_bytes += bytes;
  traffic.unique_bytes += bytes;
  traffic.sectors += bytes / SECTOR;
}

// Into block `rank` of the cluster; what stands for the buffer names both blocks.
void count_message(Place place, const char* operation, uint32_t rank, size_t bytes) {
  const int from_and_to = current->block->rank * MOST_BLOCKS + rank;
  Traffic& traffic = launch.traffic[{place, operation, -3 - from_and_to}];
  traffic.requests++;
  traffic.requested_bytes += bytes;
  traffic.unique_bytes += bytes;
}

// ldmatrix, stmatrix: eight rows of 16 bytes are served at a time.
void count_rows(Access access, const void* const* rows, int count, Site site) {
  if (!launch.counts) return;
  if (!shared_owner(rows[0])) return count_lanes(access, rows, 16, site);
  Traffic& traffic = launch.traffic[{intern(site), OPERATIONS[(int)access], -1}];
  uint64_t wavefronts = 0;
  for (int start = 0; start < count; start += 8) {
    Request request;
    request.bytes = 16;
    for (int i = 0; i < 8; i++) {
      request.here[i] = true;
      request.address[i] = address_for_counting(*current, rows[start + i], -1);
    }
    wavefronts += busiest_bank(request, 0, 8, 16);
    traffic.ideal++;
  }
  traffic.requests++;
  traffic.lanes += WARP;
  traffic.requested_bytes += count * 16;
  traffic.unique_bytes += count * 16;
  traffic.wavefronts += wavefronts;
  traffic.worst = std::max(traffic.worst, wavefronts);
}

void count_lanes(Access access, const void* const* addresses, size_t bytes, Site site) {
  if (!launch.counts) return;
  const int buffer = shared_owner(addresses[0]) ? -1 : buffer_of(addresses[0], bytes);
  if (buffer == -1 && !shared_owner(addresses[0])) return;
  Request request;
  request.bytes = bytes;
  for (int i = 0; i < WARP; i++) {
    request.here[i] = true;
    request.address[i] = address_for_counting(*current, addresses[i], buffer);
  }
  count_request(request, intern(site), (int)access, buffer);
}
}  // namespace cpu
