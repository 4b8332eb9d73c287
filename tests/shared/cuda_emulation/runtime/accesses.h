// Counts what the accesses of a launch cost the memories of a GPU. Off unless asked for: then all
// that is left of it is one comparison for each access.
#pragma once
#include <cstddef>
#include <cstdint>

#include "operations.h"

namespace emu {

struct Launch;

enum class Memory { kGlobal, kShared, kMatrixRow };

// Whether the accesses of the block that runs are counted.
extern bool counting;

void count_access(Memory memory, uintptr_t address, size_t bytes, bool write, uintptr_t pc);
// Rows of a TMA copy: consecutive bytes, moved for no thread in particular.
void count_bulk_row(uintptr_t address, size_t bytes, uintptr_t pc);
// A matrix instruction of `warps` warps, with `operations` multiply-adds.
void count_product(double operations, int warps);

void begin_counting(const Launch& what);
void begin_block_count(bool counted);
void end_block_count();
void end_counting(const Launch& what, bool failed);
// How many blocks of a launch are counted; none where nothing is.
size_t counted_blocks();
// Whether only these are run: results are then of no use.
bool only_counted_blocks();

}  // namespace emu
