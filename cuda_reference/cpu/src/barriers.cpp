// What threads do together: warp collectives, barriers of a block and of a cluster, and fences. A barrier
// joins the clocks of all who meet at it; a shuffle or a matrix instruction orders nothing in memory, so it
// joins none.
#include <algorithm>
#include "runtime.h"

namespace cpu {
namespace {
// Of two distinct clocks, which have a multiple of 32 agents: the compiler makes wide instructions of so many.
void raise(std::vector<uint32_t>& mine, const std::vector<uint32_t>& other) {
  uint32_t* __restrict to = mine.data();
  const uint32_t* __restrict from = other.data();
  for (const uint32_t* end = to + mine.size(); to < end; to += 32, from += 32)
    for (int i = 0; i < 32; i++) to[i] = std::max(to[i], from[i]);
}
}  // namespace

void Clock::join(const Clock& other) {
  if (!launch.checks) return;  // nothing is asked of clocks
  raise(seen, other.seen);
  if (launch.fences) raise(fenced, other.fenced);
}

void join_past(Past& into, const Past& from) {
  for (auto& [cluster, seen] : from) {
    auto& mine = into[cluster];
    if (mine == seen) continue;
    if (!mine) {
      mine = seen;
      continue;
    }
    auto both = std::make_shared<std::vector<uint32_t>>(*mine);
    for (size_t i = 0; i < both->size(); i++) (*both)[i] = std::max((*both)[i], (*seen)[i]);
    mine = both;
  }
}

void join_everyone(const std::vector<Fiber*>& fibers, const Clock* extra) {
  if (!launch.checks) return;
  Clock all = fibers[0]->clock;
  Past past;
  for (Fiber* fiber : fibers) {
    all.join(fiber->clock);
    if (!fiber->past.empty()) join_past(past, fiber->past);
  }
  if (extra) all.join(*extra);
  for (Fiber* fiber : fibers) {
    fiber->clock.seen = all.seen;
    if (launch.fences) fiber->clock.fenced = all.fenced;
    fiber->past = past;
    fiber->tick();
  }
}

namespace {
unsigned lanes_of_warp(int warp) {
  const int lanes = launch.threads - warp * 32;
  return lanes >= 32 ? ~0u : (1u << lanes) - 1;
}

unsigned lanes_left(const Block& block, int warp) {
  return lanes_of_warp(warp) & ~block.returned_lanes[warp];
}

bool is_syncwarp(const Fiber& fiber) { return fiber.together == nullptr; }

// An instruction of the kind .aligned: all lanes of a warp that have not returned execute it, and exchange
// nothing.
void aligned(const Lanes&) {}

bool goes_on_without_the_returned(const Fiber& fiber) {
  return is_syncwarp(fiber) || fiber.together == aligned;
}

// Two lanes name each other in their masks but are at different collectives: neither will ever go on.
void check_same_collective(const Fiber& mine, const Fiber& other) {
  if (!(other.mask >> mine.lane() & 1)) return;
  const bool same_line = mine.site.line == other.site.line || is_syncwarp(mine);
  if (mine.together == other.together && mine.mask == other.mask && same_line &&
      !strcmp(mine.waits_at, other.waits_at))
    return;
  add_problem(
      "warp mask", intern(mine.site), intern(other.site),
      text("the lanes of warp %d part: lane %d is at %s, mask %08x, while lane %d waits at %s, mask %08x",
           mine.warp(), mine.lane(), mine.waits_at, mine.mask, other.lane(), other.waits_at, other.mask));
  stop_launch();
}

// Completes the collective at which `fiber` is, if all its lanes are there; says whether it did.
bool complete_collective(Fiber& fiber) {
  Block& block = *fiber.block;
  const int warp = fiber.warp();
  unsigned& at_warp = block.at_warp[warp];
  if ((at_warp & fiber.mask) != fiber.mask) return false;
  void* arguments[32] = {};
  std::vector<Fiber*> here;
  for (int i = 0; i < 32; i++) {
    if (!(fiber.mask >> i & 1)) continue;
    Fiber& other = block.fibers[warp * 32 + i];
    if (other.together != fiber.together || other.mask != fiber.mask) return false;
    arguments[i] = other.argument;
    here.push_back(&other);
  }
  if (launch.counts && fiber.mask == lanes_left(block, warp)) flush_warp(block, warp);
  if (fiber.together)
    fiber.together({arguments, fiber.mask, warp * 32, fiber.site});
  else
    join_everyone(here);
  at_warp &= ~fiber.mask;
  launch.meetings++;
  for (Fiber* other : here)
    if (other != current) make_ready(*other);
  return true;
}
}  // namespace

unsigned active_lanes() { return lanes_left(*current->block, current->warp()); }

void warp_collective(const char* name, const char* kind, unsigned mask, void* argument, Together together,
                     Site site) {
  meet(site);
  Fiber& fiber = *current;
  Block& block = *fiber.block;
  const int first = fiber.warp() * 32;
  mask &= lanes_of_warp(fiber.warp());
  if (!(mask >> fiber.lane() & 1))
    fault("warp mask", site, "lane %d of warp %d executes %s with a mask %08x that does not name it",
          fiber.lane(), fiber.warp(), name, mask);
  const unsigned gone = mask & block.returned_lanes[fiber.warp()];
  if (gone && together)
    fault("warp mask", site, "%s in warp %d names lane %d, which has returned", name, fiber.warp(),
          __builtin_ctz(gone));
  fiber.waits_at = name;
  fiber.site = site;
  fiber.mask = mask & ~gone;
  fiber.argument = argument;
  fiber.together = together;
  fiber.state = State::at_warp;
  // Those that wait agree with each other, so that one of them stands for all.
  if (const unsigned others = block.at_warp[fiber.warp()] & fiber.mask)
    check_same_collective(fiber, block.fibers[first + __builtin_ctz(others)]);
  block.at_warp[fiber.warp()] |= 1u << fiber.lane();
  if (!complete_collective(fiber)) return switch_away();
  if (launch.counts && *kind) count_event(intern(site), kind);
  fiber.state = State::ready;
  if (launch.schedule != 0) give_way();
}

void syncwarp(unsigned mask, Site site) {
  warp_collective("__syncwarp", "syncwarp", mask, nullptr, nullptr, site);
}

// A lane that returns no longer takes part in the __syncwarp of the others.
void warp_mate_returned(Fiber& fiber) {
  Block& block = *fiber.block;
  for (int i = 0; i < 32 && fiber.warp() * 32 + i < launch.threads; i++) {
    Fiber& other = block.fibers[fiber.warp() * 32 + i];
    if (other.state != State::at_warp || !(other.mask >> fiber.lane() & 1)) continue;
    if (!goes_on_without_the_returned(other)) {
      add_problem("warp mask", intern(other.site), 0,
                  text("lane %d of warp %d returned, but lane %d waits for it at %s", fiber.lane(),
                       fiber.warp(), other.lane(), other.waits_at));
      stop_launch();
    }
    other.mask &= ~(1u << fiber.lane());
  }
  for (int i = 0; i < 32 && fiber.warp() * 32 + i < launch.threads; i++) {
    Fiber& other = block.fibers[fiber.warp() * 32 + i];
    if (other.state == State::at_warp && goes_on_without_the_returned(other) && complete_collective(other))
      break;
  }
  release_barrier(block, 0);
  release_cluster();
}

// ---- barriers of a block
namespace {
void flush_whole_warps(Block& block, const std::vector<Fiber*>& waiting) {
  std::vector<unsigned> here(launch.warps);
  for (Fiber* fiber : waiting) here[fiber->warp()] |= 1u << fiber->lane();
  for (int warp = 0; warp < launch.warps; warp++)
    if (here[warp] && here[warp] == lanes_left(block, warp)) flush_warp(block, warp);
}

void report_exited(Fiber& waiting) {
  add_problem("barrier after exit", intern(waiting.site), 0,
              text("%d of the block's %d threads have returned and never reach this barrier",
                   launch.threads - waiting.block->live, launch.threads));
}

void check_same_barrier(Fiber& mine) {
  for (Fiber* other : mine.block->barriers[0].waiting) {
    if (other->barrier_threads >= 0 || other->site.line == mine.site.line) return;
    add_problem("divergent barrier", intern(mine.site), intern(other->site),
                text("%s waits here while %s waits at the other barrier", who(mine.agent).c_str(),
                     who(other->agent).c_str()));
    return;
  }
}

// Everyone who meets at a barrier must count on the same number of threads.
void check_count(Fiber& fiber, int id, int threads, Site site) {
  NamedBarrier& barrier = fiber.block->barriers[id];
  const int count = threads < 0 ? launch.threads : threads;
  if (barrier.threads && barrier.threads != count)
    fault("bad instruction", site, "barrier %d waits for %d threads here and for %d elsewhere", id, count,
          barrier.threads);
  barrier.threads = count;
}

void wait_at_barrier(const char* name, int id, int threads, Site site) {
  meet(site);
  Fiber& fiber = *current;
  fiber.waits_at = name;
  fiber.site = site;
  fiber.barrier = id;
  fiber.barrier_threads = threads;
  check_count(fiber, id, threads, site);
  if (threads < 0) check_same_barrier(fiber);
  if (threads < 0 && fiber.block->live < launch.threads) report_exited(fiber);
  if (launch.counts) log_access(fiber, nullptr, 0, Access::read, intern(site), -2);
  fiber.state = State::at_barrier;
  fiber.barriers_passed++;
  fiber.block->barriers[id].waiting.push_back(&fiber);
  release_barrier(*fiber.block, id);
  switch_away();
}

void check_named_barrier(int id, int threads, Site site) {
  if (id < 0 || id > 15) fault("bad instruction", site, "there is no barrier %d, only 0 to 15", id);
  if (threads <= 0 || threads % 32)
    fault("bad instruction", site, "%d threads at a barrier are not whole warps", threads);
  if (threads > launch.threads)
    fault("bad instruction", site, "the barrier waits for %d threads, the block has %d", threads,
          launch.threads);
}
}  // namespace

void release_barrier(Block& block, int id) {
  NamedBarrier& barrier = block.barriers[id];
  std::vector<Fiber*>& waiting = barrier.waiting;
  if (waiting.empty()) return;
  const bool everybody = waiting[0]->barrier_threads < 0;
  const int needed = everybody ? block.live : waiting[0]->barrier_threads;
  if (everybody && current && current->state == State::done) report_exited(*waiting[0]);
  const int arrived = waiting.size() + barrier.arrivals;
  if (arrived < needed) return;
  if (arrived > needed) {
    add_problem("bad instruction", intern(waiting[0]->site), 0,
                text("barrier %d, which waits for %d threads, counts %d arrivals%s", id, needed, arrived,
                     fact("about", 0, "barrier arrivals").c_str()));
    stop_launch();
  }
  if (launch.counts) flush_whole_warps(block, waiting);
  launch.meetings++;
  join_everyone(waiting, barrier.arrivals ? &barrier.arrived : nullptr);
  for (Fiber* fiber : waiting) make_ready(*fiber);
  block.barriers.erase(id);
}

void syncthreads(Site site) { wait_at_barrier("__syncthreads", 0, -1, site); }

void barrier_sync(int id, int threads, Site site) {
  check_named_barrier(id, threads, site);
  wait_at_barrier("bar.sync", id, threads, site);
}

void barrier_arrive(int id, int threads, Site site) {
  check_named_barrier(id, threads, site);
  Fiber& fiber = *current;
  check_count(fiber, id, threads, site);
  NamedBarrier& barrier = fiber.block->barriers[id];
  if (barrier.arrived.seen.empty()) barrier.arrived.reset(launch.agents);
  if (launch.counts) {
    log_access(fiber, nullptr, 0, Access::read, intern(site), -2);
    // A thread that waits here goes on while the products of this warp run.
    if (!fiber.block->products[fiber.warp()].groups.empty()) count_event(intern(site), "arrive under way", 1);
  }
  barrier.arrived.join(fiber.clock);
  barrier.arrivals++;
  fiber.tick();
  release_barrier(*fiber.block, id);
}

// ---- clusters
uint32_t cluster_rank() { return current->block->rank; }
uint32_t cluster_blocks() { return launch.blocks.size(); }

void release_cluster() {
  int live = 0;
  for (auto& block : launch.blocks) live += block->live;
  if (!launch.cluster_arrivals || launch.cluster_arrivals < live) return;
  launch.cluster_released = launch.cluster_arrived;
  launch.cluster_arrived.reset(launch.agents);
  launch.cluster_arrivals = 0;
  launch.cluster_phase++;
  launch.meetings++;
  for (auto& block : launch.blocks)
    for (Fiber& fiber : block->fibers)
      if (fiber.state == State::at_cluster) make_ready(fiber);
}

void cluster_arrive(bool release, Site site) {
  Fiber& fiber = *current;
  if (fiber.cluster_arrived)
    fault("bad instruction", site, "%s has arrived at the cluster's barrier and must wait before it does again",
          who(fiber.agent).c_str());
  fiber.cluster_arrived = true;
  fiber.cluster_phase = launch.cluster_phase;
  const Clock& known = release ? fiber.clock : fiber.announced;
  if (!known.seen.empty()) launch.cluster_arrived.join(known);
  launch.cluster_arrivals++;
  fiber.tick();
  if (launch.counts) log_access(fiber, nullptr, 0, Access::read, intern(site), -2);
  release_cluster();
}

void cluster_wait(Site site) {
  Fiber& fiber = *current;
  warp_collective("barrier.cluster.wait", "", active_lanes(), nullptr, aligned, site);
  if (!fiber.cluster_arrived)
    fault("bad instruction", site, "%s waits at the cluster's barrier and has not arrived there",
          who(fiber.agent).c_str());
  fiber.cluster_arrived = false;
  fiber.waits_at = "barrier.cluster.wait";
  fiber.site = site;
  while (fiber.cluster_phase == launch.cluster_phase) {
    fiber.state = State::at_cluster;
    switch_away();
  }
  fiber.clock.join(launch.cluster_released);
  fiber.tick();
}

// ---- fences: what was written before a fence and is then announced by an atomic is known to a thread that reads
// the atomic and then passes a fence
static void take(Fiber& fiber, Past& acquired) {
  if (const auto own = acquired.find(launch.cluster); own != acquired.end()) {
    raise(fiber.clock.seen, *own->second);
    acquired.erase(own);
  }
  join_past(fiber.past, acquired);
  acquired.clear();
}

// One that orders within the block takes what threads of the block released, and gives to them alone.
void fence(bool whole_gpu, Site) {
  if (!launch.checks) return;
  Fiber& fiber = *current;
  if (whole_gpu) take(fiber, fiber.acquired);
  take(fiber, fiber.acquired_here);
  Past known = fiber.past;
  known[launch.cluster] = std::make_shared<std::vector<uint32_t>>(fiber.clock.seen);
  fiber.released_here = std::make_shared<const Past>(std::move(known));
  if (whole_gpu) fiber.released = fiber.released_here;
  fiber.tick();
}

// What a thread knows, and those that it meets later, once it has waited for the kernels before.
void grid_dependency_wait() {
  if (!launch.checks || !launch.early) return;
  Fiber& fiber = *current;
  if (fiber.may_be_early) fiber.block->awaited.push_back({fiber.agent, fiber.tick()});
  fiber.may_be_early = false;
}
}  // namespace cpu
