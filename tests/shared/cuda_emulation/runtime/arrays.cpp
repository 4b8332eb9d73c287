// Arrays in global memory: bounds, and what blocks write that others read or write as well.
#include <cstring>

#include "operations.h"
#include "state.h"

namespace emu {

namespace {

Array* last_array;

Array* array_of(uintptr_t address) {
  if (last_array != nullptr && address >= last_array->begin && address < last_array->end)
    return last_array;
  for (Array& array : block.arrays)
    if (address >= array.begin && address < array.end) return last_array = &array;
  return nullptr;
}

[[noreturn]] void fail_outside(uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  const Array* nearest = nullptr;
  auto distance = [&](const Array& array) {
    return address < array.begin ? array.begin - address : address - array.end;
  };
  size_t argument = 0, count = 0;
  for (const Array& array : block.arrays) {
    ++count;
    if (nearest != nullptr && distance(array) >= distance(*nearest)) continue;
    nearest = &array;
    argument = count;
  }
  std::string message = std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes";
  if (nearest == nullptr) fail(message + " outside of all arrays", pc);
  long at = long(address) - long(nearest->begin);
  fail(message + " outside of all arrays: at byte " + std::to_string(at) + " of array " +
           std::to_string(argument) + ", which has " +
           std::to_string(nearest->end - nearest->begin),
       pc);
}

// What another block had written before this one wrote it too.
struct Overwritten {
  uintptr_t address;
  size_t bytes;
  char before[16];
  uint32_t writer;
  uintptr_t pc;
};
std::vector<Overwritten> overwritten;
bool synchronised;  // by atomic operations or fences: blocks may then read of each other

uint32_t own_block() {
  const unsigned *at = block.index, *grid = block.grid;
  return at[0] + own_rank() + grid[0] * (at[1] + grid[1] * at[2]) + 1;
}

std::string name_of_block(uint32_t number) {
  uint32_t at = number - 1;
  const unsigned* grid = block.grid;
  return "block (" + std::to_string(at % grid[0]) + ", " + std::to_string(at / grid[0] % grid[1]) +
         ", " + std::to_string(at / grid[0] / grid[1]) + ")";
}

uint32_t other_writer(const uint32_t* writers, size_t bytes, uint32_t self) {
  for (size_t i = 0; i < bytes; ++i)
    if (writers[i] != 0 && writers[i] != self) return writers[i];
  return 0;
}

}  // namespace

void reset_arrays() {
  last_array = nullptr;
  overwritten.clear();
  synchronised = false;
}

void global_access(uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  Array* array = array_of(address);
  if (array == nullptr || address + bytes > array->end) fail_outside(address, bytes, write, pc);
  if (!write && !array->written) return;
  uint32_t* writers = array->writers + (address - array->begin);
  uint32_t self = own_block(), other = other_writer(writers, bytes, self);
  if (other != 0 && !write && !synchronised)
    fail("race: reads what " + name_of_block(other) + " wrote in the same launch", pc);
  if (!write) return;
  array->written = true;
  if (other != 0 && bytes <= 16) {
    overwritten.push_back({address, bytes, {}, other, pc});
    std::memcpy(overwritten.back().before, reinterpret_cast<const void*>(address), bytes);
  }
  for (size_t i = 0; i < bytes; ++i) writers[i] = self;
}

// Two blocks may write the same values to a place, not different ones.
void check_overwritten() {
  for (const Overwritten& place : overwritten)
    if (std::memcmp(place.before, reinterpret_cast<const void*>(place.address), place.bytes) != 0 &&
        !synchronised)
      fail("race: writes other values where " + name_of_block(place.writer) +
               " wrote in the same launch",
           place.pc);
  overwritten.clear();
}

void atomic_access(const void* pointer, size_t bytes, int line) {
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address % bytes != 0) fail_at_line("misaligned atomic operation", line);
  uintptr_t offset = address - reinterpret_cast<uintptr_t>(shared_memory);
  if (offset < kMaxCluster * kWindow) return;
  uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  Array* array = array_of(address);
  if (array == nullptr || address + bytes > array->end) fail_outside(address, bytes, true, pc);
  array->written = true;
  synchronised = true;
}

void global_fence() { synchronised = true; }

}  // namespace emu
