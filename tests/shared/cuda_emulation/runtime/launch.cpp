// Runs the blocks of a kernel one after the other, on copies of the arrays with nothing beside them.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <numeric>
#include <stdexcept>

#include "accesses.h"
#include "operations.h"
#include "state.h"

namespace emu {

void leave_for_good();

namespace {

std::string last_error;
bool failed;
uint32_t seed;
std::map<uintptr_t, size_t> known_arrays;  // first byte of an array: its size
constexpr size_t kGap = 1 << 20;           // of addresses before and after every copy

// A copy of an array of the launch in memory of its own.
struct GuardedCopy {
  char* memory;
  size_t mapped, bytes;
  char* original;
  uint32_t* writers;
  char* begin() const { return memory + kGap; }
};

char* mapped(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a copy of an array");
  return static_cast<char*>(memory);
}

void find_code(const void* entry) {
  Dl_info info{};
  if (dladdr(entry, &info) == 0) return;
  block.library = info.dli_fname;
  block.code = reinterpret_cast<uintptr_t>(info.dli_fbase);
  auto widest = [](dl_phdr_info* object, size_t, void*) {
    if (object->dlpi_addr != block.code) return 0;
    for (int i = 0; i < object->dlpi_phnum; ++i)
      if (object->dlpi_phdr[i].p_type == PT_LOAD)
        block.code_end = std::max<uintptr_t>(
            block.code_end,
            block.code + object->dlpi_phdr[i].p_vaddr + object->dlpi_phdr[i].p_memsz);
    return 1;
  };
  block.code_end = 0;
  dl_iterate_phdr(widest, nullptr);
}

GuardedCopy copy_of(uintptr_t begin, size_t bytes) {
  GuardedCopy copy{nullptr, bytes + 2 * kGap, bytes, reinterpret_cast<char*>(begin), nullptr};
  copy.memory = mapped(copy.mapped);
  copy.writers = reinterpret_cast<uint32_t*>(mapped(4 * bytes + 1));
  std::memcpy(copy.begin(), copy.original, bytes);
  return copy;
}

// Replaces the arguments by copies, one for all arguments of the same array.
std::vector<GuardedCopy> guard(const Launch& what) {
  std::vector<GuardedCopy> copies;
  block.arrays.clear();
  for (int i = 0; i < what.pointer_count; ++i) {
    uintptr_t pointer = reinterpret_cast<uintptr_t>(what.pointers[i]);
    auto next = known_arrays.upper_bound(pointer);
    if (next == known_arrays.begin() ||
        pointer >= std::prev(next)->first + std::max<size_t>(1, std::prev(next)->second))
      throw std::runtime_error("argument " + std::to_string(i + 1) +
                               " is no array that the emulator knows");
    auto [begin, bytes] = *std::prev(next);
    auto found = std::find_if(copies.begin(), copies.end(), [&](const GuardedCopy& copy) {
      return reinterpret_cast<uintptr_t>(copy.original) == begin;
    });
    if (found == copies.end()) {
      copies.push_back(copy_of(begin, bytes));
      found = copies.end() - 1;
      uintptr_t first = reinterpret_cast<uintptr_t>(found->begin());
      block.arrays.push_back({first, first + bytes, false, found->writers});
    }
    what.pointers[i] = found->begin() + (pointer - begin);
  }
  return copies;
}

// Zero where blocks that were left out would have written.
void fill(const GuardedCopy& copy) {
  for (size_t i = 0; i < copy.bytes; ++i)
    if (copy.writers[i] == 0) copy.begin()[i] = 0;
}

void put_back(const std::vector<GuardedCopy>& copies) {
  for (size_t i = 0; i < copies.size(); ++i) {
    if (block.arrays[i].written && only_counted_blocks()) fill(copies[i]);
    if (block.arrays[i].written)
      std::memcpy(copies[i].original, copies[i].begin(), copies[i].bytes);
    munmap(copies[i].memory, copies[i].mapped);
    munmap(copies[i].writers, 4 * copies[i].bytes + 1);
  }
}

void set_up(const Launch& what) {
  block.kernel = what.kernel;
  block.current = nullptr;
  std::copy(what.grid, what.grid + 3, block.grid);
  std::copy(what.block, what.block + 3, block.size);
  size_t size = size_t(what.block[0]) * what.block[1] * what.block[2];
  block.cluster = int(what.cluster[0] * what.cluster[1] * what.cluster[2]);
  bool along_x = block.cluster == int(what.cluster[0]) && block.cluster <= kMaxCluster;
  bool fits = what.grid[0] % block.cluster == 0 && size * block.cluster <= kMaxThreads;
  if (block.cluster != 1 && !(along_x && fits && size % 128 == 0))
    throw std::runtime_error("clusters are of at most 2 blocks along x, with whole warpgroups and "
                             "1024 threads, that divide the grid");
  if (size == 0 || size > kMaxThreads)
    throw std::runtime_error(std::to_string(size) + " threads a block; at most 1024 are possible");
  block.threads = int(size) * block.cluster;
  // CUDA C++ Programming Guide, compute capabilities: largest and least sizes of a grid.
  for (int axis = 0; axis < 3; ++axis)
    if (what.grid[axis] == 0 || what.grid[axis] > (axis == 0 ? 0x7fffffffu : 65535u))
      throw std::runtime_error("a grid of " + std::to_string(what.grid[axis]) +
                               " blocks along one axis is refused by the driver");
  size_t alignment = std::max<size_t>(16, what.dynamic_alignment);
  block.dynamic_begin = (what.static_shared + alignment - 1) / alignment * alignment;
  block.dynamic_bytes = what.dynamic_shared;
  block.shared_bytes = block.dynamic_begin + what.dynamic_shared;
  if (block.shared_bytes > kMaxShared || what.static_shared > 49152)
    throw std::runtime_error(std::to_string(what.static_shared) + " static and " +
                             std::to_string(what.dynamic_shared) +
                             " dynamic bytes of shared memory are more than a block can have");
  if (shared_memory == nullptr)
    shared_memory =
        static_cast<char*>(std::aligned_alloc(1024, kMaxCluster * kWindow));
  block.random = seed;
  find_code(what.entry);
  reset_shadow();
  reset_arrays();
}

void run_blocks(void (*body)(void*), void* data) {
  const unsigned* grid = block.grid;
  size_t count = size_t(grid[0]) * grid[1] * grid[2] / block.cluster;
  size_t counted = counted_blocks() / block.cluster, next = 0;
  for (size_t i = 0; i < count; ++i) {
    // Blocks, or clusters of them, that are counted are at equal distances.
    bool chosen = next < counted && i == (2 * next + 1) * count / (2 * counted);
    next += chosen;
    if (!chosen && only_counted_blocks()) continue;
    // Blocks have no order either.
    size_t at = (seed % 2 == 0 ? i : count - 1 - i) * block.cluster;
    block.index[0] = at % grid[0];
    block.index[1] = at / grid[0] % grid[1];
    block.index[2] = at / (size_t(grid[0]) * grid[1]);
    if (block.next_clock > 1u << 24) reset_shadow();
    begin_shared_memory();
    begin_block_count(chosen);
    run_block(body, data);
    end_block_count();
    check_overwritten();
  }
}

[[noreturn]] void stop(const std::string& message, const std::string& line) {
  const unsigned* at = block.index;
  last_error = std::string("kernel ") + block.kernel + ", block (" +
               std::to_string(at[0] + own_rank()) + ", " +
               std::to_string(at[1]) + ", " + std::to_string(at[2]) + ")";
  if (block.current != nullptr) last_error += ", " + name_of(*block.current);
  last_error += ": " + message;
  if (!line.empty()) last_error += " [line " + line + "]";
  failed = true;
  if (block.current != nullptr) leave_for_good();
  throw std::runtime_error(last_error);
}

}  // namespace

std::string source_place(uintptr_t pc) {
  if (pc < block.code || pc >= block.code_end) return "";
  char command[4096];
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", block.library,
                size_t(pc - block.code - 1));
  std::string place;
  if (FILE* pipe = popen(command, "r")) {
    char line[4096];
    while (std::fgets(line, sizeof line, pipe) != nullptr) {
      // The last is the outermost function: the kernel, not what was inlined into it.
      const char* colon = std::strrchr(line, ':');
      if (colon != nullptr) place = std::to_string(std::atoi(colon + 1));
    }
    pclose(pipe);
  }
  return place;
}

std::string name_of(const Thread& thread) {
  std::string of = block.cluster > 1 ? " of block " + std::to_string(rank_of(thread)) : "";
  return "thread (" + std::to_string(thread.x) + ", " + std::to_string(thread.y) + ", " +
         std::to_string(thread.z) + ")" + of;
}

void fail(const std::string& message, uintptr_t pc) { stop(message, source_place(pc)); }
void fail_at_line(const std::string& message, int line) { stop(message, std::to_string(line)); }
void trap(const char* what, int line) { fail_at_line(what, line); }

void throw_if_failed() {
  if (failed) throw std::runtime_error(last_error);
}

// With CUDA_EMULATION_TRACE set, a line for every kernel: where the time of a model goes.
struct Trace {
  const Launch& what;
  clock_t start = clock();
  ~Trace() {
    if (std::getenv("CUDA_EMULATION_TRACE") == nullptr) return;
    const unsigned *grid = what.grid, *size = what.block;
    std::fprintf(stderr, "%8.3f s  %s  grid %u %u %u  block %u %u %u  shared %zu\n",
                 double(clock() - start) / CLOCKS_PER_SEC, what.kernel, grid[0], grid[1], grid[2],
                 size[0], size[1], size[2], what.static_shared + what.dynamic_shared);
  }
};

int launch(const Launch& what, void (*body)(void*), void* data) {
  Trace trace{what};
  failed = false;
  std::vector<GuardedCopy> copies;
  int result = 0;
  try {
    set_up(what);
    copies = guard(what);
    begin_counting(what);
    run_blocks(body, data);
  } catch (const std::runtime_error& error) {
    last_error = failed ? last_error : std::string("kernel ") + what.kernel + ": " + error.what();
    result = -1;
  }
  end_counting(what, result != 0);
  if (only_counted_blocks()) result = 0;  // it may have waited for a block that was left out
  block.current = nullptr;
  put_back(copies);
  return result;
}

const char* error() { return last_error.c_str(); }

}  // namespace emu

extern "C" {
// An array that kernels may use from now on; forgets what it overlaps.
void emu_array(void* begin, size_t bytes) {
  uintptr_t first = reinterpret_cast<uintptr_t>(begin), last = first + bytes;
  auto& known = emu::known_arrays;
  auto at = known.lower_bound(first);
  if (at != known.begin() && std::prev(at)->first + std::prev(at)->second > first) --at;
  while (at != known.end() && at->first < last) at = known.erase(at);
  known[first] = bytes;
}
// 0 keeps threads and blocks in order.
void emu_seed(uint32_t value) { emu::seed = value; }
}
