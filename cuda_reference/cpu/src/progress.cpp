// Whether a launch makes progress. A thread that looks at memory again, in the state in which it looked before,
// goes in a circle until memory changes; when all that can run go in circles, nothing ever changes it. Memory
// does not tell whether a loop that changes it, or one in registers, has an end: the first may go on until its
// caller stops it, the second is given up after a long time in which its thread has called nothing here.
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>
#include "runtime.h"

namespace cpu {
std::atomic<uint32_t> heeded;
uint64_t beats;
pthread_t runner;
Written written;

namespace {
constexpr uint32_t PATIENCE = 64;         // looks in vain before all others come first
constexpr uint32_t RESTLESS = 4096;       // the same where memory keeps changing
constexpr uint32_t ATOMICS = 16;          // that change memory, before others run
constexpr uint64_t SUSPICIOUS = 1 << 20;  // accesses without a pause, after which a window is looked at
constexpr uint64_t WINDOW = 1 << 12;
// Seconds of processor time in a thread that calls nothing here: after the first it is asked for its state from
// time to time, after the second it is stopped.
constexpr double SILENT = 0.3, TOO_SILENT = 10;

uint64_t hash_of(const void* start, const void* end, uint64_t hash) {
  for (auto* word = (const uint64_t*)start; word < (const uint64_t*)end; word++) {
    hash = (hash + 0x9e3779b97f4a7c15 ^ *word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

bool in_kernel(uint64_t pc) { return pc >= (uint64_t)launch.image_start && pc < (uint64_t)launch.image_end; }

#if defined(__x86_64__)
constexpr int KEPT[] = {3, 6, 12, 13, 14, 15};  // registers that a call keeps, by their DWARF numbers
#elif defined(__aarch64__)
constexpr int KEPT[] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 72, 73, 74, 75, 76, 77, 78, 79};
#endif

_Unwind_Reason_Code hash_frame(_Unwind_Context* context, void* hash) {
  const uint64_t pc = _Unwind_GetIP(context);
  if (!in_kernel(pc)) return _URC_NO_REASON;
  uint64_t registers[1 + sizeof KEPT / sizeof *KEPT] = {pc}, *next = registers + 1;
  for (int number : KEPT) *next++ = _Unwind_GetGR(context, number);
  const void* stack = (const void*)_Unwind_GetCFA(context);
  *(uint64_t*)hash = hash_of(stack, current->stack + STACK_BYTES, hash_of(registers, next, 1));
  return _URC_END_OF_STACK;
}

// All that decides what a thread does next, but for memory that others see: the kernel's registers at its call
// of the executor, and its stack.
uint64_t state_of_thread() {
  uint64_t hash = 0;
  _Unwind_Backtrace(hash_frame, &hash);
  return hash;
}

// ---- looking at memory
void forget_circle(Polls& polls, uint64_t state) {
  polls.changes = launch.changes;
  polls.meetings = launch.meetings;
  polls.anchor = state;
  polls.steps = polls.fruitless = 0;
  polls.limit = 1;
  polls.proven = false;
}

// Whether the thread was in this state before, with memory as it is.
bool closes_circle(Polls& polls, uint64_t state) {
  if (polls.changes != launch.changes) {
    forget_circle(polls, state);
    return false;
  }
  polls.fruitless++;
  if (polls.anchor == state) {
    polls.circled = launch.changes;
    if (polls.meetings == launch.meetings) return true;
    polls.meetings = launch.meetings;  // what it heard from others may differ the next time
    return false;
  }
  if (++polls.steps < polls.limit) return false;
  polls.anchor = state;
  polls.meetings = launch.meetings;
  polls.steps = 0;
  polls.limit *= 2;
  return false;
}

void park(bool proven) {
  Fiber& fiber = *current;
  fiber.polls.proven = proven;
  fiber.polls.restless = !proven && fiber.polls.yields >= RESTLESS;
  fiber.polls.yields = 0;
  fiber.state = State::polling;
  fiber.block->polling.push_back(fiber.thread);
  switch_away();
}

void look(const void* address, Place place, bool suspected) {
  Fiber& fiber = *current;
  Polls& polls = fiber.polls;
  settle_write();
  polls.address = address;
  polls.place = place;
  fiber.site = {"", 0};
  stop_if_asked(place);
  const uint64_t state = state_of_thread();
  const bool circle = closes_circle(polls, state);
  if (suspected && !circle && !launch.weary) return;
  fiber.atomics = 0;
  if (circle) {
    park(true);
  } else if (polls.fruitless >= PATIENCE || ++polls.yields >= RESTLESS) {
    launch.fruitless++;
    park(false);
  } else {
    step_behind();
  }
  if (polls.changes != launch.changes) forget_circle(polls, state);
}

uint64_t accesses;  // for suspicion

}  // namespace

void poll(const void* address, Place place) { look(address, place, false); }

void note_change(const void* address, Place place) {
  launch.changes++;
  Block* owner = shared_owner(address);
  (owner ? owner->changed : launch.changed)[address] = {place, who(current->agent)};
}

// An atomic lets others run where the one before it changed nothing, for then it may be a poll, or now and then.
void pause_at_atomic(const void* address, Place place) {
  Fiber& fiber = *current;
  beats++;
  if (launch.schedule == 2 || !fiber.atomic_changed || ++fiber.atomics >= ATOMICS || heeded)
    look(address, place, false);
}

void after_atomic(const void* address, bool changed, Site site) {
  current->atomic_changed = changed;
  if (changed) note_change(address, intern(site));
}

// ---- what an access to memory looks up for
namespace {
// Whether every thread came back to a state in this window, or waited from before it on.
bool all_circle(uint64_t since) {
  for (auto& block : launch.blocks)
    for (Fiber& fiber : block->fibers) {
      const bool waits = fiber.state != State::ready && fiber.polls.ran < since;
      if (fiber.state != State::done && fiber.state != State::polling && !waits &&
          fiber.polls.circled != launch.changes)
        return false;
    }
  return true;
}
}  // namespace

void suspect() {
  static uint64_t changes, begun, window;
  if (beats - accesses < SUSPICIOUS) return;
  if (!(heeded & SUSPECT)) {
    window = launch.changes == changes ? std::min(2 * window, SUSPICIOUS) : WINDOW;
    changes = launch.changes;
    begun = beats;
    heeded |= SUSPECT;
  }
  if (launch.weary && changes == launch.changes) return;
  if (!launch.weary && beats - begun < window) return;
  launch.weary = !launch.weary && changes == launch.changes && all_circle(begun);
  if (launch.weary) return;
  heeded &= ~SUSPECT;
  accesses = beats;
}

void meet(Site site) {
  beats++;
  suspect();
  if (heeded) heed(nullptr, intern(site));
}

void heed(const void* address, Place place) {
  stop_if_asked(place);
  if (heeded & SUSPECT) look(address, place, true);
  if (heeded & LOG_FULL) {
    heeded &= ~LOG_FULL;
    step_behind();
  }
}

void stop_if_asked(Place place) {
  const uint32_t why = heeded;
  if (!(why & (STOP | TOO_LONG | ENDLESS))) return;
  heeded &= ~(TOO_LONG | ENDLESS | CIRCLE);
  if (!(why & STOP) && why & TOO_LONG)
    add_problem("time limit", place, 0,
                text("stopped by time_limit = %g s after %zu of %zu blocks; %s was here", launch.time_limit,
                     launch.ended * launch.blocks.size(), launch.clusters * launch.blocks.size(),
                     who(current->agent).c_str()));
  else if (!(why & STOP))
    add_problem("endless loop", place, 0,
                text("%s goes round in registers, without memory or other threads: %s", who(current->agent).c_str(),
                     why & CIRCLE ? "it came back to the same state"
                                  : text("it has for %g s of processor time", TOO_SILENT).c_str()));
  stop_launch();
}

// ---- when all that can run go in circles
namespace {
struct Group {
  const void* address;
  Place other = 0;
  uint3 block;
  Fiber* first;
  std::vector<int> threads;
  std::string last;
};
std::map<Place, Group> groups;
std::map<std::string, int> waiting;

std::string range(const std::vector<int>& threads) {
  if (threads.size() == 1) return text("thread %d", threads[0]);
  return text("%zu threads (%d to %d)", threads.size(), threads.front(), threads.back());
}
}  // namespace

// Of the cluster whose state `launch` holds.
void collect_polls() {
  for (auto& block : launch.blocks)
    for (Fiber& fiber : block->fibers) {
      if (fiber.state == State::done) continue;
      if (fiber.state != State::polling) {
        waiting[waiting_at(fiber)]++;
        continue;
      }
      Group& group = groups[fiber.polls.place];
      if (group.threads.empty()) {
        group.address = fiber.polls.address;
        group.block = block->index;
        group.first = &fiber;
        if (group.address)
          group.last = ": " + last_change(group.address, fiber.polls.place, group.other);
      }
      group.threads.push_back(fiber.thread);
    }
}

void report_polls(size_t not_begun) {
  std::string others;
  for (auto& [where, count] : waiting) others += text("; %d more %s", count, where.c_str());
  if (not_begun)
    others += text("; %zu blocks have not begun, for want of room beside those that wait", not_begun);
  for (auto& [place, group] : groups) {
    blockIdx = group.block;
    current = group.first;
    add_problem("endless loop", place, group.other,
                range(group.threads) + " come back to " +
                    (group.address ? place_of(group.address) : "this line") +
                    " again and again, and nobody changes memory" + group.last + others);
  }
  current = nullptr;
  groups.clear();
  waiting.clear();
}

// ---- signals: a stack that is too small, an access that kills, and the watch's knock on a thread that calls
// nothing here
namespace {
constexpr int KNOCK = SIGURG;  // ignored where nobody handles it; debuggers let it pass
struct sigaction former[3];
const int caught[] = {SIGSEGV, SIGBUS, KNOCK};
thread_local char* alternate;
constexpr size_t ALTERNATE = 256 << 10;

#if defined(__x86_64__)
uint64_t program_counter(const ucontext_t& context) { return context.uc_mcontext.gregs[REG_RIP]; }
uint64_t stack_pointer(const ucontext_t& context) { return context.uc_mcontext.gregs[REG_RSP]; }

// Whether the thread was in this state before, since it called the executor last.
bool was_here(const ucontext_t& context) {
  constexpr int MOST = 64, RED_ZONE = 128;
  static uint64_t seen[MOST], at, count;
  if (at != beats) at = beats, count = 0;
  const char* stack = (const char*)stack_pointer(context) - RED_ZONE;
  if (!inside(stack, current->stack, STACK_BYTES)) return false;
  uint64_t state = hash_of(stack, current->stack + STACK_BYTES, 0);
  state = hash_of(context.uc_mcontext.gregs, context.uc_mcontext.gregs + REG_RIP + 1, state);
  auto& vectors = context.uc_mcontext.fpregs->_xmm;
  state = hash_of(vectors, vectors + sizeof vectors / sizeof *vectors, state);
  for (uint64_t i = 0; i < std::min<uint64_t>(count, MOST); i++)
    if (seen[i] == state) return true;
  seen[count++ % MOST] = state;
  return false;
}
#elif defined(__aarch64__)
uint64_t program_counter(const ucontext_t& context) { return context.uc_mcontext.pc; }
uint64_t stack_pointer(const ucontext_t& context) { return context.uc_mcontext.sp; }
bool was_here(const ucontext_t&) { return false; }
#else
uint64_t program_counter(const ucontext_t&) { return 0; }
uint64_t stack_pointer(const ucontext_t&) { return 0; }
bool was_here(const ucontext_t&) { return false; }
#endif

// Where in the kernel the thread is: itself, or the call from which it has not come back.
Place place_in_kernel(const ucontext_t& context) {
  const uint64_t pc = program_counter(context), stack = stack_pointer(context);
  if (in_kernel(pc)) return pc + 1;
  const uint64_t low = std::max<uint64_t>(stack, (uint64_t)current->stack);
  const uint64_t high = std::min<uint64_t>(low + (64 << 10), (uint64_t)current->stack + STACK_BYTES);
  for (uint64_t at = (low + 7) & ~7ul; at < high; at += 8)
    if (in_kernel(*(uint64_t*)at)) return *(uint64_t*)at;
  return 0;
}

void caught_signal(int number, siginfo_t* info, void* data) {
  const bool mine = current && pthread_equal(pthread_self(), runner);
  auto& context = *(ucontext_t*)data;
  if (number == KNOCK) {
    // Elsewhere it may hold a lock of the C library: the next knock comes soon.
    if (!mine || !in_kernel(program_counter(context))) return;
    if (was_here(context)) heeded |= ENDLESS | CIRCLE;
    stop_if_asked(place_in_kernel(context));
    return;
  }
  const char* address = (const char*)info->si_addr;
  if (!mine) {  // not a kernel's: as it would have been without a launch
    sigaction(number, &former[number == SIGBUS], nullptr);
    return;
  }
  const bool below = address < current->stack && address >= current->stack - 4096;
  if (below)
    overflow(place_in_kernel(context));
  else
    add_problem("out of bounds", place_in_kernel(context), 0,
                text("address %p, which is no memory, is touched by %s", address, who(current->agent).c_str()));
  stop_launch();
}
}  // namespace

void overflow(Place place) {
  add_problem("stack overflow", place, 0,
              text("the local variables of %s, with those of the functions that it is in, outgrow the 512 KB of "
                   "local memory that a thread may have",
                   who(current->agent).c_str()));
  stop_launch();
}

void alternate_stack(bool wanted) {
  stack_t stack{};
  if (wanted) {
    alternate = new char[ALTERNATE];
    stack.ss_sp = alternate;
    stack.ss_size = ALTERNATE;
  } else {
    stack.ss_flags = SS_DISABLE;
  }
  sigaltstack(&stack, nullptr);
  if (!wanted) delete[] alternate;
}

void watch_signals(bool wanted) {
  for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
    if (wanted) {
      struct sigaction action{};
      action.sa_sigaction = caught_signal;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
      sigaction(caught[i], &action, &former[i]);
    } else {
      sigaction(caught[i], &former[i], nullptr);
    }
  }
  if (wanted) accesses = beats = 0, written.bytes = 0, groups.clear(), waiting.clear();
}

// A thread that calls nothing here is told to stop by a signal.
void watch_progress() {
  static uint64_t last_beats;
  static double since;
  static pthread_t last_runner;
  clockid_t clock;
  timespec now;
  const pthread_t thread = runner;
  if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &now)) return;
  const double used = now.tv_sec + now.tv_nsec * 1e-9;
  const uint64_t seen = *(volatile uint64_t*)&beats;
  if (seen != last_beats || !pthread_equal(thread, last_runner) || used < since) {
    last_beats = seen;
    last_runner = thread;
    since = used;
  } else if (used - since > TOO_SILENT) {
    heeded |= ENDLESS;
  }
  if (used - since > SILENT || heeded & (STOP | TOO_LONG | ENDLESS)) pthread_kill(thread, KNOCK);
}
}  // namespace cpu
