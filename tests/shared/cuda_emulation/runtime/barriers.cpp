// Barriers in shared memory (PTX ISA: "mbarrier") and named ones ("bar", "barrier").
#include <algorithm>
#include <map>

#include "operations.h"
#include "state.h"

namespace emu {

namespace {

struct Barrier {
  uint32_t expected, pending;
  long bytes;      // of TMA copies that the phase still waits for
  uint64_t phase;  // how many have ended
  int initialised_by;
  uint32_t initialised_at;
  std::vector<uint32_t> gathered, released;  // clocks: of the phase so far, of the last one
};
std::map<uint32_t, Barrier> barriers;

struct NamedBarrier {
  unsigned arrived = 0;
  std::vector<int> waiting;
  std::vector<uint32_t> gathered;
};
std::map<unsigned, NamedBarrier> named_barriers;

Barrier& barrier_at(uint32_t address, uintptr_t pc) {
  auto found = barriers.find(address);
  if (found == barriers.end())
    fail("no mbarrier was initialised at byte " + std::to_string(address) + " of shared memory",
         pc);
  Barrier& barrier = found->second;
  Thread& self = *block.current;
  if (barrier.initialised_by != self.index &&
      self.seen[barrier.initialised_by] < barrier.initialised_at)
    fail("an mbarrier is used that " + name_of(threads[barrier.initialised_by]) +
             " initialised with nothing to order the two",
         pc);
  return barrier;
}

void gather(std::vector<uint32_t>& clocks, Thread& self) {
  clocks.resize(clock_count());
  for (int i = 0; i < clock_count(); ++i) clocks[i] = std::max(clocks[i], self.seen[i]);
  clocks[self.index] = self.clock++;
}

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.released = barrier.gathered;
  barrier.pending = barrier.expected;
  barrier.phase++;
}

struct Wait {
  Barrier* barrier;
  uint32_t parity;
};

bool phase_has_ended(void* data) {
  const Wait& wait = *static_cast<Wait*>(data);
  return (wait.barrier->phase & 1) != wait.parity;
}

}  // namespace

void reset_barriers() {
  barriers.clear();
  named_barriers.clear();
}

void init_barrier(int /*line*/, uint32_t address, uint32_t count) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_shared_window(address, 8, 8, "an mbarrier", pc);
  check_own(address, "mbarrier.init", pc);
  shared_access(address, 8, true, pc);
  Thread& self = *block.current;
  std::vector<uint32_t> clocks(clock_count());
  barriers[address] = {count, count, 0, 0, self.index, self.clock, clocks, clocks};
}

void invalidate_barrier(int /*line*/, uint32_t address) {
  barrier_at(address, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
  barriers.erase(address);
}

namespace {

void arrive_at(uint32_t address, uint32_t count, uint32_t bytes, uintptr_t pc) {
  Barrier& barrier = barrier_at(address, pc);
  if (count > barrier.pending)
    fail("more arrivals at an mbarrier than the " + std::to_string(barrier.expected) +
             " that it was initialised for",
         pc);
  gather(barrier.gathered, *block.current);
  barrier.bytes += bytes;
  barrier.pending -= count;
  if (count > 0) end_phase_if_complete(barrier);
}

}  // namespace

// `bytes` more are expected of TMA copies before `count` arrivals are noted.
void arrive(int /*line*/, uint32_t address, uint32_t count, uint32_t bytes) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_own(address, "mbarrier.arrive", pc);
  arrive_at(address, count, bytes, pc);
}

void arrive_anywhere(int /*line*/, uint32_t address, uint32_t count) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_not_ended(int(address / kWindow), "mbarrier.arrive", pc);
  arrive_at(address, count, 0, pc);
}

bool wait_barrier(int line, uint32_t address, uint32_t parity) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  Thread& self = *block.current;
  check_own(address, "mbarrier.try_wait", pc);
  Wait what{&barrier_at(address, pc), parity};
  if (!phase_has_ended(&what)) {
    self.arrival = {"mbarrier.try_wait", line, 0, nullptr};
    self.condition = phase_has_ended;
    self.condition_data = &what;
    wait(State::kCondition);
  }
  join_clocks(self, what.barrier->released.data());
  return true;
}

void check_barrier(uint32_t address, uintptr_t pc) { barrier_at(address, pc); }

// A TMA copy of `bytes` has come; whoever waits for the phase sees what it wrote.
void count_bytes(uint32_t address, long bytes, uint32_t clock, uintptr_t pc) {
  auto found = barriers.find(address);
  if (found == barriers.end()) fail("a TMA copy's mbarrier is gone", pc);
  Barrier& barrier = found->second;
  barrier.bytes -= bytes;
  uint32_t& seen = barrier.gathered[block.threads];
  seen = std::max(seen, clock);
  end_phase_if_complete(barrier);
}

// `count` threads together: those that wait, and those that only arrive.
void named_barrier(int line, unsigned number, unsigned count, bool waits) {
  if (number == 0 && count == 0 && waits) return barrier(line);
  Thread& self = *block.current;
  if (count == 0) count = block.threads;
  if (number > 15 || count % kWarp != 0)
    fail_at_line("a named barrier has a number up to 15 and whole warps, not number " +
                     std::to_string(number) + " and " + std::to_string(count) + " threads",
                 line);
  NamedBarrier& named = named_barriers[number];
  gather(named.gathered, self);
  named.arrived++;
  if (waits) named.waiting.push_back(self.index);
  if (named.arrived < count) {
    if (!waits) return;
    self.arrival = {"a named barrier", line, 0, nullptr};
    wait(State::kNamedBarrier);
    return;
  }
  NamedBarrier complete;
  std::swap(complete, named);
  for (int index : complete.waiting) {
    join_clocks(threads[index], complete.gathered.data());
    threads[index].state = State::kReady;
  }
}

}  // namespace emu
