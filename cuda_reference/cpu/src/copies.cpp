// Copies that work beside the threads: cp.async, transfers, and the mbarriers that count them. A copy's
// destination is poisoned when it is issued and filled when it is waited for, or, for what an mbarrier
// counts, at some time before: so a missing wait shows in the values as well.
#include <algorithm>
#include <tuple>
#include "runtime.h"

namespace cpu {
namespace {
void fill(const Copy& copy, bool add) {
  launch.changes++;
  if (add) {
    for (int i = 0; i < copy.bytes / 4; i++) ((float*)copy.destination)[i] += ((const float*)copy.source)[i];
    return;
  }
  memcpy(copy.destination, copy.source, copy.source_bytes);
  memset(copy.destination + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

void do_by_engine(Piece& piece);

// A copy that an mbarrier counts too is the engine's, whether or not the thread waits first.
void finish_by_thread(Fiber& fiber, Piece& piece) {
  if (piece.written) {
    do_by_engine(piece);
    fiber.clock.seen[piece.writer] = std::max(fiber.clock.seen[piece.writer], piece.written);
    return;
  }
  for (auto& copy : piece.copies) {
    if (launch.checks && memcmp(copy.before, copy.source, copy.source_bytes))
      add_problem("missing wait", copy.place, 0,
                  text("what this cp.async copies was changed before it was waited for, by %s",
                       who(fiber.agent).c_str()));
    fill(copy, false);
    if (!launch.checks) continue;
    set_in_flight(copy.destination, copy.bytes, false, copy.place);
    touch(fiber, copy.destination, copy.bytes, Access::write, copy.place, false);
  }
  piece.done = true;
}

// ---- mbarriers
void complete_phase(Mbarrier& mbarrier) {
  if (mbarrier.pending || mbarrier.bytes) return;
  mbarrier.phase++;
  launch.meetings++;
  mbarrier.pending = mbarrier.arrivals;
  mbarrier.released = mbarrier.arriving;
  mbarrier.arriving.reset(launch.agents);
  for (auto& block : launch.blocks)
    for (Fiber& fiber : block->fibers)
      if (fiber.state == State::at_mbarrier && fiber.mbarrier == &mbarrier &&
          (mbarrier.phase & 1) != fiber.parity)
        make_ready(fiber);
}

void arrive(Mbarrier& mbarrier, const Clock& clock, Site site) {
  if (mbarrier.pending <= 0)
    fault("bad instruction", site, "more arrivals than the %d of the mbarrier%s", mbarrier.arrivals,
          fact("about", 0, "arrivals").c_str());
  mbarrier.arriving.join(clock);
  mbarrier.pending--;
}

}  // namespace

// ---- transfers
static std::pair<uint16_t, uint32_t> new_engine(Block& block) {
  const uint32_t engine = block.next_engine++ % ENGINES;
  return {block.rank * launch.agents_of_block() + launch.threads + launch.warps + engine,
          ++block.engine_clocks[engine]};
}

std::shared_ptr<Transfer> new_transfer(Fiber& fiber, bool async_proxy) {
  auto transfer = std::make_shared<Transfer>();
  const auto [agent, now] = new_engine(*fiber.block);
  transfer->agent = transfer->writer = agent;
  transfer->clock = fiber.clock;
  transfer->clock.seen[agent] = transfer->clock.fenced[agent] = transfer->written = now;
  transfer->async_proxy = async_proxy;
  launch.fences = true;
  fiber.tick();
  return transfer;
}

void give_writer(Transfer& transfer) {
  std::tie(transfer.writer, transfer.written) = new_engine(*current->block);
}

static Actor actor_of(Transfer& transfer, Access access) {
  if (access == Access::read) return {transfer.agent, &transfer.clock, transfer.clock.seen[transfer.agent],
                                      transfer.async_proxy, nullptr};
  return {transfer.writer, &transfer.clock, transfer.written, transfer.async_proxy, nullptr};
}

// Either end of a copy, when it is issued.
static void touch_end(Transfer& transfer, const void* address, size_t bytes, Access access, Place place) {
  if (!launch.checks || !bytes) return;
  if (Block* block = shared_owner(address))
    return touch_shared(actor_of(transfer, access), *block, (const char*)address - block->storage, bytes, access,
                        place);
  const int buffer = buffer_of(address, bytes);
  if (buffer < 0) return touch(*current, address, bytes, access, place, false);  // reports
  touch_global(buffer, actor_of(transfer, access), address, bytes, access, place);
}

void add_copy(Transfer& transfer, void* destination, const void* source, int bytes, int source_bytes,
              Place place) {
  touch_end(transfer, destination, bytes, transfer.add ? Access::add : Access::write, place);
  if (source_bytes) touch_end(transfer, source, source_bytes, Access::read, place);
  if (shared_owner(destination)) memset(destination, 0xff, bytes);
  transfer.copies.push_back({(char*)destination, (const char*)source, bytes, source_bytes, place, {}});
}

void add_value(Transfer& transfer, void* destination, const void* value, int bytes, Place place) {
  touch_end(transfer, destination, bytes, Access::write, place);
  memset(destination, 0xff, bytes);
  memcpy(transfer.value, value, bytes);
  transfer.copies.push_back({(char*)destination, transfer.value, bytes, bytes, place, {}});
}

namespace {
void do_by_engine(Piece& piece) {
  if (piece.done) return;
  piece.done = true;
  const auto engine = piece.engine.lock();
  for (auto& copy : piece.copies) {
    fill(copy, false);
    if (!launch.checks) continue;
    set_in_flight(copy.destination, copy.bytes, false, copy.place);  // until now it was
    touch_end(*engine, copy.destination, copy.bytes, Access::write, copy.place);
  }
  piece.copies.clear();
}
}  // namespace

void deliver(Transfer& transfer) {
  if (*transfer.done) return;
  *transfer.done = true;
  for (auto& copy : transfer.copies) fill(copy, transfer.add);
  for (auto& piece : transfer.pieces) do_by_engine(*piece);
  for (auto& [mbarrier, bytes] : transfer.completes) {
    mbarrier->arriving.join(transfer.clock);
    if (bytes < 0)
      mbarrier->pending--;
    else
      mbarrier->bytes -= bytes;
    complete_phase(*mbarrier);
  }
}

void issue(const std::shared_ptr<Transfer>& transfer) {
  transfer->done = std::make_shared<bool>(false);
  launch.transfers.push_back(transfer);
  if (!launch.checks || transfer->completes.empty()) return;
  Block* into = nullptr;
  const auto note = [&](const Copies& copies) {
    for (auto& copy : copies) {
      if (into && inside(copy.destination, into->storage, launch.storage_bytes)) continue;
      if (!(into = shared_owner(copy.destination))) continue;
      into->arriving[transfer->writer] = {transfer->written, copy.place};
      if (into->begun && !into->live)
        add_problem("finished block", copy.place, 0,
                    text("all threads of block %u in the cluster have returned: its shared memory is gone", into->rank));
    }
  };
  note(transfer->copies);
  for (auto& piece : transfer->pieces) note(piece->copies);
}

// What nobody in the block waited for lands in the shared memory of the block that comes next. A copy that ended
// before is looked for too, by whether anybody knew of it.
void check_arrivals_awaited(const Block& ended) {
  if (!launch.checks) return;
  const auto report = [](Place place) {
    add_problem("missing wait", place, 0,
                "the last thread of the block whose shared memory this copy fills returns, and none of them has waited "
                "for the mbarrier that counts it" +
                    fact("about", 0, "exit"));
  };
  for (auto& [engine, last] : ended.arriving)
    if (ended.returned.seen[engine] < last.first) report(last.second);
  for (auto& transfer : launch.transfers)
    if (!*transfer->done && !transfer->copies.empty() && !transfer->completes.empty())
      for (auto& copy : transfer->copies)
        if (inside(copy.destination, ended.storage, launch.storage_bytes)) {
          report(copy.place);
          break;
        }
}

// Those that somebody waited for were delivered then: out of order, and rarely.
bool deliver_a_transfer() {
  auto& all = launch.transfers;
  const auto delivered = [](const std::shared_ptr<Transfer>& transfer) { return *transfer->done; };
  if (launch.schedule == 2) all.erase(std::remove_if(all.begin(), all.end(), delivered), all.end());
  while (!all.empty() && delivered(all.front())) all.pop_front();
  while (!all.empty() && delivered(all.back())) all.pop_back();
  if (all.empty()) return false;
  const size_t at = launch.schedule == 2   ? launch.random() % all.size()
                    : launch.schedule == 1 ? all.size() - 1
                                           : 0;
  auto transfer = all[at];
  all.erase(all.begin() + at);
  deliver(*transfer);
  return true;
}

// ---- cp.async
void cp_async(void* destination, const void* source, int bytes, bool valid, Site site) {
  Fiber& fiber = *current;
  const Place place = intern(site);
  if ((uintptr_t)destination % bytes || (valid && (uintptr_t)source % bytes))
    fault("misaligned", site, "cp.async of %d bytes needs addresses that are multiples of %d, by %s", bytes,
          bytes, who(fiber.agent).c_str());
  if (!shared_owner(destination))
    fault("bad instruction", site, "the destination of cp.async is not in shared memory");
  touch(fiber, destination, bytes, Access::write, place, false);
  if (launch.counts)
    log_access(fiber, destination, bytes, Access::write, place, -1,
               valid && bytes == 16 ? source : nullptr);
  if (valid) touch(fiber, source, bytes, Access::read, place, true);
  if (launch.checks) set_in_flight(destination, bytes, true, place);
  memset(destination, 0xff, bytes);
  Copy& copy = fiber.open_copies.emplace_back(
      Copy{(char*)destination, (const char*)source, bytes, valid ? bytes : 0, place, {}});
  if (valid) memcpy(copy.before, source, bytes);
}

// The copies since the last one.
static void close_piece(Fiber& fiber) {
  if (fiber.open_copies.empty()) return;
  auto piece = std::make_shared<Piece>();
  piece->copies = std::move(fiber.open_copies);
  fiber.open_copies.clear();
  fiber.open_pieces.push_back(std::move(piece));
}

void cp_async_commit(Site) {
  close_piece(*current);
  current->copy_groups.push_back(std::move(current->open_pieces));
  current->committed.push_back(current->barriers_passed);
  current->open_pieces.clear();
}

void cp_async_wait(int pending, Site site) {
  auto& groups = current->copy_groups;
  auto& committed = current->committed;
  const size_t finished = groups.size() > (size_t)pending ? groups.size() - pending : 0;
  for (size_t i = 0; i < finished; i++) {
    // Copies that no barrier separates from the wait: nothing hides their latency.
    if (launch.counts && !groups[i].empty() && committed[i] == current->barriers_passed)
      count_event(intern(site), "wait at once", 1);
    for (auto& piece : groups[i]) finish_by_thread(*current, *piece);
  }
  groups.erase(groups.begin(), groups.begin() + finished);
  committed.erase(committed.begin(), committed.begin() + finished);
}

void cp_async_wait_all(Site site) {
  cp_async_commit(site);
  cp_async_wait(0, site);
}

void cp_async_mbarrier_arrive(uint64_t* address, Site site) {
  Fiber& fiber = *current;
  Mbarrier& mbarrier = mbarrier_at(address, site);
  auto transfer = new_transfer(fiber, false);
  close_piece(fiber);
  auto take = [&](Pieces& pieces) {
    for (auto& piece : pieces) {
      if (!piece->written) piece->engine = transfer, piece->writer = transfer->writer, piece->written = transfer->written;
      uint32_t& known = transfer->clock.seen[piece->writer];  // an earlier arrival may have counted it
      known = std::max(known, piece->written);
      if (!piece->done) transfer->pieces.push_back(piece);
    }
  };
  for (auto& group : fiber.copy_groups) take(group);
  take(fiber.open_pieces);
  transfer->completes.push_back({&mbarrier, -1});
  issue(transfer);
}

void check_copies_awaited(Fiber& fiber) {
  check_products_awaited(fiber);
  close_piece(fiber);
  Place left = 0;
  const auto look = [&](const Pieces& pieces) {
    for (auto& piece : pieces)
      if (!left && !piece->done && !piece->written) left = piece->copies[0].place;
  };
  look(fiber.open_pieces);
  for (auto& group : fiber.copy_groups) look(group);
  if (left)
    add_problem("missing wait", left, 0,
                text("%s returns while its cp.async is under way%s", who(fiber.agent).c_str(),
                     fact("about", 0, "exit").c_str()));
  for (auto& group : fiber.store_groups)
    fiber.open_stores.insert(fiber.open_stores.end(), group.transfers.begin(), group.transfers.end());
  if (!fiber.open_stores.empty())
    add_problem(
        "missing wait", fiber.open_stores[0]->copies[0].place, 0,
        text("%s returns while its copy out of shared memory is under way%s", who(fiber.agent).c_str(),
             fact("about", 0, "exit").c_str()));
}

// ---- mbarriers
Mbarrier& mbarrier_at(uint64_t* address, Site site) {
  Block* block = shared_owner(address);
  if (!block) fault("bad instruction", site, "an mbarrier must be in shared memory");
  if ((uintptr_t)address % 8) fault("misaligned", site, "an mbarrier starts at a multiple of 8 bytes");
  if (launch.checks) touch(*current, address, 8, Access::read, intern(site), false);
  auto found = block->mbarriers.find((char*)address - block->storage);
  if (found == block->mbarriers.end())
    fault("uninitialised read", site, "the mbarrier was never initialised");
  for (int i = 0; i < 4 && launch.checks; i++)
    if (const Place written = block->cells[found->first / 2 + i].written_at; written != found->second.initialised) {
      add_problem("bad instruction", intern(site), written, "the memory of an mbarrier that is in use was written");
      stop_launch();
    }
  return found->second;
}

void mbarrier_init(uint64_t* address, int arrivals, Site site) {
  Block& block = *current->block;
  shared_address(address, site);
  if (arrivals < 1 || arrivals >= 1 << 20)
    fault("bad instruction", site, "an mbarrier counts 1 to 1048575 arrivals, not %d", arrivals);
  touch(*current, address, 8, Access::write, intern(site), false);
  Mbarrier mbarrier{arrivals, arrivals, 0, 0, false, {}, {}, intern(site), current->agent, current->clock.seen[current->agent]};
  mbarrier.arriving.reset(launch.agents);
  mbarrier.released.reset(launch.agents);
  block.mbarriers[(char*)address - block.storage] = mbarrier;
  *address = 0;
}

static void count_wait(Site site, const char* operation) {
  if (launch.counts) count_event(intern(site), operation, 1);
}

void mbarrier_arrive_expect(uint64_t* address, uint32_t bytes, Site site) {
  Mbarrier& mbarrier = mbarrier_at(address, site);
  mbarrier.bytes += bytes;
  arrive(mbarrier, current->clock, site);
  current->tick();
  count_wait(site, "arrive");
  complete_phase(mbarrier);
}

void mbarrier_arrive(uint64_t* address, Site site) {
  // What is released here is filled while the products of this warp run.
  if (launch.counts && !current->block->products[current->warp()].groups.empty())
    count_event(intern(site), "release under way", 1);
  mbarrier_arrive_expect(address, 0, site);
}

void mbarrier_arrive_remote(uint64_t* address, uint32_t rank, Site site) {
  mbarrier_arrive_expect((uint64_t*)remote(address, rank, site), 0, site);
}

void mbarrier_wait(uint64_t* address, uint32_t parity, Site site) {
  meet(site);
  Mbarrier& mbarrier = mbarrier_at(address, site);
  Fiber& fiber = *current;
  if (parity > 1) fault("bad instruction", site, "a phase has parity 0 or 1, not %u", parity);
  fiber.waits_at = "mbarrier wait";
  fiber.site = site;
  fiber.mbarrier = &mbarrier;
  fiber.parity = parity;
  while ((mbarrier.phase & 1) == parity) {
    fiber.state = State::at_mbarrier;
    switch_away();
  }
  count_wait(site, "wait");
  fiber.clock.join(mbarrier.released);
  fiber.tick();
}

// Those whose mbarrier.init the thread has made or knows of.
static void announce_mbarriers() {
  for (auto& block : launch.blocks)
    for (auto& [offset, mbarrier] : block->mbarriers)
      if (!launch.checks || current->clock.seen[mbarrier.maker] >= mbarrier.made) mbarrier.announced = true;
}

void fence_mbarrier_init(Site) {
  current->announced = current->clock;
  current->tick();
  announce_mbarriers();
}

void fence_proxy_async(Site) {
  Clock& clock = current->clock;
  clock.fenced = clock.seen;
  launch.fences = true;
  current->tick();
  announce_mbarriers();
}

bool elect_one(Site site) {
  int elected = 0;
  warp_collective(
      "elect.sync", "", ~0u, &elected,
      [](const Lanes& lanes) { *(int*)lanes.argument[__builtin_ctz(lanes.mask)] = 1; }, site);
  return elected;
}
}  // namespace cpu
