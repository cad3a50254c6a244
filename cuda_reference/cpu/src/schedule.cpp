// Fibers, and the order in which they run: forward (first ready first), reverse (last ready first) or random.
// A cluster runs until it has ended. Where all its threads wait and some poll, it may wait for another one:
// then those that have begun take turns, and the next one begins.
#include <algorithm>
#include <condition_variable>
#include <errno.h>
#include <link.h>
#include <mutex>
#include <sys/mman.h>
#include <system_error>
#include <thread>
#include <time.h>
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
constexpr size_t GUARD = 4096;  // bytes below each stack that nobody may touch
// What may run at a time beside the cluster that always may. A stack takes two of the 65,530 pieces that Linux
// lets a process map.
constexpr size_t MOST_RESIDENT_THREADS = 24576, MOST_RESIDENT_BLOCKS = 256;
constexpr size_t MOST_SEATS_KEPT = 16, BLOCKS_TURNED = 8;
// Looks at memory that nobody changes, of threads that may yet stop by themselves: all together, and each.
constexpr uint64_t LOOKS = 1 << 21, LOOKS_EACH = 1 << 14;
ucontext_t starter;

// An operating-system thread, which runs one block after another, and their stacks.
struct Seat {
  std::thread thread;
  std::condition_variable called;
  Block* block = nullptr;
  char* stacks = nullptr;
  size_t stacks_bytes = 0;
};

// A cluster that has begun and not ended. `launch` holds the state of the one that runs.
struct Resident {
  uint32_t number = 0;
  std::vector<std::unique_ptr<Block>> blocks;
  std::deque<std::shared_ptr<Transfer>> transfers;
  std::vector<Cell*> cells;
  Clock arrived, released;
  int arrivals = 0;
  uint32_t phase = 0;
};

std::mutex baton;
std::mutex ending;  // held by the caller's thread while it watches the one that runs
std::vector<std::unique_ptr<Seat>> seats;
std::vector<int> free_seats;
std::vector<std::vector<Cell*>> free_cells;
std::vector<std::unique_ptr<Resident>> residents;
Resident* running;
dim3 grid_shape, cluster_shape;
int turn;       // the seat that may run
bool finished;  // the grid has come to an end
bool out_of_memory;

void sit(int seat);

void exchange(Resident& resident) {
  std::swap(launch.cluster, resident.number);
  std::swap(launch.blocks, resident.blocks);
  std::swap(launch.transfers, resident.transfers);
  std::swap(launch.cells, resident.cells);
  std::swap(launch.cluster_arrived, resident.arrived);
  std::swap(launch.cluster_released, resident.released);
  std::swap(launch.cluster_arrivals, resident.arrivals);
  std::swap(launch.cluster_phase, resident.phase);
}

void enter(Resident& resident) {
  if (running == &resident) return;
  if (running) exchange(*running);
  exchange(resident);
  running = &resident;
}

void free_stacks(Seat& seat) {
  if (seat.stacks) munmap(seat.stacks, seat.stacks_bytes);
  seat.stacks = nullptr;
  seat.stacks_bytes = 0;
}

bool make_stacks(Seat& seat) {
  const size_t each = STACK_BYTES + GUARD, bytes = launch.threads * each;
  if (seat.stacks_bytes >= bytes) return true;
  free_stacks(seat);
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  seat.stacks = (char*)made;
  seat.stacks_bytes = bytes;
  for (int i = 0; i < launch.threads; i++)
    if (mprotect(seat.stacks + i * each, GUARD, PROT_NONE)) return false;
  return true;
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
  context.uc_stack.ss_size = STACK_BYTES;
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
    fiber.stack = seats[block.seat]->stacks + thread * (STACK_BYTES + GUARD) + GUARD;
    fiber.index = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    fiber.clock.reset(launch.agents);
    fiber.clock.seen[fiber.agent] = 1;
    fiber.announced.seen.clear();
    start_fiber(fiber);
    block.ready.push_back(thread);
  }
  block.live = launch.threads;
}

// A thread that is far ahead of its warp lets the last of it go first: accesses of a warp are counted together.
size_t choose_in_step(const Block& block, size_t at) {
  const Fiber& drawn = block.fibers[block.ready[at]];
  const auto& logged = block.logged[drawn.warp()];
  if (logged[drawn.lane()] < AHEAD) return at;
  for (size_t i = 0; i < block.ready.size(); i++) {
    const Fiber& other = block.fibers[block.ready[i]];
    if (other.warp() == drawn.warp() && logged[other.lane()] < logged[block.fibers[block.ready[at]].lane()]) at = i;
  }
  return at;
}

int take_ready(Block& block) {
  size_t at = launch.schedule == 0 ? 0 : block.ready.size() - 1;
  if (launch.schedule == 2) at = choose_in_step(block, launch.random() % block.ready.size());
  const int thread = block.ready[at];
  block.ready.erase(block.ready.begin() + at);
  return thread;
}

// What an mbarrier that a thread waits for still lacks.
std::string lacking(const Fiber& fiber) {
  if (fiber.state != State::at_mbarrier) return "";
  const Mbarrier& mbarrier = *fiber.mbarrier;
  std::string place = "an mbarrier of another block";
  for (auto& [offset, known] : fiber.block->mbarriers)
    if (&known == &mbarrier)
      place = fact("shared", fiber.block->storage + offset - fiber.block->dynamic);
  if ((mbarrier.phase & 1) != fiber.parity) return "";
  std::string lack = text(" (%s: phase %u lacks %d of %d arrivals", place.c_str(), mbarrier.phase,
                          mbarrier.pending, mbarrier.arrivals);
  if (mbarrier.bytes > 0) lack += text(", and %ld bytes that it expects", (long)mbarrier.bytes);
  if (mbarrier.bytes < 0) lack += text(", and %ld bytes more have arrived than it expects", (long)-mbarrier.bytes);
  return lack + ")" + fact("about", 0, "ledger");
}

void report_deadlock() {
  std::map<std::string, std::vector<int>> waiting;
  Fiber* first = nullptr;
  for (auto& block : launch.blocks)
    for (auto& fiber : block->fibers) {
      std::string where = waiting_at(fiber);
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

// On the block's own operating-system thread.
void begin_block(Block& block) {
  take_storage(block);
  block.begun = true;
  block.products.resize(launch.warps);
  block.log.resize(launch.warps);
  block.logged.resize(launch.warps);
  block.engine_clocks.assign(ENGINES, 0);
  block.at_warp.assign(launch.warps, 0);
  block.returned_lanes.assign(launch.warps, 0);
  if (launch.checks) forget_cells(block);
  make_fibers(block);
}

// Runs threads of this block until all wait or, on a random schedule, for a random while.
void run_block(Block& block) {
  if (!block.begun) return begin_block(block);
  blockIdx = block.index;
  while (!launch.failed) {
    if (launch.schedule == 2) {
      if (!launch.transfers.empty() && launch.random() % 8 == 0) deliver_a_transfer();
      if (launch.blocks.size() > 1 && launch.random() % 64 == 0) return;
      if (!block.polling.empty() && launch.random() % 16 == 0) wake_pollers(block, false);
    }
    if (block.ready.empty() && !wake_pollers(block, false)) return;
    current = &block.fibers[take_ready(block)];
    threadIdx = current->index;
    current->polls.ran = ++beats;
    if (!_setjmp(block.scheduler)) _longjmp(current->context, 1);
    current = nullptr;
    settle_write();
  }
}

bool can_run(const Block& block) {
  return !block.begun || !block.ready.empty() ||
         (!block.polling.empty() && block.quiet_at != launch.changes);
}

Block* choose_block() {
  std::vector<Block*> able;
  for (auto& block : launch.blocks) {
    if (!block->begun) return block.get();  // all must have begun before one may reach into another
    if (can_run(*block)) able.push_back(block.get());
  }
  if (able.empty()) return nullptr;
  return launch.schedule == 2 ? able[launch.random() % able.size()]
                              : able[launch.schedule == 1 ? able.size() - 1 : 0];
}

// Takes turns: the first after the one that runs.
Resident* choose_resident() {
  const size_t count = residents.size();
  size_t mine = 0;
  while (mine < count && residents[mine].get() != running) mine++;
  for (size_t i = 1; i <= count; i++) {
    Resident& other = *residents[(mine + i) % count];
    if (&other == running) continue;
    for (auto& block : other.blocks)
      if (can_run(*block)) return &other;
  }
  return nullptr;
}

bool take_seat(Block& block) {
  if (free_seats.empty()) {
    seats.push_back(std::make_unique<Seat>());
    free_seats.push_back(seats.size() - 1);
  }
  const int seat = free_seats.back();
  if (!make_stacks(*seats[seat])) return false;
  if (seat && !seats[seat]->thread.joinable()) {
    try {
      seats[seat]->thread = std::thread(sit, seat);
    } catch (const std::system_error&) {
      return false;
    }
  }
  free_seats.pop_back();
  seats[seat]->block = &block;
  block.seat = seat;
  return true;
}

void give_back_seats() {
  for (auto& block : launch.blocks)
    if (seats[block->seat]->block == block.get()) {
      seats[block->seat]->block = nullptr;
      free_seats.push_back(block->seat);
    }
  std::sort(free_seats.rbegin(), free_seats.rend());
}

// The cluster that begins after so many. A GPU gives blocks out in order, and those that it holds may do
// anything in any order: groups of them are turned round, all of them or some.
size_t cluster_after(size_t begun) {
  const size_t group = begun / BLOCKS_TURNED * BLOCKS_TURNED, last = std::min(group + BLOCKS_TURNED, launch.clusters) - 1;
  if (launch.schedule == 2 && begun == group) launch.turned = launch.random() % 2;
  return launch.schedule == 1 || (launch.schedule == 2 && launch.turned) ? last - (begun - group) : begun;
}

// The next cluster of the grid; false where there is none, or no room for it.
bool begin_cluster() {
  const dim3 each = cluster_shape, count{grid_shape.x / each.x, grid_shape.y / each.y, grid_shape.z / each.z};
  const size_t blocks = (size_t)each.x * each.y * each.z;
  if (launch.begun == launch.clusters) return false;
  if (!residents.empty() && ((residents.size() + 1) * blocks > MOST_RESIDENT_BLOCKS ||
                             (residents.size() + 1) * blocks * launch.threads > MOST_RESIDENT_THREADS))
    return false;
  auto resident = std::make_unique<Resident>();
  if (!free_cells.empty()) {
    resident->cells = std::move(free_cells.back());
    free_cells.pop_back();
  }
  enter(*resident);
  const size_t next = cluster_after(launch.begun);
  launch.cluster = launch.begun + 1;
  launch.cluster_arrived.reset(launch.agents);
  const uint3 first{(unsigned)(next % count.x) * each.x, (unsigned)(next / count.x % count.y) * each.y,
                    (unsigned)(next / count.x / count.y) * each.z};
  bool room = true;
  for (uint32_t rank = 0; rank < blocks; rank++) {
    Block& block = *launch.blocks.emplace_back(std::make_unique<Block>());
    block.rank = rank;
    block.index = {first.x + rank % each.x, first.y + rank / each.x % each.y, first.z + rank / each.x / each.y};
    room = room && take_seat(block);
  }
  if (!room) {  // of the machine: the blocks that have begun must suffice
    give_back_seats();
    exchange(*resident);
    running = nullptr;
    if (residents.empty()) out_of_memory = launch.failed = true;
    return false;
  }
  launch.begun++;
  residents.push_back(std::move(resident));
  return true;
}

void finish(Block& block) {
  if (!block.begun) return;
  for (int warp = 0; warp < launch.warps; warp++) flush_warp(block, warp);
  for (Fiber& fiber : block.fibers) report_unset(fiber);
}

void end_cluster() {
  for (auto& block : launch.blocks) finish(*block);
  launch.ended++;
  give_back_seats();
  free_cells.push_back(std::move(launch.cells));
  Resident* const ended = running;
  exchange(*ended);
  running = nullptr;
  residents.erase(std::find_if(residents.begin(), residents.end(), [&](auto& r) { return r.get() == ended; }));
}

// When nothing else can run: those who poll and are not known to go in a circle try again, for a while.
bool try_again() {
  if (launch.tried_at != launch.changes) launch.fruitless = 0;
  launch.tried_at = launch.changes;
  size_t pollers = 0, woken = 0;
  for (auto& resident : residents)
    for (auto& block : resident.get() == running ? launch.blocks : resident->blocks) pollers += block->polling.size();
  if (launch.fruitless > (launch.weary ? LOOKS_EACH : std::max<uint64_t>(LOOKS, LOOKS_EACH * pollers))) return false;
  for (auto& resident : residents)
    for (auto& block : resident.get() == running ? launch.blocks : resident->blocks)
      woken += wake_pollers(*block, true);
  return woken > 0;
}

// Whose turn is next; null at the end of the grid.
Block* next_turn() {
  for (;;) {
    if (launch.failed) return nullptr;
    if (running) {
      if (Block* block = choose_block()) return block;
      if (deliver_a_transfer()) continue;
      size_t live = 0, polling = 0;
      for (auto& block : launch.blocks) live += block->live, polling += block->polling.size();
      if (!live)
        end_cluster();
      else if (!polling) {
        report_deadlock();
        return nullptr;
      }
    }
    if (Resident* other = choose_resident()) {
      enter(*other);
      continue;
    }
    if (begin_cluster()) continue;
    if (launch.failed || residents.empty()) return nullptr;
    if (try_again()) continue;
    for (auto& resident : residents) {
      enter(*resident);
      collect_polls();
    }
    report_polls((launch.clusters - launch.begun) * launch.blocks.size());
    launch.failed = true;
    return nullptr;
  }
}

void pass_on() {
  const Block* next = next_turn();
  finished = !next;
  const int mine = turn;
  turn = next ? next->seat : 0;
  if (finished)
    for (auto& seat : seats) seat->called.notify_one();
  else if (turn != mine)
    seats[turn]->called.notify_one();
}

void sit(int number) {
  alternate_stack(true);
  {
    std::unique_lock<std::mutex> lock(baton);
    Seat& seat = *seats[number];
    for (;;) {
      seat.called.wait(lock, [&] { return finished || turn == number; });
      if (finished) break;
      if (running) {
        runner = pthread_self();
        run_block(*seat.block);
      }
      pass_on();
    }
  }
  alternate_stack(false);
}

// On the first seat. The others are made when they are needed and end with the launch.
void run_grid() {
  if (seats.empty()) seats.push_back(std::make_unique<Seat>());
  free_seats = {0};
  residents.clear();
  running = nullptr;
  turn = 0;
  finished = false;
  runner = pthread_self();
  sit(0);
  {
    std::lock_guard<std::mutex> lock(ending);
    runner = pthread_self();  // nobody may watch a thread that has been joined
  }
  for (auto& seat : seats)
    if (seat->thread.joinable()) seat->thread.join();
  for (auto& seat : seats)  // what deep stacks took
    if (seat->stacks) madvise(seat->stacks, seat->stacks_bytes, MADV_DONTNEED);
  for (size_t i = MOST_SEATS_KEPT; i < seats.size(); i++) free_stacks(*seats[i]);
  seats.resize(std::min(seats.size(), MOST_SEATS_KEPT));
  for (auto& resident : residents) {  // of a launch that was stopped
    enter(*resident);
    for (auto& block : launch.blocks) finish(*block);
  }
  if (running) exchange(*running);
  running = nullptr;
  for (auto& resident : residents) free_cells.push_back(std::move(resident->cells));
  residents.clear();
  for (auto& cells : free_cells)
    for (Cell* each : cells) free(each);
  free_cells.clear();
}
}  // namespace

void switch_away() {
  settle_write();
  stop_if_asked(current->site.file[0] ? intern(current->site) : current->polls.place);
  if (!_setjmp(current->context)) _longjmp(current->block->scheduler, 1);
}

void give_way() {
  make_ready(*current);
  switch_away();
}

void step_behind() {
  current->state = State::ready;
  auto& ready = current->block->ready;
  ready.insert(launch.schedule == 1 ? ready.begin() : ready.end(), current->thread);
  switch_away();
}

int wake_pollers(Block& block, bool unproven) {
  auto stays = [&](int thread) {
    const Polls& polls = block.fibers[thread].polls;
    if (unproven) return polls.proven && polls.changes == launch.changes;
    return polls.restless || polls.changes == launch.changes;
  };
  const auto woken = std::stable_partition(block.polling.begin(), block.polling.end(), stays);
  const int count = block.polling.end() - woken;
  for (auto thread = woken; thread != block.polling.end(); ++thread) make_ready(block.fibers[*thread]);
  block.polling.erase(woken, block.polling.end());
  if (!count) block.quiet_at = launch.changes;
  return count;
}

void make_ready(Fiber& fiber) {
  fiber.state = State::ready;
  fiber.block->ready.push_back(fiber.thread);
}

void thread_returned(Fiber& fiber) {
  check_copies_awaited(fiber);
  fiber.state = State::done;
  fiber.block->live--;
  // The barrier of the cluster waits for those that have not returned, and counts them alone.
  if (fiber.cluster_arrived && fiber.cluster_phase == launch.cluster_phase) launch.cluster_arrivals--;
  fiber.block->returned_lanes[fiber.warp()] |= 1u << fiber.lane();
  if (launch.blocks.size() > 1 || !fiber.block->arriving.empty()) check_nobody_reaches_in(fiber);
  if (!fiber.block->live) {
    check_arrivals_awaited(*fiber.block);
    check_warpgroups(*fiber.block);
  }
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
    return fact("thread", in_block) + of;
  if (in_block < launch.threads + launch.warps)
    return text("wgmma of warp %d", in_block - launch.threads) + of;
  return "an asynchronous copy or store" + of;
}

std::string waiting_at(const Fiber& fiber) {
  if (fiber.state == State::done) return "returned";
  return text("waiting at %s, ", fiber.waits_at) + fact("line", fiber.site.line) + lacking(fiber);
}

int lane() { return current->lane(); }

}  // namespace cpu

// What Python calls: cpu_start, cpu_wait until that says 1, then cpu_end, which may also come before.
namespace {
std::thread conductor;
std::condition_variable has_ended;
bool ended;
timespec began;

double seconds_since(const timespec& then, clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec - then.tv_sec + (now.tv_nsec - then.tv_nsec) * 1e-9;
}
}  // namespace

// `shape`: grid, block, cluster; `ranges`: start, end, constant, written of each array. What it is given must
// stay until cpu_end. Returns 0 where the machine has no thread for the launch.
extern "C" int cpu_start(void (*kernel)(void**), void* (*dynamic_shared)(), void** arguments,
                         const unsigned* shape, unsigned dynamic_bytes, const uint64_t* ranges,
                         const char** names, int count, const double* options) {
  using namespace cpu;
  launch = Launch();
  cpu::dynamic_shared = dynamic_shared;
  launch.kernel = kernel;
  launch.arguments = arguments;
  launch.dynamic_bytes = dynamic_bytes;
  launch.checks = options[0] != 0;
  launch.counts = options[1] != 0;
  launch.schedule = (int)options[2];
  launch.random.seed((unsigned)options[3]);
  launch.time_limit = options[4];
  launch.early = options[5] != 0;
  gridDim = grid_shape = {shape[0], shape[1], shape[2]};
  blockDim = {shape[3], shape[4], shape[5]};
  cluster_shape = {shape[6], shape[7], shape[8]};
  const size_t blocks = (size_t)shape[6] * shape[7] * shape[8];
  launch.clusters = (size_t)shape[0] * shape[1] * shape[2] / blocks;
  launch.threads = blockDim.x * blockDim.y * blockDim.z;
  launch.warps = (launch.threads + 31) / 32;
  launch.agents = (blocks * launch.agents_of_block() + 31) / 32 * 32;  // readers are looked at by 32
  for (int i = 0; i < count; i++)
    launch.buffers.push_back({(char*)ranges[4 * i],
                              (char*)ranges[4 * i + 1],
                              ranges[4 * i + 2] != 0,
                              (uint8_t*)ranges[4 * i + 3],
                              names[i],
                              {}});
  for (auto& use : launch.permutation) {
    for (int i = 0; i < 256; i++) use[i] = i;
    if (launch.schedule == 2) std::shuffle(use, use + 256, launch.random);
  }
  clear_reports();
  heeded = 0;
  ended = out_of_memory = false;
  clock_gettime(CLOCK_MONOTONIC, &began);
  watch_signals(true);
  try {
    conductor = std::thread([] {
      run_grid();
      std::lock_guard<std::mutex> lock(ending);
      ended = true;
      has_ended.notify_all();
    });
  } catch (const std::system_error&) {
    watch_signals(false);
    return 0;
  }
  return 1;
}

// Waits for a moment; 1 when the launch has ended. The caller's thread is the one that watches the launch.
extern "C" int cpu_wait() {
  using namespace cpu;
  std::unique_lock<std::mutex> lock(ending);
  if (has_ended.wait_for(lock, std::chrono::milliseconds(50), [] { return ended; })) return 1;
  if (seconds_since(began) > launch.time_limit) heeded |= TOO_LONG;
  watch_progress();
  return 0;
}

// Stops the launch where it has not ended. Returns the report, null where there was no memory for the stacks.
extern "C" const char* cpu_end() {
  using namespace cpu;
  static std::string report;
  if (!conductor.joinable()) return nullptr;
  {
    std::unique_lock<std::mutex> lock(ending);
    while (!ended) {
      heeded |= STOP;
      has_ended.wait_for(lock, std::chrono::milliseconds(20), [] { return ended; });
      if (!ended) watch_progress();
    }
  }
  conductor.join();
  watch_signals(false);
  report = write_report();
  launch = Launch();
  return out_of_memory ? nullptr : report.c_str();
}
