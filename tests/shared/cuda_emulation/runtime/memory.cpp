// Shared memory: who wrote and read each byte, and which bytes a copy is under way to.
#include "operations.h"

#include <algorithm>
#include <cstring>

#include "accesses.h"
#include "state.h"

namespace emu {

char* shared_memory;

namespace {

// An access: clock (25 bits), thread (11), place in the code (28). 0 is none.
struct Cell {
  uint64_t write, read, other_read;
};
Cell shadow[kMaxCluster * kWindow];
uint8_t pending[kMaxCluster * kWindow];  // 1 while an asynchronous copy to the byte has not been waited for
size_t shadow_used;

uint64_t packed(const Thread& self, uintptr_t pc) {
  uint64_t place = pc >= block.code && pc < block.code_end ? pc - block.code : 0;
  return uint64_t(self.clock) << 39 | uint64_t(self.index) << 28 | (place & 0xFFFFFFF);
}

bool ordered(uint64_t record, const Thread& self) {
  int thread = record >> 28 & 2047;
  return record == 0 || thread == self.index || record >> 39 <= self.seen[thread];
}

bool in_a_window(size_t offset, size_t bytes) {
  return offset / kWindow < size_t(block.cluster) && offset % kWindow + bytes <= block.shared_bytes;
}

std::string bytes_of(size_t offset, size_t size) {
  return "bytes " + std::to_string(offset) + " to " + std::to_string(offset + size - 1);
}

[[noreturn]] void fail_race(size_t offset, bool write, uint64_t record, bool was_write,
                            uintptr_t pc) {
  int other = record >> 28 & 2047;
  std::string whom = other == block.threads ? "a TMA copy" : name_of(threads[other]);
  std::string now = write ? "written" : "read", before = was_write ? "written" : "read";
  fail("race: byte " + std::to_string(offset) + " of shared memory is " + now + ", and was " +
           before + " by " + whom + " in line " +
           source_place(block.code + (record & 0xFFFFFFF)) + ", with nothing to order the two",
       pc);
}

void note_read(Cell& cell, uint64_t now) {
  int self = now >> 28 & 2047, last = cell.read >> 28 & 2047;
  if (cell.read != 0 && last != self) cell.other_read = cell.read;
  cell.read = now;
}

bool same_cells(size_t offset, size_t bytes) {
  const Cell* cells = shadow + offset;
  uint64_t different = 0;
  for (size_t i = 1; i < bytes; ++i)
    different |= (cells[i].write ^ cells[0].write) | (cells[i].read ^ cells[0].read) |
                 (cells[i].other_read ^ cells[0].other_read);
  return different == 0;
}

bool any_pending(size_t offset, size_t bytes) {
  uint8_t found = 0;
  for (size_t i = 0; i < bytes; ++i) found |= pending[offset + i];
  return found != 0;
}

void check_cell(size_t offset, bool write, const Thread& self, uintptr_t pc) {
  const Cell& cell = shadow[offset];
  if (!ordered(cell.write, self)) fail_race(offset, write, cell.write, true, pc);
  if (!write) return;
  if (!ordered(cell.read, self)) fail_race(offset, write, cell.read, false, pc);
  if (!ordered(cell.other_read, self)) fail_race(offset, write, cell.other_read, false, pc);
}

}  // namespace

void reset_shadow() {
  std::memset(static_cast<void*>(shadow), 0, shadow_used * sizeof(Cell));
  shadow_used = (block.cluster - 1) * kWindow + block.shared_bytes;
  block.next_clock = 1;
}

void begin_shared_memory() {
  for (int rank = 0; rank < block.cluster; ++rank) {
    std::memset(shared_memory + rank * kWindow, kPoison, block.shared_bytes);
    std::memset(pending + rank * kWindow, 0, block.shared_bytes);
  }
}

void shared_access(uintptr_t offset, size_t bytes, bool write, uintptr_t pc) {
  if (!in_a_window(offset, bytes))
    fail(std::string(write ? "writes" : "reads") + " shared memory at " + bytes_of(offset, bytes) +
             " of " + std::to_string(block.shared_bytes),
         pc);
  Thread& self = *block.current;
  if (any_pending(offset, bytes))
    fail(std::string(write ? "writes" : "reads") + " " + bytes_of(offset, bytes) +
             " of shared memory while an asynchronous copy to them has not been waited for",
         pc);
  uint64_t now = packed(self, pc);
  bool same = same_cells(offset, bytes);
  for (size_t i = 0; i < bytes; ++i) {
    if (i == 0 || !same) check_cell(offset + i, write, self, pc);
    Cell& cell = shadow[offset + i];
    if (write)
      cell = {now, 0, 0};
    else
      note_read(cell, now);
  }
}

void any_access(uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  Thread* self = block.current;
  if (self == nullptr) return;
  if (--block.steps_left < 0) fail("100 million accesses with nobody else's turn: an endless loop", pc);
  uintptr_t offset = address - reinterpret_cast<uintptr_t>(shared_memory);
  if (offset < kMaxCluster * kWindow) {
    if (counting) count_access(Memory::kShared, offset, bytes, write, pc);
    return shared_access(offset, bytes, write, pc);
  }
  if (address - reinterpret_cast<uintptr_t>(self->stack) < kStackBytes) return;
  if (!write && address >= block.code && address < block.code_end) return;
  if (counting) count_access(Memory::kGlobal, address, bytes, write, pc);
  global_access(address, bytes, write, pc);
}

void asynchronous_read(uint32_t offset, size_t bytes, uintptr_t pc) {
  shared_access(offset, bytes, false, pc);
  for (size_t i = 0; i < bytes; ++i) {
    uint64_t record = shadow[offset + i].write;
    int writer = record >> 28 & 2047;
    if (record >> 39 < block.first_clock || writer == block.threads) continue;
    if (record >> 39 > threads[writer].proxy_clock)
      fail("byte " + std::to_string(offset + i) + " of shared memory is read by the asynchronous " +
               "proxy, and " + name_of(threads[writer]) + " wrote it in line " +
               source_place(block.code + (record & 0xFFFFFFF)) + " with no fence.proxy.async since",
           pc);
  }
}

void begin_write(uint32_t offset, size_t bytes, uint32_t clock, uintptr_t pc) {
  shared_access(offset, bytes, true, pc);
  Cell cell{(packed(*block.current, pc) & 0xFFFFFFF) | uint64_t(block.threads) << 28 |
                uint64_t(clock) << 39,
            0, 0};
  std::fill(shadow + offset, shadow + offset + bytes, cell);
  std::memset(shared_memory + offset, kPoison, bytes);
  std::memset(pending + offset, 1, bytes);
}

void finish_write(uint32_t offset, size_t bytes) { std::memset(pending + offset, 0, bytes); }

void check_shared_window(uint32_t offset, size_t bytes, size_t alignment, const char* what,
                         uintptr_t pc) {
  if (offset % alignment != 0)
    fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " +
             std::to_string(offset) + " of shared memory, which is not a multiple of " +
             std::to_string(alignment),
         pc);
  if (!in_a_window(offset, bytes))
    fail(std::string(what) + " at " + bytes_of(offset, bytes) + " of the block's " +
             std::to_string(block.shared_bytes) + " bytes of shared memory",
         pc);
}

char* static_shared(size_t offset, size_t /*bytes*/) {
  return shared_memory + own_rank() * kWindow + offset;
}
char* dynamic_shared() { return shared_memory + own_rank() * kWindow + block.dynamic_begin; }

uint32_t shared_address(const void* pointer) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uintptr_t offset = static_cast<const char*>(pointer) - shared_memory;
  if (offset - own_rank() * kWindow > block.shared_bytes)
    fail("the address of shared memory is asked of another", pc);
  return offset;
}

void load_shared(int /*line*/, void* to, uint32_t from, unsigned bytes) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_shared_window(from, bytes, bytes, "ld.shared", pc);
  if (counting) count_access(Memory::kShared, from, bytes, false, pc);
  shared_access(from, bytes, false, pc);
  std::memcpy(to, shared_memory + from, bytes);
}

void store_shared(int /*line*/, uint32_t to, const void* from, unsigned bytes) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_shared_window(to, bytes, bytes, "st.shared", pc);
  if (counting) count_access(Memory::kShared, to, bytes, true, pc);
  shared_access(to, bytes, true, pc);
  std::memcpy(shared_memory + to, from, bytes);
}

void copy_async(int /*line*/, uint32_t to, uint64_t from, unsigned bytes, unsigned copied) {
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  if (bytes != 4 && bytes != 8 && bytes != 16)
    fail("cp.async of " + std::to_string(bytes) + " bytes: only 4, 8 and 16 are possible", pc);
  check_shared_window(to, bytes, bytes, "cp.async", pc);
  copied = std::min(copied, bytes);
  if (from % bytes != 0)
    fail("cp.async of " + std::to_string(bytes) + " bytes from a misaligned address", pc);
  if (copied > 0) global_access(from, copied, false, pc);
  if (counting && copied > 0) count_access(Memory::kGlobal, from, copied, false, pc);
  if (counting) count_access(Memory::kShared, to, bytes, true, pc);
  shared_access(to, bytes, true, pc);
  std::memset(shared_memory + to, kPoison, bytes);
  std::memset(pending + to, 1, bytes);
  block.current->open_copies.push_back({to, uintptr_t(from), bytes, copied, pc});
}

void commit_copies() {
  Thread& self = *block.current;
  self.copy_groups.push_back(std::move(self.open_copies));
  self.open_copies.clear();
}

void wait_copies(unsigned groups_left) {
  Thread& self = *block.current;
  while (self.copy_groups.size() > groups_left) {
    for (const AsyncCopy& copy : self.copy_groups.front()) {
      std::memset(pending + copy.to, 0, copy.bytes);
      std::memcpy(shared_memory + copy.to, reinterpret_cast<const void*>(copy.from), copy.copied);
      std::memset(shared_memory + copy.to + copy.copied, 0, copy.bytes - copy.copied);
      shared_access(copy.to, copy.bytes, true, copy.pc);
    }
    self.copy_groups.erase(self.copy_groups.begin());
  }
}

}  // namespace emu
