// A tensor in global memory as TMA copies see it: what cuTensorMapEncodeTiled is given. The
// emulator has these fields where a GPU has its own 128 bytes.
#pragma once
#include <cstdint>

namespace emu {

constexpr uint64_t kTensorMapMagic = 0x70616D726F736E74;

struct alignas(64) TensorMap {
  uint64_t magic, base;
  uint32_t rank, width, swizzle;  // width: bytes of an element; swizzle: 0 to 3
  uint32_t rounds;                // whether copies round float32 to tf32
  uint64_t extent[5];
  uint64_t stride[4];  // bytes, of the dimensions after the fastest
  uint16_t box[5];
  uint8_t step[5];  // every how many places of the box one is copied
};
static_assert(sizeof(TensorMap) == 128, "as large as a CUtensorMap");

}  // namespace emu

using CUtensorMap = emu::TensorMap;
