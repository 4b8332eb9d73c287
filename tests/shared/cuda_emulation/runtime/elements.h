// Elements in registers of 32 bits.
#pragma once
#include <cstdint>
#include <cstring>

#include "half_bits.h"
#include "operations.h"

namespace emu {

inline int bits_per_element(Element type) {
  switch (type) {
    case Element::kF16:
    case Element::kBF16:
      return 16;
    case Element::kS8:
    case Element::kU8:
      return 8;
    default:
      return 32;
  }
}

// Element `at` of the register: exact in a double for every type.
inline double element_of(uint32_t word, int at, Element type) {
  switch (type) {
    case Element::kF16:
      return half_to_float(uint16_t(word >> 16 * at));
    case Element::kBF16:
      return bfloat16_to_float(uint16_t(word >> 16 * at));
    case Element::kTF32:  // the tensor core does not look at the last 13 bits
      return float_of(word & 0xFFFFE000u);
    case Element::kS8:
      return int8_t(word >> 8 * at);
    case Element::kU8:
      return uint8_t(word >> 8 * at);
    case Element::kF32:
      return float_of(word);
    case Element::kS32:
      return int32_t(word);
  }
  return 0;
}

}  // namespace emu
