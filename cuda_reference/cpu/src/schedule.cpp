// Fibers, and the order in which they run: forward (first ready first), reverse (last ready first) or random.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <link.h>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include "runtime.h"

extern "C" {
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
}

namespace cpu {
Launch launch;
Fiber* current;

namespace {
constexpr size_t STACK = STACK_BYTES, GUARD = 4096;
char* stacks;
size_t stacks_bytes;
ucontext_t starter;

std::mutex baton;
std::condition_variable passed;
int turn;       // the rank whose operating-system thread may run
bool finished;  // the cluster has come to an end
std::chrono::steady_clock::time_point started;

double elapsed() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(); }

void make_stacks(size_t fibers) {
  if (stacks_bytes >= fibers * (STACK + GUARD)) return;
  if (stacks) munmap(stacks, stacks_bytes);
  stacks_bytes = fibers * (STACK + GUARD);
  stacks = (char*)mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (size_t i = 0; i < fibers; i++) mprotect(stacks + i * (STACK + GUARD), GUARD, PROT_NONE);
}

// A fiber's whole life. makecontext builds the first frame; from then on setjmp and longjmp switch, which are
// fast.
void fiber_main() {
  ucontext_t unused;
  if (!_setjmp(current->context)) swapcontext(&unused, &starter);
  launch.kernel(launch.arguments);
  thread_returned(*current);
  _longjmp(current->block->scheduler, 1);
}

void start_fiber(Fiber& fiber) {
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  current = &fiber;
  swapcontext(&starter, &context);
  current = nullptr;
}

void make_fibers(Block& block) {
  block.fibers.resize(launch.threads);
  for (int thread = 0; thread < launch.threads; thread++) {
    Fiber& fiber = block.fibers[thread];
    fiber.block = &block;
    fiber.thread = thread;
    fiber.agent = launch.thread_agent(block.rank, thread);
    fiber.stack = stacks + (block.rank * (size_t)launch.threads + thread) * (STACK + GUARD) + GUARD;
    fiber.index = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    fiber.clock.reset(launch.agents);
    fiber.clock.seen[fiber.agent] = 1;
    fiber.announced.seen.clear();
    start_fiber(fiber);
    block.ready.push_back(thread);
  }
  block.live = launch.threads;
}

void make_block(Block& block, uint32_t rank, uint3 index) {
  block.rank = rank;
  block.index = index;
  block.products.resize(launch.warps);
  block.log.resize(launch.warps);
  block.engine_clocks.assign(ENGINES, 0);
  block.at_warp.assign(launch.warps, 0);
  block.returned_lanes.assign(launch.warps, 0);
  if (launch.checks) forget_cells(block);
  make_fibers(block);
}

int take_ready(Block& block) {
  size_t at = launch.schedule == 0 ? 0 : block.ready.size() - 1;
  if (launch.schedule == 2) at = launch.random() % block.ready.size();
  const int thread = block.ready[at];
  block.ready.erase(block.ready.begin() + at);
  return thread;
}

// Runs threads of this block until none is ready, or, on a random schedule, for a random while.
void run_block(Block& block) {
  blockIdx = block.index;
  while (!block.ready.empty() && !launch.failed) {
    if (launch.schedule == 2) {
      if (!launch.transfers.empty() && launch.random() % 8 == 0) deliver_a_transfer();
      if (launch.blocks.size() > 1 && launch.random() % 64 == 0) return;
    }
    current = &block.fibers[take_ready(block)];
    threadIdx = current->index;
    if (!_setjmp(block.scheduler)) _longjmp(current->context, 1);
    current = nullptr;
  }
}

int choose_block() {
  std::vector<int> able;
  for (auto& block : launch.blocks)
    if (!block->ready.empty()) able.push_back(block->rank);
  if (able.empty()) return -1;
  return launch.schedule == 2 ? able[launch.random() % able.size()]
                              : able[launch.schedule == 1 ? able.size() - 1 : 0];
}

// The loop of one block's operating-system thread: runs when it is its turn, then says whose turn is next.
void block_loop(Block& block) {
  std::unique_lock<std::mutex> lock(baton);
  for (;;) {
    passed.wait(lock, [&] { return finished || turn == (int)block.rank; });
    if (finished) return;
    run_block(block);
    int next;
    while ((next = choose_block()) < 0 && !launch.failed && deliver_a_transfer()) {}
    if (launch.failed || next < 0) finished = true;
    turn = next;
    if (launch.blocks.size() > 1) passed.notify_all();
  }
}

// What an mbarrier that a thread waits for still lacks.
std::string lacking(const Fiber& fiber) {
  if (fiber.state != State::at_mbarrier) return "";
  const Mbarrier& mbarrier = *fiber.mbarrier;
  std::string place = "an mbarrier of another block";
  for (auto& [offset, known] : fiber.block->mbarriers)
    if (&known == &mbarrier)
      place = text("shared memory at byte %ld", (long)(fiber.block->storage + offset - fiber.block->dynamic));
  if ((mbarrier.phase & 1) != fiber.parity) return "";
  std::string lack = text(" (%s: phase %u lacks %d of %d arrivals", place.c_str(), mbarrier.phase,
                          mbarrier.pending, mbarrier.arrivals);
  if (mbarrier.bytes > 0) lack += text(", and %ld bytes that it expects", (long)mbarrier.bytes);
  if (mbarrier.bytes < 0) lack += text(", and %ld bytes more have arrived than it expects", (long)-mbarrier.bytes);
  return lack + ")";
}

void report_deadlock() {
  std::map<std::string, std::vector<int>> waiting;
  Fiber* first = nullptr;
  for (auto& block : launch.blocks)
    for (auto& fiber : block->fibers) {
      std::string where = fiber.state == State::done
                              ? "returned"
                              : text("waiting at %s, line %d", fiber.waits_at, fiber.site.line) +
                                    lacking(fiber);
      waiting[where].push_back(fiber.thread);
      if (!first && fiber.state != State::done) first = &fiber;
    }
  if (!first) return;
  std::string all;
  for (auto& [where, threads] : waiting)
    all += text("%s%zu threads (%d to %d) %s", all.empty() ? "" : "; ", threads.size(), threads.front(),
                threads.back(), where.c_str());
  blockIdx = first->block->index;
  current = first;
  add_problem("deadlock", intern(first->site), 0, all);
  current = nullptr;
  launch.failed = true;
}

struct Module {
  char *address, *storage;
  size_t storage_bytes;
  char *start, *end;
};

// The loaded object that contains `address`, and the calling thread's instance of its thread-local storage.
int look_at_module(dl_phdr_info* info, size_t, void* data) {
  auto& module = *(Module*)data;
  char *low = nullptr, *high = nullptr;
  size_t storage = 0;
  bool here = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& part = info->dlpi_phdr[i];
    char* start = (char*)info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_TLS) storage = part.p_memsz;
    if (part.p_type != PT_LOAD) continue;
    if (!low) low = start;
    high = start + part.p_memsz;
    here |= module.address >= start && module.address < high;
  }
  if (!here) return 0;
  module = {module.address, (char*)info->dlpi_tls_data, storage, (char*)info->dlpi_addr, high};
  return 1;
}

void* (*dynamic_shared)();

// Must run on the block's own operating-system thread: that is what makes the storage its own.
void take_storage(Block& block) {
  block.dynamic = (char*)dynamic_shared();
  Module module{(char*)launch.kernel, nullptr, 0, nullptr, nullptr};
  dl_iterate_phdr(look_at_module, &module);
  block.storage = module.storage;
  launch.storage_bytes = module.storage_bytes;
  launch.image_start = module.start;
  launch.image_end = module.end;
  char* dynamic_end = block.dynamic + 232448;
  memset(block.storage, 0xff, block.dynamic - block.storage);
  memset(block.dynamic, 0xff, launch.dynamic_bytes);
  memset(dynamic_end, 0xff, block.storage + module.storage_bytes - dynamic_end);
}

void run_cluster(uint3 first, dim3 cluster) {
  const size_t blocks = cluster.x * cluster.y * cluster.z;
  launch.agents = (blocks * launch.agents_of_block() + 31) / 32 * 32;  // readers are looked at by 32
  launch.cluster++;
  launch.blocks.clear();
  launch.transfers.clear();
  launch.cluster_arrived.reset(launch.agents);
  launch.cluster_arrivals = 0;
  launch.cluster_phase = 0;
  make_stacks(blocks * launch.threads);
  finished = false;
  for (uint32_t rank = 0; rank < blocks; rank++) launch.blocks.push_back(std::make_unique<Block>());
  auto life = [&](uint32_t rank) {
    Block& block = *launch.blocks[rank];
    {
      std::lock_guard<std::mutex> lock(baton);
      take_storage(block);
      const uint3 index{first.x + rank % cluster.x, first.y + rank / cluster.x % cluster.y,
                        first.z + rank / cluster.x / cluster.y};
      make_block(block, rank, index);
    }
  };
  if (blocks == 1) {
    life(0);
    turn = 0;
    block_loop(*launch.blocks[0]);
  } else {
    turn = -1;
    std::vector<std::thread> others;
    std::vector<bool> made(blocks);
    for (uint32_t rank = 0; rank < blocks; rank++)
      others.emplace_back([&, rank] {
        life(rank);
        {
          std::lock_guard<std::mutex> lock(baton);
          made[rank] = true;
          if (std::find(made.begin(), made.end(), false) == made.end()) turn = choose_block();
        }
        passed.notify_all();
        block_loop(*launch.blocks[rank]);
      });
    for (auto& thread : others) thread.join();
  }
  if (!launch.failed) report_deadlock();
  for (auto& block : launch.blocks) {
    for (int warp = 0; warp < launch.warps; warp++) flush_warp(*block, warp);
    for (Fiber& fiber : block->fibers) report_unset(fiber);
  }
}
}  // namespace

void switch_away() {
  if (!_setjmp(current->context)) _longjmp(current->block->scheduler, 1);
}

void give_way(Place place) {
  if (elapsed() > launch.seconds) {
    add_problem("endless loop", place, 0,
                text("no end after %g s, in %s", launch.seconds, who(current->agent).c_str()));
    stop_launch();
  }
  make_ready(*current);
  switch_away();
}

void make_ready(Fiber& fiber) {
  fiber.state = State::ready;
  fiber.block->ready.push_back(fiber.thread);
}

void thread_returned(Fiber& fiber) {
  check_copies_awaited(fiber);
  fiber.state = State::done;
  fiber.block->live--;
  fiber.block->returned_lanes[fiber.warp()] |= 1u << fiber.lane();
  if (launch.blocks.size() > 1) check_nobody_reaches_in(fiber);
  warp_mate_returned(fiber);
}

void stop_launch() {
  launch.failed = true;
  _longjmp(current->block->scheduler, 1);
}

std::string who(size_t agent) {
  const size_t rank = agent / launch.agents_of_block();
  const int in_block = agent % launch.agents_of_block();
  const std::string of = launch.blocks.size() > 1 ? text(" of block %zu in the cluster", rank) : "";
  if (in_block < launch.threads)
    return text("thread %d (warp %d, lane %d)", in_block, in_block / 32, in_block % 32) + of;
  if (in_block < launch.threads + launch.warps)
    return text("wgmma of warp %d", in_block - launch.threads) + of;
  return "the copy engine" + of;
}

int lane() { return current->lane(); }

void run_grid(dim3 grid, dim3 cluster) {
  started = std::chrono::steady_clock::now();
  for (unsigned z = 0; z < grid.z && !launch.failed; z += cluster.z)
    for (unsigned y = 0; y < grid.y && !launch.failed; y += cluster.y)
      for (unsigned x = 0; x < grid.x && !launch.failed; x += cluster.x) run_cluster({x, y, z}, cluster);
  launch.blocks.clear();
}
}  // namespace cpu

// What Python calls. `shape`: grid, block, cluster; `ranges`: start, end, constant, scratch of each array.
extern "C" int cpu_launch(void (*kernel)(void**), void* (*dynamic_shared)(), void** arguments,
                          const unsigned* shape, unsigned dynamic_bytes, const uint64_t* ranges,
                          const char** names, int count, const double* options, const char** report) {
  using namespace cpu;
  static std::string text;
  launch = Launch();
  cpu::dynamic_shared = dynamic_shared;
  launch.kernel = kernel;
  launch.arguments = arguments;
  launch.dynamic_bytes = dynamic_bytes;
  launch.checks = options[0] != 0;
  launch.counts = options[1] != 0;
  launch.schedule = (int)options[2];
  launch.random.seed((unsigned)options[3]);
  launch.seconds = options[4];
  gridDim = {shape[0], shape[1], shape[2]};
  blockDim = {shape[3], shape[4], shape[5]};
  launch.threads = blockDim.x * blockDim.y * blockDim.z;
  launch.warps = (launch.threads + 31) / 32;
  for (int i = 0; i < count; i++)
    launch.buffers.push_back({(char*)ranges[4 * i],
                              (char*)ranges[4 * i + 1],
                              ranges[4 * i + 2] != 0,
                              ranges[4 * i + 3] != 0,
                              names[i],
                              {}});
  for (auto& use : launch.permutation) {
    for (int i = 0; i < 256; i++) use[i] = i;
    if (launch.schedule == 2) std::shuffle(use, use + 256, launch.random);
  }
  clear_reports();
  run_grid(gridDim, {shape[6], shape[7], shape[8]});
  text = write_report();
  for (Cell* cells : launch.cells) free(cells);
  *report = text.c_str();
  return launch.failed;
}
