// What inline assembly becomes: see assembly.py. Operands are bits, whatever their C++ type.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

// Special registers.
#define cluster_ctarank (emu::block_of_cluster())

namespace emu::ptx {

template <typename T>
inline uint32_t bits(T value) {
  static_assert(sizeof(T) <= 4, "a register of 32 bits");
  uint32_t found = 0;
  std::memcpy(&found, &value, sizeof(T));
  return found;
}
template <typename T>
inline void put(T& place, uint32_t value) {
  std::memcpy(&place, &value, sizeof(T));
}
template <typename T>
inline uint64_t address(T value) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<uint64_t>(value);
  else
    return uint64_t(value);
}

}  // namespace emu::ptx
