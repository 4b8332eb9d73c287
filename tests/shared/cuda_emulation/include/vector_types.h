// Vectors with the alignment that they have in device code, and where a thread is.
#pragma once
#include <cstdint>

typedef unsigned char uchar_;  // the generated code defines "uchar" as a macro

#define EMU_VECTORS(NAME, T, A2, A4)                                                    \
  struct NAME##1 { T x; };                                                              \
  struct alignas(A2) NAME##2 { T x, y; };                                               \
  struct NAME##3 { T x, y, z; };                                                        \
  struct alignas(A4) NAME##4 { T x, y, z, w; };                                         \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                    \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                            \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                    \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMU_VECTORS(char, signed char, 2, 4)
EMU_VECTORS(uchar, unsigned char, 2, 4)
EMU_VECTORS(short, short, 4, 8)
EMU_VECTORS(ushort, unsigned short, 4, 8)
EMU_VECTORS(int, int, 8, 16)
EMU_VECTORS(uint, unsigned int, 8, 16)
EMU_VECTORS(long, long, 16, 16)
EMU_VECTORS(ulong, unsigned long, 16, 16)
EMU_VECTORS(longlong, long long, 16, 16)
EMU_VECTORS(ulonglong, unsigned long long, 16, 16)
EMU_VECTORS(float, float, 8, 16)
EMU_VECTORS(double, double, 16, 16)
#undef EMU_VECTORS

namespace emu {
// An index that is asked of the emulator when it is read.
template <unsigned (*ask)(int), int axis>
struct Index {
  operator unsigned() const { return ask(axis); }
};
template <unsigned (*ask)(int)>
struct Indices {
  Index<ask, 0> x;
  Index<ask, 1> y;
  Index<ask, 2> z;
};
}  // namespace emu

static const emu::Indices<emu::thread_index> threadIdx{};
static const emu::Indices<emu::block_index> blockIdx{};
static const emu::Indices<emu::block_size> blockDim{};
static const emu::Indices<emu::grid_size> gridDim{};
constexpr int warpSize = 32;
