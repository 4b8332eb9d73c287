// What kernels call of the emulator. Addresses in shared memory are offsets, as in PTX.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

// Where the thread is. Constant for a thread, so the compiler may keep what it got.
unsigned thread_index(int axis) __attribute__((const));
unsigned block_index(int axis) __attribute__((const));
unsigned block_size(int axis) __attribute__((const));
unsigned grid_size(int axis) __attribute__((const));
int lane_index() __attribute__((const));

// `line` is one of the CUDA source, for messages.
void barrier(int line);
void named_barrier(int line, unsigned barrier, unsigned threads, bool waits);
unsigned active_mask(int line);
void warp_operation(const char* operation, int line, unsigned mask, void* payload,
                    void (*finish)(void** payloads, unsigned mask), bool orders_memory);
void sync_warp(int line, unsigned mask);
// 0: of the lane `operand`; 1: of that many lanes below; 2: above; 3: of the lane xor `operand`.
uint64_t shuffle(int line, unsigned mask, uint64_t value, int kind, int operand, int width);
unsigned ballot(int line, unsigned mask, bool predicate);

char* static_shared(size_t offset, size_t bytes);
char* dynamic_shared();
uint32_t shared_address(const void* pointer);

void copy_async(int line, uint32_t to, uint64_t from, unsigned bytes, unsigned copied);
void commit_copies();
void wait_copies(unsigned groups_left);

void load_shared(int line, void* to, uint32_t from, unsigned bytes);
void store_shared(int line, uint32_t to, const void* from, unsigned bytes);

void load_matrices(int line, int count, bool transposed, uint32_t row, uint32_t* registers);
void store_matrices(int line, int count, bool transposed, uint32_t row, const uint32_t* registers);

enum class Element { kF16, kBF16, kTF32, kS8, kU8, kF32, kS32 };
struct Product {
  int rows, columns, depth;
  Element result, a, b, c;
};
void multiply_matrices(int line, const Product& product, const uint32_t* a, const uint32_t* b,
                       const uint32_t* c, uint32_t* d);

// Barriers in shared memory.
void init_barrier(int line, uint32_t address, uint32_t count);
void invalidate_barrier(int line, uint32_t address);
void arrive(int line, uint32_t address, uint32_t count, uint32_t bytes);
bool wait_barrier(int line, uint32_t address, uint32_t parity);

// Clusters of blocks. An arrival at the barrier of any block of the cluster; which block this one is;
// where an address of the own shared memory is in that of another block.
void arrive_anywhere(int line, uint32_t address, uint32_t count);
uint32_t block_of_cluster() __attribute__((const));
uint32_t address_in_block(uint32_t address, uint32_t rank);
void arrive_cluster(int line);
void wait_cluster(int line);

// TMA copies; `map` is the address of a TensorMap, `blocks` has a bit for each to copy to, or is 0.
void copy_tensor(int line, uint32_t to, uint64_t map, const int* first, int rank,
                 uint32_t barrier, uint32_t blocks);
void copy_bulk(int line, uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier);
void proxy_fence();

// Products of 64 rows of a warpgroup.
struct WarpgroupGemm {
  int columns, depth;
  Element result, a, b;
  bool a_in_registers, negate_a, negate_b, across_a, across_b;
};
void multiply_group(int line, const WarpgroupGemm& product, uint32_t* const* d, const uint32_t* a,
                    uint64_t descriptor_a, uint64_t descriptor_b, bool accumulate);
void fence_group(int line);
void commit_group(int line);
void wait_group(int line, unsigned left);

// Tells the emulator of an access that the compiler does not: atomic operations.
void atomic_access(const void* pointer, size_t bytes, int line);
// A fence may order what blocks do to global memory.
void global_fence();
[[noreturn]] void trap(const char* what, int line);

// Exponentials and functions that are made of them, called while `calls_are_counted`.
extern bool calls_are_counted;
extern uint64_t function_calls;
__attribute__((no_sanitize("thread"))) inline void count_call() {
  if (calls_are_counted) ++function_calls;
}

// The launch of one kernel.
struct Launch {
  const char* kernel;
  const void* entry;
  unsigned grid[3];
  unsigned block[3];
  size_t static_shared, dynamic_shared, dynamic_alignment;
  void** pointers;  // arguments that are pointers; replaced by guarded copies during the run
  int pointer_count;
  unsigned cluster[3] = {1, 1, 1};
};
// 0, or -1 with `error()` telling why.
int launch(const Launch& what, void (*body)(void*), void* data);
const char* error();

}  // namespace emu
