// Operations that the lanes of a warp do together.
#include <algorithm>
#include <string>

#include "operations.h"
#include "state.h"

namespace emu {

// All lanes of `mask` come, then `finish` sees what they brought; it runs once, in the last of them.
void warp_operation(const char* operation, int line, unsigned mask, void* payload,
                    void (*finish)(void** payloads, unsigned mask), bool orders_memory) {
  Thread& self = *block.current;
  int first = self.index / kWarp * kWarp;
  if (!(mask >> (self.index - first) & 1))
    fail_at_line(std::string(operation) + " with a mask that leaves out the calling thread", line);
  mask &= warp_mask(self);
  self.arrival = {operation, line, mask, payload};
  self.state = State::kWarp;
  for (int i = 0; i < kWarp; ++i) {
    if (!(mask >> i & 1)) continue;
    const Thread& lane = threads[first + i];
    if (lane.state != State::kWarp || lane.arrival.mask != mask ||
        lane.arrival.operation != operation || lane.arrival.line != line) {
      wait(State::kWarp);
      return;
    }
  }
  void* payloads[kWarp] = {};
  for (int i = 0; i < kWarp; ++i)
    if (mask >> i & 1) payloads[i] = threads[first + i].arrival.payload;
  if (finish != nullptr) finish(payloads, mask);
  if (orders_memory) {
    uint32_t all[kMaxClocks] = {};
    for (int i = 0; i < kWarp; ++i) {
      if (!(mask >> i & 1)) continue;
      Thread& lane = threads[first + i];
      for (int k = 0; k < clock_count(); ++k) all[k] = std::max(all[k], lane.seen[k]);
      all[first + i] = lane.clock++;
    }
    for (int i = 0; i < kWarp; ++i)
      if (mask >> i & 1) join_clocks(threads[first + i], all);
  }
  for (int i = 0; i < kWarp; ++i)
    if (mask >> i & 1) threads[first + i].state = State::kReady;
}

}  // namespace emu
