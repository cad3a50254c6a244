// The tensor memory accelerator and bulk copies: boxes of tensors, and bytes in a row.
#include <algorithm>
#include "runtime.h"

namespace cpu {
namespace {
struct TensorMapBytes {  // as cpu/arguments.py packs it
  const char* base;
  uint32_t rank, element_bytes;
  uint64_t extent[5], stride_bytes[5];
  uint32_t box[5], swizzle_bytes, magic;
};
constexpr uint32_t MAGIC = 0x7e45f1a5;

const TensorMapBytes& read_map(const ptx::TensorMap* map, size_t rank, Site site) {
  auto& tensor = *(const TensorMapBytes*)map;
  if (tensor.magic != MAGIC) fault("bad instruction", site, "the argument is not a tensor map");
  if (tensor.rank != rank)
    fault("bad instruction", site, "the tensor map has %u dimensions, the instruction %zu", tensor.rank,
          rank);
  return tensor;
}

size_t swizzled(size_t offset, uint32_t bytes) {
  const size_t rows = bytes / 16;  // 8, 4 or 2 rows of 128 bytes repeat the pattern
  return bytes ? offset ^ (offset >> 7 & (rows - 1)) << 4 : offset;
}

// Calls visit(shared offset, global address, bytes before the tensor, bytes up to its end) for every 16 bytes of
// the box. Addresses count modulo 2^64, as the engine's do.
template <class Visit>
void for_each_chunk(const TensorMapBytes& map, const int* coordinates, size_t start, Visit visit) {
  const size_t row_bytes = map.box[0] * map.element_bytes;
  size_t rows = 1;
  for (uint32_t i = 1; i < map.rank; i++) rows *= map.box[i];
  for (size_t row = 0; row < rows; row++) {
    uint64_t source = (uint64_t)map.base;
    bool inside = true;
    size_t rest = row;
    for (uint32_t i = 1; i < map.rank; i++) {
      const long at = coordinates[i] + (long)(rest % map.box[i]);
      rest /= map.box[i];
      inside &= at >= 0 && at < (long)map.extent[i];
      source += (uint64_t)at * map.stride_bytes[i];
    }
    for (size_t x = 0; x < row_bytes; x += 16) {
      const long first = coordinates[0] + (long)(x / map.element_bytes), per_chunk = 16 / map.element_bytes;
      const long within = inside ? std::clamp<long>((long)map.extent[0] - first, 0, per_chunk) : 0;
      const long before = std::clamp<long>(-first, 0, within);
      visit(swizzled(start + row * row_bytes + x, map.swizzle_bytes),
            (const char*)(source + (uint64_t)first * map.element_bytes), before * map.element_bytes,
            within * map.element_bytes);
    }
  }
}

size_t check_tile(const TensorMapBytes& map, const void* tile, Site site) {
  const size_t alignment = map.swizzle_bytes ? map.swizzle_bytes * 8 : 128;
  const uint32_t offset = shared_address(tile, site);
  if (offset % alignment)
    fault("misaligned", site, "with this tensor map a tile starts at a multiple of %zu bytes, this one at %u",
          alignment, offset);
  return offset;
}

Mbarrier& announced(uint64_t* address, Site site) {
  Mbarrier& mbarrier = mbarrier_at(address, site);
  if (!mbarrier.announced)
    problem("missing fence", site,
            "the copy engine counts on an mbarrier with no fence_mbarrier_init or fence_proxy_async after "
            "its mbarrier_init%s",
            fact("about", 0, "initialisation").c_str());
  return mbarrier;
}

template <class T>
T* in_block(T* address, uint32_t rank) {
  return (T*)((char*)address - current->block->storage + launch.blocks[rank]->storage);
}
}  // namespace

void tma_load(void* destination, const ptx::TensorMap* map, uint64_t* address,
              std::initializer_list<int> coordinates, unsigned ranks, Site site) {
  auto& tensor = read_map(map, coordinates.size(), site);
  const size_t start = check_tile(tensor, destination, site);
  const Place place = intern(site);
  const auto receives = [&](uint32_t rank) {
    return ranks ? bool(ranks >> rank & 1) : rank == current->block->rank;
  };
  std::vector<Mbarrier*> counting;
  for (uint32_t rank = 0; rank < launch.blocks.size(); rank++)
    counting.push_back(receives(rank) ? &announced(in_block(address, rank), site) : nullptr);
  auto transfer = new_transfer(*current, true);  // after the look at the mbarriers, as in store_async
  size_t bytes = 0;
  for (uint32_t rank = 0; rank < launch.blocks.size(); rank++) {
    if (!receives(rank)) continue;
    bytes = 0;
    for_each_chunk(tensor, coordinates.begin(), start, [&](size_t offset, const char* source, int before, int end) {
      char* const destination = launch.blocks[rank]->dynamic + offset;
      if (before) add_copy(*transfer, destination, source, before, 0, place);  // zeros
      add_copy(*transfer, destination + before, source + before, 16 - before, end - before, place);
      bytes += 16;
    });
    transfer->completes.push_back({counting[rank], bytes});
  }
  if (launch.counts) count_bulk(place, "tma load", tensor.base, bytes);
  issue(transfer);
}

static void issue_store(const std::shared_ptr<Transfer>& transfer) {
  issue(transfer);
  current->open_stores.push_back(transfer);
}

void tma_store(const ptx::TensorMap* map, const void* source, std::initializer_list<int> coordinates,
               Site site) {
  auto& tensor = read_map(map, coordinates.size(), site);
  const size_t start = check_tile(tensor, source, site);
  const Place place = intern(site);
  auto transfer = new_transfer(*current, true);
  give_writer(*transfer);
  size_t bytes = 0;
  for_each_chunk(tensor, coordinates.begin(), start, [&](size_t offset, const char* global, int before, int end) {
    const int inside = end - before;
    const char* const source = current->block->dynamic + offset + before;
    if (inside) add_copy(*transfer, (char*)global + before, source, inside, inside, place);
    bytes += inside;
  });
  if (launch.counts) count_bulk(place, "tma store", tensor.base, bytes);
  if (bytes) issue_store(transfer);
}

static void check_bulk(const void* one, const void* other, uint32_t bytes, Site site) {
  if (bytes % 16 || (uintptr_t)one % 16 || (uintptr_t)other % 16)
    fault("misaligned", site, "a bulk copy needs addresses and a size that are multiples of 16");
}

void bulk_load(void* destination, const void* source, uint32_t bytes, uint64_t* address, Site site) {
  check_bulk(destination, source, bytes, site);
  touch(*current, source, bytes, Access::read, intern(site), false);
  auto transfer = new_transfer(*current, true);
  add_copy(*transfer, destination, source, bytes, bytes, intern(site));
  transfer->completes.push_back({&announced(address, site), bytes});
  if (launch.counts) count_bulk(intern(site), "bulk load", source, bytes);
  issue(transfer);
}

void bulk_store(void* destination, const void* source, uint32_t bytes, bool add, Site site) {
  check_bulk(destination, source, bytes, site);
  auto transfer = new_transfer(*current, true);
  give_writer(*transfer);
  transfer->add = add;
  if (buffer_of(destination, bytes) < 0)
    touch(*current, destination, bytes, Access::write, intern(site), false);  // reports
  add_copy(*transfer, destination, source, bytes, bytes, intern(site));
  if (launch.counts) count_bulk(intern(site), add ? "bulk add" : "bulk store", destination, bytes);
  issue_store(transfer);
}

void bulk_copy_to_rank(void* destination, const void* source, uint32_t bytes, uint64_t* address,
                       uint32_t rank, Site site) {
  check_bulk(destination, source, bytes, site);
  auto transfer = new_transfer(*current, true);
  add_copy(*transfer, remote(destination, rank, site), source, bytes, bytes, intern(site));
  transfer->completes.push_back({&announced((uint64_t*)remote(address, rank, site), site), bytes});
  if (launch.counts) count_message(intern(site), "bulk copy", rank, bytes);
  issue(transfer);
}

void store_async(void* destination, const void* value, uint32_t bytes, uint64_t* address, uint32_t rank,
                 Site site) {
  Mbarrier& mbarrier = announced((uint64_t*)remote(address, rank, site), site);
  auto transfer = new_transfer(*current, true);  // after the look at the mbarrier: a thread that waits knows of it
  add_value(*transfer, remote(destination, rank, site), value, bytes, intern(site));
  transfer->completes.push_back({&mbarrier, bytes});
  if (launch.counts) {
    count_message(intern(site), "store async", rank, bytes);
    // The message travels while the products of this warp run.
    const Fiber& fiber = *current;
    if (!fiber.block->products[fiber.warp()].groups.empty()) count_event(intern(site), "store under way", 1);
  }
  issue(transfer);
}

void bulk_commit(Site) {
  current->store_groups.push_back({std::move(current->open_stores), {}});
  current->open_stores.clear();
}

// The source of a group may be written again once it was read, the destination be read once all has come.
void bulk_wait(int pending, bool read_only, Site) {
  auto& groups = current->store_groups;
  const size_t finished = groups.size() > (size_t)pending ? groups.size() - pending : 0;
  for (size_t i = 0; i < finished; i++) {
    StoreGroup& group = groups[i];
    if (!group.transfers.empty()) group.written.reset(launch.agents);
    for (auto& transfer : group.transfers) {
      deliver(*transfer);
      current->clock.join(transfer->clock);
      group.written.seen[transfer->writer] = group.written.fenced[transfer->writer] = transfer->written;
    }
    group.transfers.clear();
    if (!read_only && !group.written.seen.empty()) current->clock.join(group.written);
  }
  if (!read_only) groups.erase(groups.begin(), groups.begin() + finished);
  current->tick();
}

void* remote(const void* address, uint32_t rank, Site site) {
  if (rank >= launch.blocks.size())
    fault("bad instruction", site, "the cluster has %zu blocks, there is no block %u", launch.blocks.size(),
          rank);
  shared_address(address, site);
  return in_block((char*)address, rank);
}
}  // namespace cpu
