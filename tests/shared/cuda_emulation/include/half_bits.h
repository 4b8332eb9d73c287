// Conversions between float and shorter types: to those of 16 bits rounded to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

namespace emu {

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7F800000 | rest << 13);
  if (exponent > 0) return float_of(sign | (exponent + 112) << 23 | rest << 13);
  float magnitude = float(rest) * (1.0f / 16777216.0f);  // subnormal: in units of 2 ** -24
  return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t float_to_half(float value) {
  uint32_t bits = bits_of(value);
  uint16_t sign = bits >> 16 & 0x8000;
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) return sign | 0x7FFF;
  if (bits >= 0x477FF000) return sign | 0x7C00;  // 65520 and more
  // Below 2 ** -14 the sum with 0.5 is rounded to units of 2 ** -24.
  if (bits < 0x38800000) return sign | uint16_t(bits_of(float_of(bits) + 0.5f) - 0x3F000000);
  bits += 0xFFF + (bits >> 13 & 1);
  return sign | uint16_t((bits - 0x38000000) >> 13);
}

// PTX ISA, "cvt": .rna is to nearest, of two as near the one away from zero.
inline uint32_t nearest_tf32(uint32_t bits) {
  uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return 0x7FFFFFFF;
  return (bits & 0x80000000) | ((magnitude + 0x1000) & 0xFFFFE000);
}

inline float bfloat16_to_float(uint16_t half) { return float_of(uint32_t(half) << 16); }

inline uint16_t float_to_bfloat16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace emu
