// The CPU executor's own view of a launch. One fiber (a stack and a saved context) is one CUDA thread. The
// blocks of a cluster run together, each on an operating-system thread of its own, of which only one runs at
// a time; the next cluster begins when one ends, or when all that have begun wait for another. Everything is
// single-threaded in effect, so nothing here is locked.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <pthread.h>
#include <random>
#include <setjmp.h>
#include <string>
#include <string.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include "../shim/executor.h"

namespace cpu {

// ---- places in the kernel: a program counter, or an interned Site with the top bit set
using Place = uint64_t;
Place intern(Site);
std::string describe(Place);  // "file:line", or "pc:hex" for Python to look up

// ---- happens-before. An agent is a CUDA thread or one of the engines that work beside it. seen[a]: how far
// this one knows agent a's history; fenced[a]: the part of it that is also visible to the async proxy (TMA,
// wgmma).
struct Clock {
  std::vector<uint32_t> seen, fenced;
  void reset(size_t agents) { seen.assign(agents, 0), fenced.assign(agents, 0); }
  void join(const Clock& other);
};

// What is known of clusters that ran before, by way of atomics and fences: cluster number -> seen.
using Past = std::map<uint32_t, std::shared_ptr<std::vector<uint32_t>>>;
void join_past(Past& into, const Past& from);

// ---- shadow of memory: one cell for two bytes

// Agents 32 * group + i, for each bit i of `agents`, read at the same clock and place; `strong`: through a
// volatile. A cell keeps every reader that no later one comes after, so at most one entry for each agent of a
// cluster.
struct Reader {
  uint16_t group;
  bool strong;
  uint32_t cluster, clock, agents;
  Place place;
};
struct Readers {
  uint32_t count, capacity;
  Reader list[1];  // of `capacity`
  Reader* begin() { return list; }
  Reader* end() { return list + count; }
};
struct Cell {            // all zero: never touched
  uint32_t write_clock;  // 0: never written
  uint32_t write_cluster;
  uint16_t writer;
  bool by_async_proxy, in_flight;
  Access how;  // it was written
  Place written_at;
  Readers* readers;
};

struct Fiber;
struct Block;

enum class State { ready, polling, at_warp, at_barrier, at_mbarrier, at_cluster, at_copies, done };

// What a thread does that looks at memory again and again (progress.cpp).
struct Polls {
  const void* address = nullptr;
  Place place = 0;
  uint64_t changes = 0;            // of the launch, when it looked last
  uint64_t anchor = 0;             // a state that it was in: where it comes back to it, it goes in a circle
  uint64_t meetings = 0;           // of the launch, then
  uint32_t steps = 0, limit = 1;   // since the anchor; at the limit the anchor moves on (Brent)
  uint64_t circled = 0, ran = 0;   // changes when it last came back, met others or not; beats when it ran last
  uint32_t fruitless = 0, yields = 0;
  bool proven = false, restless = false;
};

// One copy: `bytes` to `destination`, of which the first `source_bytes` come from `source`, the rest are
// zero.
struct Copy {
  char* destination;
  const char* source;
  int bytes, source_bytes;
  Place place;
  char before[16];  // of cp.async: the source when it was issued
};
using Copies = std::vector<Copy>;

struct Transfer;
// cp.async copies of a thread that are done at a time: when it waits for their group, or for an mbarrier.
struct Piece {
  Copies copies;
  bool done = false;
  std::weak_ptr<Transfer> engine;  // which an mbarrier counts, if any does: it makes the copies then
  uint16_t writer = 0;             // the engine's agent, and when it writes; never: 0
  uint32_t written = 0;
};
using Pieces = std::vector<std::shared_ptr<Piece>>;

struct Mbarrier {
  int arrivals, pending;
  int64_t bytes = 0;
  uint32_t phase = 0;
  bool announced = false;  // to the async proxy, by a fence after mbarrier.init
  Clock arriving, released;
  Place initialised;
  uint16_t maker;  // who initialised it, and when
  uint32_t made;
};

// A copy of an engine under way: what to do when it arrives, and which mbarrier, if any, then counts it.
struct Transfer {
  Copies copies;
  Pieces pieces;  // of cp.async
  std::vector<std::pair<Mbarrier*, int64_t>> completes;  // mbarrier, bytes (-1: one arrival)
  Clock clock;
  uint16_t agent, writer;  // out of shared memory: `writer` fills the destination, after `agent` has read
  uint32_t written;        // the writer's clock
  bool async_proxy;
  bool add = false;
  std::shared_ptr<bool> done;
  char value[16];  // what st.async took from registers
};

struct StoreGroup {
  std::vector<std::shared_ptr<Transfer>> transfers;  // until their source has been read
  Clock written;                                     // of their writers
};

constexpr size_t STACK_BYTES = 640 << 10;  // the 512 KB that CUDA allows a thread, and room for the executor

// When each word of a stack was touched last, as the number of the warp's wgmma.fence before it.
struct StackUse {
  uint16_t* fences = nullptr;
  size_t lowest = STACK_BYTES / 4;  // word that was touched: a stack grows downwards
};

// A read of a local variable that nothing was assigned to.
struct Unset {
  const char* address;
  size_t bytes;
  Place place;
};

struct Fiber {
  jmp_buf context;
  char* stack = nullptr;
  StackUse* use = nullptr;   // from the first wgmma.fence on
  std::vector<Unset> unset;  // until their variable's scope ends, which says its name
  Block* block = nullptr;
  int thread = 0;  // in the block
  uint16_t agent = 0;
  uint3 index{};
  State state = State::ready;

  const char* waits_at = "";  // what it waits for, and where
  Site site{"", 0};
  unsigned mask = 0;
  void* argument = nullptr;
  Together together = nullptr;
  int barrier = 0, barrier_threads = 0;
  Mbarrier* mbarrier = nullptr;
  uint32_t parity = 0;

  Clock clock;
  Clock announced;  // at the last fence.mbarrier_init
  Past past;        // of earlier clusters
  std::shared_ptr<const Past> released, released_here;  // known at the last __threadfence; at that or a later _block
  Past acquired, acquired_here;  // by atomics since the last __threadfence; of the own block, since that or a _block
  Copies open_copies;
  Pieces open_pieces;  // copies not committed that an mbarrier counts
  std::vector<Pieces> copy_groups;
  std::vector<uint32_t> committed;  // barriers passed when each group was committed
  uint32_t barriers_passed = 0;
  std::vector<std::shared_ptr<Transfer>> open_stores;
  std::vector<StoreGroup> store_groups;
  uint32_t cluster_phase = 0;  // in which it arrived last
  Polls polls;
  uint32_t atomics = 0;  // since it last let others run
  bool atomic_changed = true;
  bool cluster_arrived = false;
  bool may_be_early = true;  // for all it knows the kernels before still run

  int warp() const { return thread / 32; }
  int lane() const { return thread % 32; }
  uint32_t tick() { return ++clock.seen[agent]; }
};

struct NamedBarrier {
  Clock arrived;
  int arrivals = 0, threads = 0;
  std::vector<Fiber*> waiting;
};

// wgmma of one warp
struct Product {
  int n;
  bool registers_a, transpose_b, accumulate;
  Element element;
  uint64_t a, b;
  std::vector<float*> d;
  const uint32_t* a_place[32];
  uint32_t a_registers[32][4];
  Clock clock;
  Place place;
  uint32_t number;
};
// Registers of one lane that products in flight read (the left operand) or write (the accumulators).
struct InFlight {
  const char *start, *end;
  bool accumulators, told;
  uint32_t product;
  Place place;
};
struct WarpProducts {
  std::vector<Product> open;
  std::vector<std::vector<Product>> groups;
  std::map<float*, std::vector<float>>
      sums;  // what the accumulators will hold; until waited for, they hold NaN
  std::vector<InFlight> in_flight[32];
  uint16_t fences = 0;  // wgmma.fence so far
};

// What the four warps of a warpgroup must each issue, the same in the same order.
struct Issued {
  Place place;
  int n;
  uint64_t a, b;  // a: 0 where it is in registers
  bool registers_a, transpose_b;
  Element element;
  bool operator==(const Issued&) const = default;
};
struct Warpgroup {
  std::deque<Issued> ahead;  // what some warps have issued and others have not
  uint32_t gone = 0;         // those before
  uint32_t issued[4] = {};   // by each warp
  bool told = false;
};

struct Logged {
  Place place;
  uint64_t address, source;  // source: of a copy of 16 bytes past L1, else 0
  uint32_t bytes, visit;
  uint8_t access, shared, lane, buffer;
};

struct Block {
  uint3 index{};
  uint32_t rank = 0;
  char* storage = nullptr;  // the module's thread-local block: static and dynamic shared memory
  char* dynamic = nullptr;
  std::vector<Fiber> fibers;
  Cell* cells = nullptr;                          // [storage bytes / 2]
  std::vector<unsigned> at_warp, returned_lanes;  // [warps]: lanes that wait at a collective; that returned
  std::map<int, NamedBarrier> barriers;
  std::map<uint32_t, Mbarrier> mbarriers;  // by offset in storage
  std::vector<WarpProducts> products;      // [warps]
  std::map<int, Warpgroup> warpgroups;     // those that have issued wgmma
  std::vector<int> registers;              // [warps] that setmaxnreg gave to each thread; 0: as compiled
  std::vector<std::vector<Logged>> log;    // [warps]
  std::vector<std::array<uint32_t, 32>> logged;  // [warps][lane]: of its accesses in the log
  std::vector<int> ready, polling;
  uint64_t quiet_at = 0;  // launch.changes when its polling threads had all looked
  int seat = 0;           // the operating-system thread that it runs on
  bool begun = false;
  int live = 0;
  Clock returned;  // what its threads knew when they returned
  std::vector<std::pair<uint16_t, uint32_t>> awaited;  // who waited for the kernels before, and when
  std::map<uint16_t, std::pair<uint32_t, Place>>
      reached_into;  // agent of another block -> when and where last
  // As the launch's, of shared memory: a later block has the same addresses.
  std::unordered_map<uint64_t, Past> atomics;
  std::unordered_map<const void*, std::pair<Place, std::string>> changed;
  std::unordered_map<uint64_t, Past> atomics_here;  // address -> what its threads released to their block alone
  std::map<uint16_t, std::pair<uint32_t, Place>> arriving;  // engine -> when and where it last began to fill its memory
  uint32_t next_engine = 0;
  std::vector<uint32_t> engine_clocks;
  jmp_buf scheduler;
};

// An array that the launch was given.
struct Buffer {
  char *start, *end;
  bool constant;
  uint8_t* written;  // of scratch, for each byte: whether somebody wrote it, in this launch or before; or null
  std::string name;
  std::unordered_map<uint64_t, std::vector<Cell>> pages;
};

struct Traffic {
  uint64_t requests = 0, lanes = 0, unique_bytes = 0, requested_bytes = 0, sectors = 0, wavefronts = 0,
           ideal = 0, worst = 0;
};

constexpr int MOST_THREADS = 1024;  // of a block
constexpr int MOST_BLOCKS = 64;  // of a cluster
constexpr int ENGINES =
    32;  // engine agents a block: that many copies may be under way and still be told apart

// ---- the launch
struct Launch {
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
  unsigned dynamic_bytes = 0;
  size_t storage_bytes = 0;
  char *image_start = nullptr, *image_end = nullptr;
  bool checks = true, counts = false, failed = false;
  bool early = false;   // begins under the end of the kernel before, and waits for it itself
  bool fences = false;  // a proxy fence or an engine was used, so that Clock::fenced matters
  int schedule = 0;     // 0 forward, 1 reverse, 2 random
  std::mt19937 random;
  int threads = 0, warps = 0;
  size_t agents = 0;                           // of the whole cluster
  uint32_t cluster = 0;                        // number of the one that runs, from 1
  std::vector<std::unique_ptr<Block>> blocks;  // of the cluster
  std::deque<std::shared_ptr<Transfer>> transfers;
  Clock cluster_arrived, cluster_released;  // what the arrivals of this and of the last phase knew
  int cluster_arrivals = 0;
  uint32_t cluster_phase = 0;
  std::vector<Buffer> buffers;
  std::vector<Cell*> cells;  // by rank: kept from one cluster to the next
  std::deque<std::unique_ptr<char[]>> readers;
  std::vector<Readers*> free_readers;
  std::unordered_set<Place> unset;  // places that were reported
  std::unordered_map<uint64_t, Past> atomics;                      // address -> what its writers released
  std::map<std::tuple<Place, std::string, int>, Traffic> traffic;  // place, operation, buffer (-1 shared)
  int permutation[3][256];
  uint64_t changes = 1;    // of memory, as far as threads can see it
  uint64_t meetings = 0;   // collectives and barriers that were completed
  uint64_t fruitless = 0;  // looks at memory since it changed last, of threads that may yet stop by themselves
  std::unordered_map<const void*, std::pair<Place, std::string>> changed;  // by an atomic or volatile: where, who
  bool weary = false;      // for long, all have come back to states in which they were, and memory is as it was
  uint64_t tried_at = 0;   // changes, when those who poll were last asked to go on
  size_t clusters = 0, begun = 0, ended = 0;
  bool turned = false;  // the order of the group of clusters that begins
  double time_limit = 0;  // seconds

  size_t agents_of_block() const { return threads + warps + ENGINES; }
  uint16_t thread_agent(uint32_t rank, int thread) const { return rank * agents_of_block() + thread; }
  uint16_t product_agent(uint32_t rank, int warp) const { return rank * agents_of_block() + threads + warp; }
};
extern Launch launch;
extern Fiber* current;

inline bool inside(const void* p, const void* start, size_t bytes) {
  return (size_t)((const char*)p - (const char*)start) < bytes;
}

// ---- scheduling (schedule.cpp)
void switch_away();   // runs others until somebody has made this fiber ready
void give_way();      // stays ready
void step_behind();   // stays ready, but all others come first
void make_ready(Fiber&);
void thread_returned(Fiber&);
std::string who(size_t agent);
std::string waiting_at(const Fiber&);
[[noreturn]] void stop_launch();
int wake_pollers(Block&, bool unproven);  // those for whom memory has changed, or all who may yet stop

// ---- progress (progress.cpp)
// Reasons to look up, any of which makes the next access to memory call heed().
constexpr uint32_t STOP = 1, TOO_LONG = 2, ENDLESS = 4, CIRCLE = 8, SUSPECT = 16, LOG_FULL = 32;
extern std::atomic<uint32_t> heeded;
extern uint64_t beats;  // calls of the executor, for the watch
void heed(const void* address, Place);
void suspect();  // after every access: it may be one of a loop that never ends
void meet(Site);  // before threads wait for each other, for the same reason
void stop_if_asked(Place);
[[noreturn]] void overflow(Place);
void poll(const void* address, Place);  // before a look at memory that others may change
void pause_at_atomic(const void* address, Place);
void note_change(const void* address, Place);
void carry(Fiber&, const void* address, bool acquire, bool release);  // memory.cpp
// What the last plain write does to memory is seen when the next thing happens.
struct Written {
  const char* address;
  size_t bytes;
  char before[16];
};
extern Written written;
inline void before_write(const void* address, size_t bytes) {
  if (inside(address, current->stack, STACK_BYTES)) return;
  if (bytes > sizeof written.before) {
    launch.changes++;
    return;
  }
  written.address = (const char*)address;
  written.bytes = bytes;
  memcpy(written.before, address, bytes);
}
inline void settle_write() {  // memory has changed if the last write found another value there
  if (!written.bytes) return;
  if (memcmp(written.before, written.address, written.bytes)) launch.changes++;
  written.bytes = 0;
}
void collect_polls();
void report_polls(size_t not_begun);
void watch_signals(bool);
void watch_progress();  // from time to time, by another thread than the launch's
void alternate_stack(bool);
extern pthread_t runner;  // the operating-system thread that runs fibers
std::string last_change(const void* address, Place poll, Place& where);  // memory.cpp
std::string place_of(const void* address);

// ---- barriers (barriers.cpp)
void release_barrier(Block&, int id);
void warp_mate_returned(Fiber&);
void release_cluster();
void join_everyone(const std::vector<Fiber*>&, const Clock* extra = nullptr);

// ---- memory (memory.cpp)
struct Actor {
  uint16_t agent;
  const Clock* clock;
  uint32_t now;
  bool async_proxy;
  Fiber* fiber;
};
Actor actor_of(Fiber&);
Block* shared_owner(const void*);  // the block of the cluster whose shared memory holds the address, or null
void touch_shared(const Actor&, Block&, size_t offset, size_t bytes, Access, Place);
void touch(Fiber&, const void*, size_t bytes, Access, Place, bool counted);
void touch_registers(Fiber&, const void*, size_t bytes, Access, Place);  // the fiber's own stack
void check_set(Fiber&, const void*, size_t bytes, Place);
void report_unset(Fiber&);
void touch_global(int buffer, const Actor&, const void*, size_t bytes, Access, Place);
void forget_cells(Block&);
void set_in_flight(const void* destination, size_t bytes, bool, Place);
void check_nobody_reaches_in(Fiber& returned);
int buffer_of(const void*, size_t bytes);  // index into launch.buffers, or -1

// ---- copies (copies.cpp)
std::shared_ptr<Transfer> new_transfer(Fiber&, bool async_proxy);
void add_copy(Transfer&, void* destination, const void* source, int bytes, int source_bytes, Place);
void add_value(Transfer&, void* destination, const void* value, int bytes, Place);
void issue(const std::shared_ptr<Transfer>&);
void deliver(Transfer&);
void give_writer(Transfer&);
bool deliver_a_transfer();
void check_copies_awaited(Fiber&);
void check_arrivals_awaited(const Block& ended);
Mbarrier& mbarrier_at(uint64_t*, Site);


// ---- matrix (matrix.cpp)
void check_in_flight(Fiber&, const void*, size_t bytes, Access, Place);
void check_products_awaited(Fiber&);
void check_warpgroups(const Block& ended);

// ---- counting (count.cpp)
void log_access(Fiber&, const void*, size_t bytes, Access, Place, int buffer, const void* source = nullptr);
void count_event(Place, const char* operation, uint64_t lanes = 0);
void count_bulk(Place, const char* operation, const void* address, size_t bytes);
void count_message(Place, const char* operation, uint32_t rank, size_t bytes);
void flush_warp(Block&, int warp);
void trim_log(Block&, int warp);  // counts what no lane can add to any more

// ---- reporting (report.cpp)
void add_problem(const char* kind, Place, Place other, const std::string& text);
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
// A fact within a problem's text, which Python reads as data and puts into words: see `facts.py`.
std::string fact(const char* kind, long number, const std::string& name = "");
void clear_reports();
std::string write_report();
}  // namespace cpu
