// Clusters: blocks that run at the same time and reach each other's shared memory (PTX ISA: "Cluster
// of Cooperative Thread Arrays", "mapa", "barrier.cluster"). An address of shared memory is an offset
// in the block's window; windows follow each other.
#include <algorithm>
#include <string>

#include "operations.h"
#include "state.h"

namespace emu {

namespace {

struct ClusterBarrier {
  int arrived = 0;
  uint64_t phase = 0;
  std::vector<uint32_t> gathered, released;
};
ClusterBarrier cluster_barrier;
std::vector<uint64_t> arrived_in;  // of every thread: 1 + the phase in which it arrived last

int ended() {
  return int(std::count_if(threads, threads + block.threads,
                           [](const Thread& thread) { return thread.state == State::kDone; }));
}

void end_phase_if_all_arrived() {
  ClusterBarrier& all = cluster_barrier;
  if (all.arrived == 0 || all.arrived + ended() < block.threads) return;
  all.released = all.gathered;
  all.arrived = 0;
  all.phase++;
}

bool cluster_phase_has_ended(void* data) {
  end_phase_if_all_arrived();
  return cluster_barrier.phase != *static_cast<uint64_t*>(data);
}

}  // namespace

int own_rank() { return block.current != nullptr ? rank_of(*block.current) : 0; }

void reset_cluster() {
  cluster_barrier = {};
  cluster_barrier.gathered.resize(clock_count());
  arrived_in.assign(block.threads, 0);
}

void check_own(uint32_t address, const char* what, uintptr_t pc) {
  if (int(address / kWindow) != own_rank())
    fail(std::string(what) + " of shared::cta is given an address of another block", pc);
}

// Shared memory of a block may be used from elsewhere as long as one of its threads is there.
void check_not_ended(int rank, const char* what, uintptr_t pc) {
  const Thread* first = threads + rank * threads_of_block();
  if (rank >= block.cluster)
    fail(std::string(what) + " is for block " + std::to_string(rank) + " of a cluster of " +
             std::to_string(block.cluster),
         pc);
  if (std::all_of(first, first + threads_of_block(),
                  [](const Thread& thread) { return thread.state == State::kDone; }))
    fail(std::string(what) + " is for a block of the cluster that has ended", pc);
}

uint32_t block_of_cluster() { return uint32_t(own_rank()); }

uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_own(address, "mapa", pc);
  check_not_ended(int(rank), "mapa", pc);
  return address % kWindow + rank * kWindow;
}

void arrive_cluster(int line) {
  Thread& self = *block.current;
  ClusterBarrier& all = cluster_barrier;
  end_phase_if_all_arrived();
  if (arrived_in[self.index] == all.phase + 1)
    fail_at_line("barrier.cluster.arrive twice in a phase", line);
  arrived_in[self.index] = all.phase + 1;
  for (int i = 0; i < clock_count(); ++i)
    all.gathered[i] = std::max(all.gathered[i], self.seen[i]);
  all.gathered[self.index] = self.clock++;
  all.arrived++;
  end_phase_if_all_arrived();
}

void wait_cluster(int line) {
  Thread& self = *block.current;
  if (arrived_in[self.index] == 0)
    fail_at_line("barrier.cluster.wait without an arrival before it", line);
  uint64_t phase = arrived_in[self.index] - 1;
  if (!cluster_phase_has_ended(&phase)) {
    self.arrival = {"barrier.cluster.wait", line, 0, nullptr};
    self.condition = cluster_phase_has_ended;
    self.condition_data = &phase;
    wait(State::kCondition);
  }
  join_clocks(self, cluster_barrier.released.data());
}

}  // namespace emu
