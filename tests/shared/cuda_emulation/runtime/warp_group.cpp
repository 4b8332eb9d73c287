// Products of warpgroups (PTX ISA: "wgmma.mma_async"). Each warp computes its 16 rows of results
// when it waits for them; until then its registers hold NaN.
#include <algorithm>
#include <string>

#include "accesses.h"
#include "elements.h"
#include "operations.h"
#include "state.h"

namespace emu {

namespace {

constexpr uint32_t kAll = 0xFFFFFFFFu;

// What a lane brings.
struct GroupLane {
  const WarpgroupGemm* product;
  uint32_t* const* d;
  const uint32_t* a;
  uint64_t descriptor_a, descriptor_b;
  bool accumulate;
};

struct Accumulator {
  std::vector<uint32_t*> places;  // of all registers of all lanes
  std::vector<uint32_t> values;
  int under_way = 0;
};

struct Issued {
  WarpgroupGemm product;
  uint32_t a[kWarp][4];
  uint64_t descriptor_a, descriptor_b;
  bool accumulate;
  uint32_t* first;  // of the accumulator's places
  uintptr_t pc;
};

struct WarpState {
  bool fenced = false;
  std::vector<Issued> open;
  std::deque<std::vector<Issued>> groups;
  std::vector<Accumulator> accumulators;
  long count = 0;
};
WarpState warps[kMaxThreads / kWarp];
uintptr_t group_pc;

WarpState& own_warp() { return warps[block.current->index / kWarp]; }

// Byte address of 16 bytes of an operand: elements from (`line`, `step`) on, along the steps, or
// along the lines where `across`. Canonical layouts: PTX ISA, "Shared Memory Matrix Layout"; which
// offset is which: "Matrix Descriptor Format".
uint32_t chunk_address(uint64_t descriptor, bool across, int width, int line, int step) {
  uint32_t start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4;
  uint32_t stride = (descriptor >> 32 & 0x3FFF) << 4, mode = descriptor >> 62;
  static const uint32_t spans[] = {16, 128, 64, 32}, masks[] = {0, 7, 3, 1};
  uint32_t span = spans[mode], address;
  if (across) {
    uint32_t bytes = uint32_t(line) * width;
    // Without swizzle the offsets have each other's meaning.
    uint32_t along = mode == 0 ? stride : leading, down = mode == 0 ? leading : stride;
    address = start + bytes / span * along + bytes % span + step % 8 * span + step / 8 * down;
  } else {
    uint32_t bytes = uint32_t(step) * width;
    address = start + line / 8 * stride + line % 8 * span;
    address += mode == 0 ? bytes / 16 * leading : bytes;
  }
  return uint32_t(own_rank() * kWindow) + (address ^ ((address >> 7 & masks[mode]) << 4));
}

// All chunks of an operand with `lines` lines from `first` on; `take` gets them if it is there.
template <typename Take>
void for_chunks(const Issued& what, bool of_a, int first, int lines, const Take& take) {
  const WarpgroupGemm& product = what.product;
  Element type = of_a ? product.a : product.b;
  int width = bits_per_element(type) / 8, each = 16 / width;
  bool across = of_a ? product.across_a : product.across_b;
  uint64_t descriptor = of_a ? what.descriptor_a : what.descriptor_b;
  int down = across ? each : 1, along = across ? 1 : each;
  for (int line = 0; line < lines; line += down)
    for (int step = 0; step < product.depth; step += along) {
      uint32_t address = chunk_address(descriptor, across, width, first + line, step);
      check_shared_window(address, 16, 16, "an operand of wgmma", what.pc);
      asynchronous_read(address, 16, what.pc);
      const uint32_t* words = reinterpret_cast<const uint32_t*>(shared_memory + address);
      for (int i = 0; i < each; ++i) {
        int bit = i * width * 8;
        double value = element_of(words[bit / 32], bit % 32 / (width * 8), type);
        take(across ? line + i : line, across ? step : step + i, value);
      }
    }
}

int warp_of_group() { return block.current->index / kWarp % 4; }

template <typename Function>
void as_first_lane(const Function& function) {
  Thread* self = block.current;
  block.current = &threads[self->index / kWarp * kWarp];
  function();
  block.current = self;
}

void check_operands(const Issued& what) {
  auto ignore = [](int, int, double) {};
  as_first_lane([&] {
    if (!what.product.a_in_registers) for_chunks(what, true, warp_of_group() * 16, 16, ignore);
    for_chunks(what, false, 0, what.product.columns, ignore);
  });
}

std::vector<float> operand_a(const Issued& what) {
  const WarpgroupGemm& product = what.product;
  int depth = product.depth;
  std::vector<float> a(16 * depth);
  if (!product.a_in_registers) {
    for_chunks(what, true, warp_of_group() * 16, 16, [&](int line, int step, double value) {
      a[line * depth + step] = float(product.negate_a ? -value : value);
    });
    return a;
  }
  int each = 32 / bits_per_element(product.a);
  for (int lane = 0; lane < kWarp; ++lane)
    for (int word = 0; word < 4; ++word)
      for (int i = 0; i < each; ++i) {
        int row = lane / 4 + word % 2 * 8, step = word / 2 * 4 * each + lane % 4 * each + i;
        double value = element_of(what.a[lane][word], i, product.a);
        a[row * depth + step] = float(product.negate_a ? -value : value);
      }
  return a;
}

// Position of a register's element in the 16 rows of the warp: PTX ISA, "Register Fragments".
void place_of(int lane, int at, int* row, int* column) {
  *row = lane / 4 + at / 2 % 2 * 8;
  *column = at / 4 * 8 + lane % 4 * 2 + at % 2;
}

void compute(const Issued& what, Accumulator& sums) {
  const WarpgroupGemm& product = what.product;
  int depth = product.depth, columns = product.columns;
  bool half = product.result == Element::kF16;
  int each = half ? 2 : 1, registers = int(sums.places.size()) / kWarp;
  std::vector<float> a, b(size_t(columns) * depth);
  as_first_lane([&] {
    a = operand_a(what);
    for_chunks(what, false, 0, columns, [&](int line, int step, double value) {
      b[line * depth + step] = float(product.negate_b ? -value : value);
    });
  });
  for (int lane = 0; lane < kWarp; ++lane)
    for (int at = 0; at < registers * each; ++at) {
      int row, column;
      place_of(lane, at, &row, &column);
      uint32_t& word = sums.values[lane * registers + at / each];
      double sum = what.accumulate ? element_of(word, at % each, product.result) : 0;
      for (int k = 0; k < depth; ++k)
        sum += double(a[row * depth + k]) * double(b[column * depth + k]);
      uint32_t bits = half ? float_to_half(float(sum))
                           : product.result == Element::kS32 ? uint32_t(int64_t(sum))
                                                             : bits_of(float(sum));
      word = !half ? bits : at % 2 ? (word & 0xFFFF) | bits << 16 : (word & 0xFFFF0000) | bits;
    }
}

Accumulator& accumulator_of(WarpState& warp, uint32_t* first) {
  return *std::find_if(warp.accumulators.begin(), warp.accumulators.end(),
                       [&](const Accumulator& sums) { return sums.places[0] == first; });
}

void begin(WarpState& warp, void** payloads, int registers) {
  uint32_t* first = static_cast<GroupLane*>(payloads[0])->d[0];
  for (Accumulator& sums : warp.accumulators)
    if (sums.places[0] == first) {
      sums.under_way++;
      return;
    }
  Accumulator sums;
  for (int lane = 0; lane < kWarp; ++lane)
    for (int i = 0; i < registers; ++i) {
      uint32_t* place = static_cast<GroupLane*>(payloads[lane])->d[i];
      sums.places.push_back(place);
      sums.values.push_back(*place);
      *place = kAll;
    }
  sums.under_way = 1;
  warp.accumulators.push_back(std::move(sums));
}

void finish_issue(void** payloads, unsigned /*mask*/) {
  WarpState& warp = own_warp();
  const GroupLane& first = *static_cast<GroupLane*>(payloads[0]);
  if (!warp.fenced)
    fail("wgmma.mma_async with no wgmma.fence since its registers were free", group_pc);
  Issued what{*first.product, {}, first.descriptor_a, first.descriptor_b, first.accumulate,
              first.d[0], group_pc};
  for (int lane = 0; lane < kWarp; ++lane) {
    const GroupLane& other = *static_cast<GroupLane*>(payloads[lane]);
    if (other.descriptor_a != first.descriptor_a || other.descriptor_b != first.descriptor_b ||
        other.accumulate != first.accumulate)
      fail("wgmma.mma_async with descriptors that differ within a warp", group_pc);
    if (what.product.a_in_registers) std::copy(other.a, other.a + 4, what.a[lane]);
  }
  check_operands(what);
  int registers = what.product.columns / (what.product.result == Element::kF16 ? 4 : 2);
  begin(warp, payloads, registers);
  warp.open.push_back(what);
  if (counting) count_product(16.0 * what.product.columns * what.product.depth, 1);
  warp.count++;
}

void finish_commit(void**, unsigned) {
  WarpState& warp = own_warp();
  warp.groups.push_back(std::move(warp.open));
  warp.open.clear();
}

void finish_wait(void** payloads, unsigned) {
  WarpState& warp = own_warp();
  size_t left = *static_cast<unsigned*>(payloads[0]);
  while (warp.groups.size() > left) {
    for (const Issued& what : warp.groups.front()) {
      Accumulator& sums = accumulator_of(warp, what.first);
      compute(what, sums);
      if (--sums.under_way > 0) continue;
      for (size_t i = 0; i < sums.places.size(); ++i) *sums.places[i] = sums.values[i];
      warp.accumulators.erase(warp.accumulators.begin() + (&sums - warp.accumulators.data()));
    }
    warp.groups.pop_front();
  }
  if (left == 0) warp.fenced = false;
}

void finish_fence(void**, unsigned) { own_warp().fenced = true; }

}  // namespace

void reset_warp_groups() { std::fill(warps, warps + kMaxThreads / kWarp, WarpState()); }

// The warps of a group must have run the same products.
void require_whole_groups() {
  for (int warp = 0; warp < (block.threads + kWarp - 1) / kWarp; ++warp) {
    if (warps[warp].count != warps[warp / 4 * 4].count)
      fail("the warps of a warpgroup ran different numbers of wgmma.mma_async");
    if (!warps[warp].open.empty() || !warps[warp].groups.empty())
      fail("a warp ends before its wgmma.mma_async was waited for");
  }
}

void multiply_group(int line, const WarpgroupGemm& product, uint32_t* const* d, const uint32_t* a,
                    uint64_t descriptor_a, uint64_t descriptor_b, bool accumulate) {
  group_pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  GroupLane self{&product, d, a, descriptor_a, descriptor_b, accumulate};
  warp_operation("wgmma.mma_async", line, kAll, &self, finish_issue, false);
}

void fence_group(int line) {
  warp_operation("wgmma.fence", line, kAll, nullptr, finish_fence, false);
}

void commit_group(int line) {
  warp_operation("wgmma.commit_group", line, kAll, nullptr, finish_commit, false);
}

// Whoever is told of the end by one lane knows it of the warp.
void wait_group(int line, unsigned left) {
  warp_operation("wgmma.wait_group", line, kAll, &left, finish_wait, true);
}

}  // namespace emu
