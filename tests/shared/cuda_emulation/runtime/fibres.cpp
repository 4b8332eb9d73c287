// Threads of a block as fibres: each runs until it waits for others. Nothing runs in parallel, so
// a run is reproducible; the seed of the launch changes the order in which threads have their turns.
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "context.h"
#include "operations.h"
#include "state.h"

namespace emu {

void throw_if_failed();         // of launch.cpp
void require_no_bulk_copies();  // of bulk_copies.cpp
void require_whole_groups();    // of warp_group.cpp

Block block;
Thread threads[kMaxThreads];

namespace {

void* scheduler_stack_pointer;
void (*thread_body)(void*);
void* thread_data;
// What all threads of a block have seen after its barrier.
uint32_t block_clocks[kMaxCluster][kMaxClocks];
std::vector<int> order;

void leave() {
  void* unused;
  Thread* self = block.current;
  emu_switch_stack(self != nullptr ? &self->stack_pointer : &unused, scheduler_stack_pointer);
}

void thread_entry() {
  thread_body(thread_data);
  block.current->state = State::kDone;
  block.running--;
  leave();
  __builtin_unreachable();
}

void start_threads() {
  uint32_t before = block.next_clock++;
  block.first_clock = block.next_clock;
  for (int i = 0; i < block.threads; ++i) {
    Thread& thread = threads[i];
    if (thread.stack == nullptr) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) fail("no memory for the stacks of the threads");
      mprotect(memory, 4096, PROT_NONE);
      thread.stack = static_cast<char*>(memory);
    }
    thread.index = i;
    int own = i % threads_of_block();
    thread.x = own % block.size[0];
    thread.y = own / block.size[0] % block.size[1];
    thread.z = own / (block.size[0] * block.size[1]);
    thread.state = State::kReady;
    thread.stack_pointer = first_frame(thread.stack + kStackBytes, thread_entry);
    thread.clock = block.next_clock;
    thread.seen = block_clocks[rank_of(thread)];
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.proxy_clock = 0;
  }
  for (auto& clocks : block_clocks) std::fill_n(clocks, clock_count(), before);
  reset_cluster();
  reset_barriers();
  reset_bulk_copies();
  reset_warp_groups();
}

void shuffle_order() {
  order.resize(block.threads);
  std::iota(order.begin(), order.end(), 0);
  if (block.random == 0) return;
  for (int i = block.threads - 1; i > 0; --i) std::swap(order[i], order[next_random() % (i + 1)]);
}

// Lanes that ask for the active lanes get those of their warp that ask at the same place, once no
// other lane of the warp can come any more: as if the warp ran together wherever it can.
bool answer_active_masks() {
  bool found = false;
  for (int first = 0; first < block.threads; first += kWarp) {
    int last = std::min(first + kWarp, block.threads), line = -1;
    for (int i = first; i < last; ++i)
      if (threads[i].state == State::kActiveMask &&
          (line < 0 || threads[i].arrival.line < line))
        line = threads[i].arrival.line;
    uint32_t mask = 0;
    for (int i = first; i < last; ++i)
      if (threads[i].state == State::kActiveMask && threads[i].arrival.line == line)
        mask |= 1u << (i - first);
    for (int i = first; i < last; ++i)
      if (mask >> (i - first) & 1) {
        threads[i].arrival.mask = mask;
        threads[i].state = State::kReady;
      }
    found = found || mask != 0;
  }
  return found;
}

std::string place_of(const Thread& thread) {
  if (thread.state == State::kDone) return name_of(thread) + " has ended";
  return name_of(thread) + " waits at " + thread.arrival.operation + " in line " +
         std::to_string(thread.arrival.line);
}

// Nobody can go on: says where the first thread waits, and one that is elsewhere.
[[noreturn]] void fail_stuck() {
  const Thread* waiting = nullptr;
  for (int i = 0; i < block.threads && waiting == nullptr; ++i)
    if (threads[i].state != State::kDone) waiting = &threads[i];
  const Thread* other = nullptr;
  int here = 0;
  for (int i = 0; i < block.threads; ++i) {
    const Thread& thread = threads[i];
    bool same = thread.state == waiting->state && thread.arrival.line == waiting->arrival.line;
    here += same;
    // Of two that wait elsewhere the more telling is one of the same warp.
    bool nearer = other != nullptr && other->index / kWarp != waiting->index / kWarp &&
                  i / kWarp == waiting->index / kWarp;
    if (!same && (other == nullptr || nearer)) other = &thread;
  }
  std::string message = "the block hangs: " + place_of(*waiting) + " with " +
                        std::to_string(here - 1) + " others of " + std::to_string(block.threads);
  if (other != nullptr) message += "; " + place_of(*other);
  block.current = nullptr;
  fail_at_line(message, waiting->arrival.line);
}

void check_same_barrier(int first, int last) {
  for (int i = first; i < last; ++i)
    if (threads[i].arrival.line != threads[first].arrival.line)
      fail_at_line("threads of a block wait at different barriers: " + place_of(threads[first]) +
                       ", " + place_of(threads[i]),
                   threads[first].arrival.line);
}

bool release_block_barrier(int rank) {
  int first = rank * threads_of_block(), last = first + threads_of_block();
  for (int i = first; i < last; ++i)
    if (threads[i].state != State::kBarrier) return false;
  check_same_barrier(first, last);
  // Of other blocks, and of TMA copies, all know what one of them has seen.
  std::vector<uint32_t> clocks(clock_count());
  for (int k = 0; k < clock_count(); ++k)
    for (int i = first; i < last && (k < first || k >= last); ++i)
      clocks[k] = std::max(clocks[k], threads[i].seen[k]);
  for (int i = first; i < last; ++i) clocks[i] = threads[i].clock++;
  std::copy(clocks.begin(), clocks.end(), block_clocks[rank]);
  for (int i = first; i < last; ++i) {
    threads[i].seen = block_clocks[rank];
    threads[i].state = State::kReady;
  }
  block.next_clock = std::max(block.next_clock, threads[first].clock);
  return true;
}

bool release_block_barriers() {
  bool found = false;
  for (int rank = 0; rank < block.cluster; ++rank) found = release_block_barrier(rank) || found;
  return found;
}

bool run_ready_threads() {
  bool ran = false;
  for (int i : order) {
    Thread& thread = threads[i];
    if (thread.state == State::kCondition && thread.condition(thread.condition_data))
      thread.state = State::kReady;
    if (thread.state != State::kReady) continue;
    ran = true;
    block.current = &thread;
    block.steps_left = 100000000;
    emu_switch_stack(&scheduler_stack_pointer, thread.stack_pointer);
    throw_if_failed();
    block.current = nullptr;
  }
  return ran;
}

}  // namespace

// Runs one block; `fail` leaves it by an exception of the scheduler's stack.
void run_block(void (*body)(void*), void* data) {
  thread_body = body;
  thread_data = data;
  start_threads();
  shuffle_order();
  block.running = block.threads;
  while (block.running > 0) {
    if (run_ready_threads() || finish_bulk_copy()) continue;
    if (!release_block_barriers() && !answer_active_masks()) fail_stuck();
  }
  require_no_bulk_copies();
  require_whole_groups();
  for (int i = 0; i < block.threads; ++i)
    block.next_clock = std::max(block.next_clock, threads[i].clock);
}

uint32_t next_random() {
  block.random = block.random * 1664525u + 1013904223u;
  return block.random >> 8;
}

void wait(State state) {
  block.current->state = state;
  leave();
}

// For `fail`: back to the scheduler for good, which looks whether there is an error.
void leave_for_good() { leave(); }

// The lanes that the warp of a thread has: the last warp of a block may be narrower.
uint32_t warp_mask(const Thread& thread) {
  int first = thread.index / kWarp * kWarp, lanes = std::min(block.threads - first, kWarp);
  return lanes == kWarp ? 0xFFFFFFFFu : (1u << lanes) - 1;
}

void join_clocks(Thread& thread, const uint32_t* other) {
  if (thread.own_seen.size() < kMaxClocks) thread.own_seen.resize(kMaxClocks);
  uint32_t* own = thread.own_seen.data();
  for (int i = 0; i < clock_count(); ++i) own[i] = std::max(thread.seen[i], other[i]);
  thread.seen = own;
}

void barrier(int line) {
  block.current->arrival = {"__syncthreads", line, 0, nullptr};
  wait(State::kBarrier);
}

unsigned active_mask(int line) {
  Thread& self = *block.current;
  self.arrival = {"__activemask", line, 0, nullptr};
  wait(State::kActiveMask);
  return self.arrival.mask;
}

unsigned thread_index(int axis) {
  const Thread& self = *block.current;
  return axis == 0 ? self.x : axis == 1 ? self.y : self.z;
}
unsigned block_index(int axis) { return block.index[axis] + (axis == 0 ? own_rank() : 0); }
unsigned block_size(int axis) { return block.size[axis]; }
unsigned grid_size(int axis) { return block.grid[axis]; }
int lane_index() { return block.current->index % kWarp; }

}  // namespace emu
