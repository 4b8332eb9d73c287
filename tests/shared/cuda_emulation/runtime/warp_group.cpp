// Hopper: mbarriers, bulk copies of boxes of tensors, products of warp groups. As in the PTX ISA,
// sections "mbarrier", "cp.async.bulk.tensor" and "wgmma.mma_async" with its "Matrix Descriptor".
//
// What is asynchronous happens as late as it may: a copy when a thread waits for its barrier, a
// product when its group has to be finished. So what comes too early elsewhere is seen.
#include <algorithm>
#include <cstring>
#include <map>

#include "operations.h"
#include "state.h"

namespace emu {

namespace {

struct BoxCopy {
  uint32_t to;
  TensorMap map;
  int at[5];
  int issuer;
  uint32_t clock;
  uintptr_t pc;
};

struct Barrier {
  unsigned count = 0, pending = 0, phase = 0;
  long bytes = 0;  // expected, less those that have come
  std::vector<BoxCopy> copies;
  uint32_t gathering[kMaxThreads] = {}, completed[kMaxThreads] = {};
};

struct GroupProduct {
  float* results;
  uint64_t a, b;
  bool add;
  int columns;
  Element type;
  bool across_a, across_b;
  int line;
};

struct Products {
  std::vector<GroupProduct> open;
  std::vector<std::vector<GroupProduct>> groups;
  bool fenced = false;
};

std::map<uint32_t, Barrier> barriers;
Products products[kMaxThreads];

uint32_t swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }

Barrier& barrier_at(uint32_t address, int line) {
  auto found = barriers.find(address);
  if (found == barriers.end()) fail_at_line("an mbarrier is used before it is initialized", line);
  return found->second;
}

void settle(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  std::copy_n(barrier.gathering, kMaxThreads, barrier.completed);
  std::fill_n(barrier.gathering, kMaxThreads, 0u);
  barrier.pending = barrier.count;
  barrier.phase ^= 1;
}

void release(Barrier& barrier) {
  Thread& self = *block.current;
  for (int i = 0; i < block.threads; ++i)
    barrier.gathering[i] = std::max(barrier.gathering[i], self.seen[i]);
  barrier.gathering[self.index] = std::max(barrier.gathering[self.index], self.clock++);
}

void arrive(Barrier& barrier, int line) {
  if (barrier.pending == 0) fail_at_line("more arrivals at an mbarrier than it counts", line);
  release(barrier);
  barrier.pending--;
}

size_t box_bytes(const TensorMap& map) {
  size_t bytes = map.width;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

// The rows of a box along its first dimension: inside of the tensor as it is, zero elsewhere.
void perform(const BoxCopy& copy) {
  const TensorMap& map = copy.map;
  size_t row = size_t(map.box[0]) * map.width, rows = box_bytes(map) / row;
  Thread* caller = block.current;
  Thread& issuer = threads[copy.issuer];
  uint32_t clock = issuer.clock;
  block.current = &issuer;
  issuer.clock = copy.clock;
  for (size_t number = 0; number < rows; ++number) {
    uintptr_t from = map.base;
    bool inside = true;
    size_t rest = number;
    for (int i = 1; i < map.rank; ++i) {
      long place = copy.at[i] + long(rest % map.box[i]);
      rest /= map.box[i];
      inside = inside && place >= 0 && uint64_t(place) < map.extents[i];
      from += place * map.strides[i - 1];
    }
    for (int i = 0; i < map.box[0]; ++i) {
      uint32_t to = swizzled(copy.to + uint32_t(number * row + i * map.width));
      pending_bytes(to, map.width, false);
      shared_access(to, map.width, true, copy.pc);
      long place = copy.at[0] + i;
      bool here = inside && place >= 0 && uint64_t(place) < map.extents[0];
      uintptr_t element = from + place * map.width;
      if (here) global_access(element, map.width, false, copy.pc);
      if (here) std::memcpy(shared_memory + to, reinterpret_cast<const void*>(element), map.width);
      if (!here) std::memset(shared_memory + to, 0, map.width);
    }
  }
  issuer.clock = clock;
  block.current = caller;
}

void come(Barrier& barrier) {
  for (const BoxCopy& copy : barrier.copies) {
    perform(copy);
    barrier.bytes -= long(box_bytes(copy.map));
    uint32_t& seen = barrier.gathering[copy.issuer];
    seen = std::max(seen, copy.clock);
  }
  bool any = !barrier.copies.empty();
  barrier.copies.clear();
  if (any) settle(barrier);
}

struct Waiting {
  Barrier* barrier;
  unsigned parity;
};

bool phase_over(void* data) {
  auto* waiting = static_cast<Waiting*>(data);
  if (waiting->barrier->phase == waiting->parity) come(*waiting->barrier);
  return waiting->barrier->phase != waiting->parity;
}

// Where an element of a matrix in shared memory is: `along` a row or column, at step `k` of 16.
uint32_t place_of(uint64_t descriptor, bool across, int along, int k) {
  uint32_t start = uint32_t(descriptor & 0x3FFF) << 4;
  uint32_t leading = uint32_t(descriptor >> 16 & 0x3FFF) << 4;
  uint32_t stride = uint32_t(descriptor >> 32 & 0x3FFF) << 4;
  uint32_t at = across ? start + along / 64 * leading + k / 8 * stride + k % 8 * 128 + along % 64 * 2
                       : start + along / 8 * stride + along % 8 * 128 + k * 2;
  return swizzled(at);
}

float element_at(uint32_t address, Element type, int line) {
  if (address + 2 > block.shared_bytes) fail_at_line("wgmma reads outside of shared memory", line);
  shared_access(address, 2, false, 0);
  uint16_t bits;
  std::memcpy(&bits, shared_memory + address, 2);
  if (type == Element::kBF16) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return float(value);
}

// The part of one thread: rows lane / 4 and 8 more of its warp's 16, two of every 8 columns.
void multiply(const GroupProduct& what, const Thread& self) {
  int lane = self.index % kWarp, first = self.index / kWarp % 4 * 16 + lane / 4;
  float a[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k)
      a[half][k] = element_at(place_of(what.a, what.across_a, first + 8 * half, k), what.type,
                              what.line);
  for (int pair = 0; pair < what.columns / 8; ++pair)
    for (int e = 0; e < 2; ++e) {
      int column = pair * 8 + lane % 4 * 2 + e;
      double total[2] = {};
      for (int k = 0; k < 16; ++k) {
        double b = element_at(place_of(what.b, what.across_b, column, k), what.type, what.line);
        for (int half = 0; half < 2; ++half) total[half] += a[half][k] * b;
      }
      for (int half = 0; half < 2; ++half) {
        float& result = what.results[pair * 4 + half * 2 + e];
        result = float(total[half] + (what.add ? result : 0.0f));
      }
    }
}

}  // namespace

void begin_warp_groups() {
  barriers.clear();
  for (Products& of : products) of = Products();
}

void mbarrier_init(int line, uint32_t address, unsigned count) {
  check_shared_window(address, 8, 8, "mbarrier.init", 0);
  if (barriers.count(address)) fail_at_line("an mbarrier is initialized twice", line);
  Barrier& barrier = barriers[address];
  barrier.count = barrier.pending = count;
}

void mbarrier_arrive(int line, uint32_t address, unsigned bytes) {
  Barrier& barrier = barrier_at(address, line);
  barrier.bytes += bytes;
  arrive(barrier, line);
  settle(barrier);
}

bool mbarrier_wait(int line, uint32_t address, unsigned parity) {
  Thread& self = *block.current;
  Waiting waiting{&barrier_at(address, line), parity};
  if (!phase_over(&waiting)) {
    self.arrival = {"mbarrier.try_wait", line, 0, nullptr};
    self.condition = phase_over;
    self.condition_data = &waiting;
    wait(State::kCondition);
  }
  join_clocks(self, waiting.barrier->completed);
  return true;
}

void copy_box(int line, uint32_t to, const TensorMap* map, const int* at, int rank,
              uint32_t barrier) {
  if (map->magic != kTensorMapMagic) fail_at_line("the operand is no tensor map", line);
  if (map->rank != rank) fail_at_line("the tensor map is of another rank", line);
  if (to % 128 != 0) fail_at_line("the destination of a bulk copy is not at 128 bytes", line);
  check_shared_window(to, box_bytes(*map), 128, "cp.async.bulk.tensor", 0);
  BoxCopy copy{to, *map, {}, block.current->index, block.current->clock, 0};
  std::copy_n(at, rank, copy.at);
  for (size_t i = 0; i < box_bytes(*map); ++i) shared_access(to + i, 1, true, 0);
  std::memset(shared_memory + to, kPoison, box_bytes(*map));
  pending_bytes(to, box_bytes(*map), true);
  barrier_at(barrier, line).copies.push_back(copy);
}

void group_fence() { products[block.current->index].fenced = true; }

void group_multiply(int line, float* results, uint64_t a, uint64_t b, bool add, int columns,
                    Element type, bool across_a, bool across_b) {
  warp_operation("wgmma.mma_async", line, ~0u, nullptr, nullptr, false);
  Products& own = products[block.current->index];
  if (!own.fenced) fail_at_line("wgmma.mma_async without a wgmma.fence before it", line);
  for (uint64_t descriptor : {a, b})
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
      fail_at_line("a matrix descriptor of another swizzle than 128 bytes, or with an offset", line);
  own.open.push_back({results, a, b, add, columns, type, across_a, across_b, line});
}

void group_commit() {
  Products& own = products[block.current->index];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
  own.fenced = false;
}

void group_wait(int line, unsigned left) {
  Products& own = products[block.current->index];
  while (own.groups.size() > left) {
    for (const GroupProduct& what : own.groups.front()) multiply(what, *block.current);
    own.groups.erase(own.groups.begin());
  }
  // A warp waits as one: after it, none of its lanes is still reading.
  warp_operation("wgmma.wait_group", line, ~0u, nullptr, nullptr, true);
}

}  // namespace emu
