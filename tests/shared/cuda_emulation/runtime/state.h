// The block that runs, or the blocks of a cluster one after the other: threads, their clocks, shared
// memory, and the arrays of the launch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace emu {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxClocks = kMaxThreads + 1;  // of the threads, and of TMA copies
constexpr size_t kMaxShared = 232448;  // 227 KiB: the most that a block of compute capability 9 has
constexpr int kMaxCluster = 2;         // blocks that run at the same time
constexpr size_t kWindow = 1 << 18;    // addresses of shared memory of each block of a cluster
constexpr size_t kStackBytes = 512 << 10;
constexpr unsigned char kPoison = 0xFF;  // a NaN in every float type, -1 in the integers

enum class State { kReady, kBarrier, kNamedBarrier, kWarp, kActiveMask, kCondition, kDone };

struct AsyncCopy {
  uint32_t to;
  uintptr_t from;
  uint32_t bytes;   // written to shared memory
  uint32_t copied;  // of them read; the rest is zero
  uintptr_t pc;
};

// What a thread brings to an operation of its warp, and what waits for the others to come.
struct Arrival {
  const char* operation = "";
  int line = 0;
  uint32_t mask = 0;
  void* payload = nullptr;
};

struct Thread {
  int index = 0;
  unsigned x = 0, y = 0, z = 0;
  State state = State::kDone;
  void* stack_pointer = nullptr;  // while it does not run
  char* stack = nullptr;
  Arrival arrival;
  bool (*condition)(void*) = nullptr;  // of State::kCondition
  void* condition_data = nullptr;
  uint32_t clock = 0;             // of what it does now
  const uint32_t* seen = nullptr;  // for every thread: what of its past is ordered before
  std::vector<uint32_t> own_seen;
  uint32_t proxy_clock = 0;  // what it wrote until then is known to the asynchronous proxy
  std::vector<AsyncCopy> open_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;
};

struct Array {
  uintptr_t begin = 0, end = 0;
  bool written = false;
  uint32_t* writers = nullptr;  // of every byte: 1 + the number of the block that wrote it last
};

struct Block {
  const char* kernel = "";
  const char* library = "";  // file with the kernel's code, and where it is in memory
  uintptr_t code = 0, code_end = 0;
  unsigned grid[3] = {1, 1, 1}, size[3] = {1, 1, 1}, index[3] = {0, 0, 0};
  int cluster = 1;  // blocks in a cluster; `index` is that of the first
  int threads = 0;  // of the cluster
  int running = 0;  // threads that have not ended
  Thread* current = nullptr;
  size_t shared_bytes = 0, dynamic_begin = 0, dynamic_bytes = 0;
  std::vector<Array> arrays;  // of the launch
  uint32_t next_clock = 1, first_clock = 1;  // of the next block; of this one
  uint32_t random = 1;
  long steps_left = 0;  // of one thread before another has a turn: against loops without end
};

extern Block block;
extern Thread threads[kMaxThreads];
extern char* shared_memory;

// Ends the run: never returns. Of a thread, or of the block where there is none.
[[noreturn]] void fail(const std::string& message, uintptr_t pc = 0);
[[noreturn]] void fail_at_line(const std::string& message, int line);
std::string name_of(const Thread& thread);
std::string source_place(uintptr_t pc);  // line of the CUDA code

// fibres.cpp
void run_block(void (*body)(void*), void* data);
void wait(State state);
uint32_t warp_mask(const Thread& thread);
void join_clocks(Thread& thread, const uint32_t* other);
uint32_t next_random();
inline int clock_count() { return block.threads + 1; }

// clusters.cpp
inline int threads_of_block() { return block.threads / block.cluster; }
inline int rank_of(const Thread& thread) { return thread.index / threads_of_block(); }
int own_rank();
void reset_cluster();
void check_own(uint32_t address, const char* what, uintptr_t pc);
void check_not_ended(int rank, const char* what, uintptr_t pc);

// barriers.cpp, bulk_copies.cpp, warp_group.cpp
void reset_barriers();
void count_bytes(uint32_t barrier, long bytes, uint32_t clock, uintptr_t pc);
void check_barrier(uint32_t barrier, uintptr_t pc);
void reset_bulk_copies();
bool finish_bulk_copy();
void reset_warp_groups();

// arrays.cpp
void reset_arrays();
void check_overwritten();
void global_access(uintptr_t address, size_t bytes, bool write, uintptr_t pc);

// memory.cpp
void begin_shared_memory();
void reset_shadow();
// Of the asynchronous proxy: reads of a warpgroup's product, and writes of a TMA copy, which make
// the bytes unreadable until `finish_write`.
void asynchronous_read(uint32_t offset, size_t bytes, uintptr_t pc);
void begin_write(uint32_t offset, size_t bytes, uint32_t clock, uintptr_t pc);
void finish_write(uint32_t offset, size_t bytes);
void shared_access(uintptr_t offset, size_t bytes, bool write, uintptr_t pc);
void any_access(uintptr_t address, size_t bytes, bool write, uintptr_t pc);
void check_shared_window(uint32_t offset, size_t bytes, size_t alignment, const char* what,
                         uintptr_t pc);

}  // namespace emu
