// Accesses as the memories of a GPU see them: the n-th execution of a line by each thread of a warp
// is one request. Global memory moves sectors of 32 bytes (CUDA C++ Best Practices Guide, "Coalesced
// Access to Global Memory"). Shared memory has 32 banks of 4 bytes, each of which serves one word at
// a time: a request takes as many wavefronts as the bank with the most words. Accesses of 8 bytes
// are served to half a warp at a time, those of 16 bytes and the rows of ldmatrix to 8 lanes.
#include "accesses.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "state.h"

namespace emu {

bool counting, calls_are_counted;
uint64_t function_calls;

namespace {

constexpr size_t kSector = 32, kBanks = 32, kWord = 4;

struct Site {
  uint64_t requests = 0, cost = 0, ideal = 0, bytes = 0;
  unsigned width = 0;
};

// What the lanes of a warp brought to one execution of a line.
struct Request {
  uint32_t lanes = 0;
  uint64_t address[kWarp];
};

struct Line {
  Site* site;
  std::deque<Request> open;
  uint64_t finished = 0;  // requests that are not in `open` any more
  uint64_t executed[kWarp] = {};
};

using Key = std::tuple<Memory, bool, uintptr_t, unsigned>;
std::map<Key, Site> sites;
std::map<std::pair<int, Key>, Line> lines;  // of the block that runs, by warp
size_t wanted_blocks, blocks_of_launch;
bool only_counted;
double product_operations;
uint64_t products;
std::string reports;

size_t sectors_of(const Request& request, size_t width) {
  uint64_t found[2 * kWarp];
  int count = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(request.lanes >> lane & 1)) continue;
    found[count++] = request.address[lane] / kSector;
    found[count++] = (request.address[lane] + width - 1) / kSector;
  }
  std::sort(found, found + count);
  return size_t(std::unique(found, found + count) - found);
}

// Bytes that at least one lane wants.
size_t distinct_bytes(const Request& request, size_t width) {
  uint64_t found[kWarp];
  int count = 0;
  for (int lane = 0; lane < kWarp; ++lane)
    if (request.lanes >> lane & 1) found[count++] = request.address[lane];
  std::sort(found, found + count);
  size_t bytes = 0;
  uint64_t end = 0;
  for (int i = 0; i < count; ++i) {
    bytes += found[i] + width - std::max(found[i], std::min(end, found[i] + width));
    end = std::max(end, found[i] + width);
  }
  return bytes;
}

// Words of the bank that most of them are in, for some lanes.
size_t wavefronts_of(const Request& request, size_t width, int first, int lanes) {
  std::set<uint64_t> words;
  for (int lane = first; lane < first + lanes; ++lane) {
    if (!(request.lanes >> lane & 1)) continue;
    for (uint64_t at = request.address[lane] / kWord;
         at <= (request.address[lane] + width - 1) / kWord; ++at)
      words.insert(at);
  }
  size_t of_bank[kBanks] = {};
  for (uint64_t word : words) of_bank[word % kBanks]++;
  return *std::max_element(of_bank, of_bank + kBanks);
}

void finish(Site& site, Memory memory, const Request& request, size_t width) {
  site.requests++;
  site.bytes += distinct_bytes(request, width);
  if (memory == Memory::kGlobal) {
    site.cost += sectors_of(request, width);
    site.ideal += (distinct_bytes(request, width) + kSector - 1) / kSector;
    return;
  }
  int together = width <= 4 ? kWarp : width == 8 ? kWarp / 2 : kWarp / 4;
  for (int first = 0; first < kWarp; first += together) {
    size_t found = wavefronts_of(request, width, first, together);
    site.cost += found;
    site.ideal += found > 0;
  }
}

void count_piece(const Key& key, uintptr_t address) {
  const Thread& self = *block.current;
  int warp = self.index / kWarp, lane = self.index % kWarp;
  auto [at, fresh] = lines.try_emplace({warp, key});
  Line& line = at->second;
  if (fresh) line.site = &sites[key];
  size_t width = line.site->width = std::get<3>(key);
  uint64_t place = line.executed[lane]++ - line.finished;
  while (line.open.size() <= place) line.open.emplace_back();
  Request& request = line.open[place];
  request.lanes |= 1u << lane;
  request.address[lane] = address;
  for (uint32_t all = warp_mask(self); !line.open.empty() && line.open.front().lanes == all;) {
    finish(*line.site, std::get<0>(key), line.open.front(), width);
    line.open.pop_front();
    line.finished++;
  }
}

void append(const char* format, ...) {
  char text[8192];  // names of fused kernels are long
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  reports += text;
}

}  // namespace

void count_access(Memory memory, uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  if (block.current == nullptr) return;
  // A thread moves at most 16 bytes at a time.
  for (size_t done = 0; done < bytes; done += 16) {
    unsigned width = unsigned(std::min<size_t>(16, bytes - done));
    count_piece({memory, write, pc, width}, address + done);
  }
}

void count_bulk_row(uintptr_t address, size_t bytes, uintptr_t pc) {
  Site& site = sites[{Memory::kGlobal, false, pc, 0}];
  site.requests++;
  site.bytes += bytes;
  site.cost += (address + bytes - 1) / kSector - address / kSector + 1;
  site.ideal += (bytes + kSector - 1) / kSector;
}

void count_product(double operations, int warps) {
  products += uint64_t(warps);
  product_operations += operations;
}

void begin_counting(const Launch& what) {
  sites.clear();
  products = 0;
  product_operations = 0;
  function_calls = 0;
  size_t blocks = size_t(what.grid[0]) * what.grid[1] * what.grid[2];
  size_t clusters = (wanted_blocks + block.cluster - 1) / block.cluster;
  blocks_of_launch = std::min(blocks, clusters * block.cluster);
}

void begin_block_count(bool counted) {
  counting = counted;
  calls_are_counted = counted;
}

void end_block_count() {
  for (auto& [place, line] : lines)
    for (const Request& request : line.open)
      if (request.lanes != 0)
        finish(*line.site, std::get<0>(place.second), request, line.site->width);
  lines.clear();
  counting = calls_are_counted = false;
}

void end_counting(const Launch& what, bool failed) {
  end_block_count();
  if (wanted_blocks == 0) return;
  const unsigned *grid = what.grid, *size = what.block;
  append("kernel %s %s %zx %u %u %u %u %u %u %zu %zu\n", what.kernel, block.library,
         size_t(block.code), grid[0], grid[1], grid[2], size[0], size[1], size[2],
         what.static_shared + what.dynamic_shared, blocks_of_launch);
  if (failed) append("failed\n");
  append("work %llu %.17g %llu\n", (unsigned long long)products, product_operations,
         (unsigned long long)function_calls);
  for (const Array& array : block.arrays)
    append("array %zu %d\n", size_t(array.end - array.begin), int(array.written));
  static const char* names[] = {"global", "shared", "matrix"};
  for (const auto& [key, site] : sites) {
    auto [memory, write, pc, width] = key;
    append("site %s %d %zx %u %llu %llu %llu %llu\n", names[int(memory)], int(write),
           size_t(pc - block.code), width, (unsigned long long)site.requests,
           (unsigned long long)site.cost, (unsigned long long)site.ideal,
           (unsigned long long)site.bytes);
  }
}

size_t counted_blocks() { return blocks_of_launch; }
bool only_counted_blocks() { return only_counted; }

}  // namespace emu

extern "C" {
// Counts accesses from now on, of `blocks` blocks of every launch; 0 stops it. With `only` the
// other blocks are not run.
void emu_count_accesses(size_t blocks, int only) {
  emu::wanted_blocks = blocks;
  emu::only_counted = only != 0;
  emu::blocks_of_launch = 0;
  emu::reports.clear();
}
// What was counted since the last call, one line a fact.
const char* emu_counted(void) {
  static std::string taken;
  taken = std::move(emu::reports);
  emu::reports.clear();
  return taken.c_str();
}
}
