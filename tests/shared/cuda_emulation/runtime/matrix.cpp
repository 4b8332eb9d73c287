// Operations of a warp: shuffles, votes, ldmatrix, stmatrix and mma. Fragments as in the PTX ISA,
// sections "Matrix Fragments for mma.m16n8k..." and "ldmatrix".
#include <cmath>
#include <cstring>
#include <string>

#include "accesses.h"
#include "elements.h"
#include "operations.h"
#include "state.h"

namespace emu {

namespace {

constexpr uint32_t kAll = 0xFFFFFFFFu;

struct ShuffleLane {
  uint64_t value, result;
  int kind, operand, width, line;
};

int source_lane(int lane, const ShuffleLane& what) {
  int segment = lane & ~(what.width - 1), source = lane;
  switch (what.kind) {
    case 0:
      return segment + (what.operand & (what.width - 1));
    case 1:
      source = lane - what.operand;
      return source < segment ? lane : source;
    case 2:
      source = lane + what.operand;
      return source >= segment + what.width ? lane : source;
    default:
      source = lane ^ what.operand;
      // Lanes of a segment may read an earlier one, not a later one.
      return source >= segment + what.width ? lane : source;
  }
}

void finish_shuffle(void** payloads, unsigned mask) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(mask >> lane & 1)) continue;
    ShuffleLane& self = *static_cast<ShuffleLane*>(payloads[lane]);
    int source = source_lane(lane, self);
    if (source < 0 || source >= kWarp || !(mask >> source & 1))
      fail_at_line("a shuffle reads lane " + std::to_string(source) +
                       ", which takes no part in it (mask " + std::to_string(mask) + ")",
                   self.line);
    self.result = static_cast<ShuffleLane*>(payloads[source])->value;
  }
}

struct Vote {
  bool predicate;
  unsigned result;
};

void finish_ballot(void** payloads, unsigned mask) {
  unsigned result = 0;
  for (int lane = 0; lane < kWarp; ++lane)
    if (mask >> lane & 1 && static_cast<Vote*>(payloads[lane])->predicate) result |= 1u << lane;
  for (int lane = 0; lane < kWarp; ++lane)
    if (mask >> lane & 1) static_cast<Vote*>(payloads[lane])->result = result;
}

struct MatrixLane {
  int line, count;
  bool transposed;
  uint32_t row;
  uint32_t* registers;
  const uint32_t* stored;
};

// Row `at % 8` of 16 bytes of matrix `at / 8` begins where lane `at` says.
uint16_t* row_of(void** payloads, int at, bool write, uintptr_t pc) {
  const MatrixLane& lane = *static_cast<MatrixLane*>(payloads[at]);
  Thread* self = block.current;
  block.current = &threads[self->index / kWarp * kWarp + at];
  check_shared_window(lane.row, 16, 16, write ? "a row of stmatrix" : "a row of ldmatrix", pc);
  if (counting) count_access(Memory::kMatrixRow, lane.row, 16, write, pc);
  shared_access(lane.row, 16, write, pc);
  block.current = self;
  return reinterpret_cast<uint16_t*>(shared_memory + lane.row);
}

uintptr_t matrix_pc;

template <bool write>
void finish_matrices(void** payloads, unsigned /*mask*/) {
  MatrixLane& first = *static_cast<MatrixLane*>(payloads[0]);
  for (int matrix = 0; matrix < first.count; ++matrix) {
    uint16_t* rows[8];
    for (int row = 0; row < 8; ++row)
      rows[row] = row_of(payloads, matrix * 8 + row, write, matrix_pc);
    for (int lane = 0; lane < kWarp; ++lane) {
      MatrixLane& self = *static_cast<MatrixLane*>(payloads[lane]);
      for (int half = 0; half < 2; ++half) {
        int row = lane / 4, column = lane % 4 * 2 + half;
        uint16_t& place = first.transposed ? rows[column][row] : rows[row][column];
        if (write)
          place = uint16_t(self.stored[matrix] >> 16 * half);
        else if (half == 0)
          self.registers[matrix] = place;
        else
          self.registers[matrix] |= uint32_t(place) << 16;
      }
    }
  }
}

struct ProductLane {
  const Product* product;
  const uint32_t *a, *b, *c;
  uint32_t* d;
};

// Row and column of C and D: register `at` for 32 bits, else element `at` of a pair a register.
void place_of_result(int lane, int at, int* row, int* column) {
  *row = lane / 4 + at / 2 * 8;
  *column = lane % 4 * 2 + at % 2;
}

double result_of(const ProductLane& lane, int at) {
  if (lane.product->c == Element::kF16) return element_of(lane.c[at / 2], at % 2, Element::kF16);
  return element_of(lane.c[at], 0, lane.product->c);
}

void put_result(const ProductLane& lane, int at, double value) {
  switch (lane.product->result) {
    case Element::kF16: {
      uint32_t& word = lane.d[at / 2];
      uint32_t bits = float_to_half(float(value));
      word = at % 2 ? (word & 0xFFFF) | bits << 16 : bits;
      break;
    }
    case Element::kS32:
      lane.d[at] = uint32_t(int64_t(value));
      break;
    default:
      lane.d[at] = bits_of(float(value));
  }
}

void finish_product(void** payloads, unsigned /*mask*/) {
  ProductLane* lanes[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) lanes[lane] = static_cast<ProductLane*>(payloads[lane]);
  const Product& product = *lanes[0]->product;
  if (counting) count_product(16.0 * 8 * product.depth, 1);
  int bits = bits_per_element(product.a), each = 32 / bits;  // elements of a register
  double a[16][64], b[64][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    int group = lane / 4, within = lane % 4;
    for (int k = 0; k < product.depth / (4 * each); ++k)
      for (int at = 0; at < each; ++at) {
        int step = k * 4 * each + within * each + at;
        a[group][step] = element_of(lanes[lane]->a[2 * k], at, product.a);
        a[group + 8][step] = element_of(lanes[lane]->a[2 * k + 1], at, product.a);
        b[step][group] = element_of(lanes[lane]->b[k], at, product.b);
      }
  }
  for (int lane = 0; lane < kWarp; ++lane)
    for (int at = 0; at < 4; ++at) {
      int row, column;
      place_of_result(lane, at, &row, &column);
      double sum = result_of(*lanes[lane], at);
      for (int k = 0; k < product.depth; ++k) sum += a[row][k] * b[k][column];
      put_result(*lanes[lane], at, sum);
    }
}

void require_whole_warp(const char* operation, int line) {
  if (warp_mask(*block.current) != kAll)
    fail_at_line(std::string(operation) + " in a warp of fewer than 32 threads", line);
}

}  // namespace

void sync_warp(int line, unsigned mask) {
  warp_operation("__syncwarp", line, mask, nullptr, nullptr, true);
}

uint64_t shuffle(int line, unsigned mask, uint64_t value, int kind, int operand, int width) {
  ShuffleLane self{value, 0, kind, operand, width, line};
  warp_operation("a shuffle", line, mask, &self, finish_shuffle, false);
  return self.result;
}

unsigned ballot(int line, unsigned mask, bool predicate) {
  Vote self{predicate, 0};
  warp_operation("a vote", line, mask, &self, finish_ballot, false);
  return self.result;
}

void load_matrices(int line, int count, bool transposed, uint32_t row, uint32_t* registers) {
  require_whole_warp("ldmatrix", line);
  MatrixLane self{line, count, transposed, row, registers, nullptr};
  matrix_pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  warp_operation("ldmatrix", line, kAll, &self, finish_matrices<false>, false);
}

void store_matrices(int line, int count, bool transposed, uint32_t row, const uint32_t* registers) {
  require_whole_warp("stmatrix", line);
  MatrixLane self{line, count, transposed, row, nullptr, registers};
  matrix_pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  warp_operation("stmatrix", line, kAll, &self, finish_matrices<true>, false);
}

void multiply_matrices(int line, const Product& product, const uint32_t* a, const uint32_t* b,
                       const uint32_t* c, uint32_t* d) {
  require_whole_warp("mma", line);
  ProductLane self{&product, a, b, c, d};
  warp_operation("mma", line, kAll, &self, finish_product, false);
}

}  // namespace emu
