// TMA copies from global to shared memory (PTX ISA: "cp.async.bulk", "cp.async.bulk.tensor").
// They come as late as possible: when no thread can go on.
#include <algorithm>
#include <cstring>

#include "accesses.h"
#include "half_bits.h"
#include "operations.h"
#include "state.h"
#include "tensor_map.h"

namespace emu {

namespace {

struct BulkCopy {
  TensorMap map;
  int first[5];
  uint32_t to, bytes, barrier, clock;
  uint64_t from;  // of a copy without a tensor map
  uintptr_t pc;
};
std::deque<BulkCopy> copies;

// Where a byte of a box is: groups of 16 bytes change places by the number of their 128 bytes.
uint32_t swizzled(uint32_t address, uint32_t mode) {
  static const uint32_t masks[] = {0, 1, 3, 7};
  return address ^ ((address >> 7 & masks[mode]) << 4);
}

void round_to_tf32(char* place) {
  uint32_t bits;
  std::memcpy(&bits, place, sizeof bits);
  bits = nearest_tf32(bits);
  std::memcpy(place, &bits, sizeof bits);
}

// Places of a box that are copied along a dimension.
uint32_t copied_along(const TensorMap& map, uint32_t d) {
  return (map.box[d] + map.step[d] - 1u) / map.step[d];
}

// One row of the box, along the fastest dimension; zero outside of the tensor.
void copy_row(const BulkCopy& copy, const int* at, uint32_t to) {
  const TensorMap& map = copy.map;
  uint64_t from = map.base;
  bool inside = true;
  size_t moved = 0;
  uint64_t begin = 0;
  for (uint32_t d = 1; d < map.rank; ++d) {
    inside = inside && at[d] >= 0 && uint64_t(at[d]) < map.extent[d];
    from += uint64_t(int64_t(at[d])) * map.stride[d - 1];
  }
  for (int i = 0; i < map.box[0]; ++i) {
    int64_t column = int64_t(at[0]) + i;
    char* place = shared_memory + swizzled(to + i * map.width, map.swizzle);
    if (!inside || column < 0 || uint64_t(column) >= map.extent[0]) {
      std::memset(place, 0, map.width);
      continue;
    }
    uint64_t source = from + uint64_t(column) * map.width;
    global_access(source, map.width, false, copy.pc);
    begin = moved == 0 ? source : begin;
    moved += map.width;
    std::memcpy(place, reinterpret_cast<const void*>(source), map.width);
    if (map.rounds != 0) round_to_tf32(place);
  }
  if (counting && moved > 0) count_bulk_row(begin, moved, copy.pc);
}

void copy_box(const BulkCopy& copy) {
  const TensorMap& map = copy.map;
  uint32_t rows = copy.bytes / (map.box[0] * map.width);
  for (uint32_t row = 0; row < rows; ++row) {
    int at[5];
    uint32_t rest = row;
    at[0] = copy.first[0];
    for (uint32_t d = 1; d < map.rank; ++d) {
      at[d] = copy.first[d] + int(rest % copied_along(map, d) * map.step[d]);
      rest /= copied_along(map, d);
    }
    copy_row(copy, at, copy.to + row * map.box[0] * map.width);
  }
}

void start(BulkCopy copy, uintptr_t pc) {
  check_not_ended(int(copy.to / kWindow), "a TMA copy", pc);
  check_barrier(copy.barrier, pc);
  check_shared_window(copy.to, copy.bytes, copy.map.rank > 0 ? 128 : 16, "a TMA copy", pc);
  copy.pc = pc;
  copy.clock = block.current->clock++;
  begin_write(copy.to, copy.bytes, copy.clock, pc);
  copies.push_back(copy);
}

}  // namespace

void reset_bulk_copies() { copies.clear(); }

// True if there was one to finish.
bool finish_bulk_copy() {
  if (copies.empty()) return false;
  size_t chosen = block.random == 0 ? 0 : next_random() % copies.size();
  BulkCopy copy = copies[chosen];
  copies.erase(copies.begin() + long(chosen));
  check_not_ended(int(copy.to / kWindow), "a TMA copy", copy.pc);
  finish_write(copy.to, copy.bytes);
  if (copy.map.rank > 0) {
    copy_box(copy);
  } else {
    global_access(copy.from, copy.bytes, false, copy.pc);
    if (counting) count_bulk_row(copy.from, copy.bytes, copy.pc);
    std::memcpy(shared_memory + copy.to, reinterpret_cast<const void*>(copy.from), copy.bytes);
  }
  count_bytes(copy.barrier, copy.bytes, copy.clock, copy.pc);
  return true;
}

void require_no_bulk_copies() {
  if (!copies.empty()) fail("the block ends before a TMA copy to it has come", copies[0].pc);
}

void copy_tensor(int line, uint32_t to, uint64_t map_address, const int* first, int rank,
                 uint32_t barrier, uint32_t blocks) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  BulkCopy copy{};
  std::memcpy(&copy.map, reinterpret_cast<const void*>(map_address), sizeof copy.map);
  const TensorMap& map = copy.map;
  if (map.magic != kTensorMapMagic) fail_at_line("a TMA copy's tensor map is none", line);
  if (int(map.rank) != rank)
    fail_at_line("a TMA copy has " + std::to_string(rank) + " coordinates, its tensor map " +
                     std::to_string(map.rank) + " dimensions",
                 line);
  std::copy(first, first + rank, copy.first);
  copy.bytes = map.width;
  for (uint32_t d = 0; d < map.rank; ++d) copy.bytes *= copied_along(map, d);
  copy.to = to;
  copy.barrier = barrier;
  if (blocks == 0) return start(copy, pc);
  // To the same places of several blocks, each of whose barriers counts its own bytes.
  for (uint32_t rank = 0; blocks >> rank != 0; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    copy.to = to % kWindow + rank * kWindow;
    copy.barrier = barrier % kWindow + rank * kWindow;
    start(copy, pc);
  }
}

void copy_bulk(int line, uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier) {
  if (bytes % 16 != 0 || from % 16 != 0)
    fail_at_line("a TMA copy is of a multiple of 16 bytes from such an address", line);
  BulkCopy copy{};
  copy.to = to;
  copy.bytes = bytes;
  copy.from = from;
  copy.barrier = barrier;
  start(copy, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}

void proxy_fence() {
  Thread& self = *block.current;
  self.proxy_clock = self.clock++;
}

}  // namespace emu
