// half and nv_bfloat16: every operation is one of float, rounded to nearest even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half_bits.h"

#define EMU_HALF(T, TO_BITS, TO_VALUE)                                                            \
  struct T {                                                                                      \
    uint16_t bits;                                                                                \
    T() = default;                                                                                \
    T(float value) : bits(TO_BITS(value)) {}                                                      \
    T(double value) : bits(TO_BITS(float(value))) {}                                              \
    T(int value) : bits(TO_BITS(float(value))) {}                                                 \
    T(unsigned value) : bits(TO_BITS(float(value))) {}                                            \
    T(short value) : bits(TO_BITS(float(value))) {}                                               \
    T(unsigned short value) : bits(TO_BITS(float(value))) {}                                      \
    T(long value) : bits(TO_BITS(float(value))) {}                                                \
    T(unsigned long value) : bits(TO_BITS(float(value))) {}                                       \
    T(long long value) : bits(TO_BITS(float(value))) {}                                           \
    T(unsigned long long value) : bits(TO_BITS(float(value))) {}                                  \
    operator float() const { return TO_VALUE(bits); }                                             \
    T& operator+=(T other) { return *this = T(float(*this) + float(other)); }                     \
    T& operator-=(T other) { return *this = T(float(*this) - float(other)); }                     \
    T& operator*=(T other) { return *this = T(float(*this) * float(other)); }                     \
    T& operator/=(T other) { return *this = T(float(*this) / float(other)); }                     \
  };                                                                                              \
  struct alignas(4) T##2_ {                                                                       \
    T x, y;                                                                                       \
    T##2_() = default;                                                                            \
    T##2_(T a, T b) : x(a), y(b) {}                                                               \
  };                                                                                              \
  inline T operator+(T a, T b) { return T(float(a) + float(b)); }                                 \
  inline T operator-(T a, T b) { return T(float(a) - float(b)); }                                 \
  inline T operator*(T a, T b) { return T(float(a) * float(b)); }                                 \
  inline T operator/(T a, T b) { return T(float(a) / float(b)); }                                 \
  inline T operator-(T a) { return T(-float(a)); }                                                \
  inline bool operator<(T a, T b) { return float(a) < float(b); }                                 \
  inline bool operator>(T a, T b) { return float(a) > float(b); }                                 \
  inline bool operator<=(T a, T b) { return float(a) <= float(b); }                               \
  inline bool operator>=(T a, T b) { return float(a) >= float(b); }                               \
  inline bool operator==(T a, T b) { return float(a) == float(b); }                               \
  inline bool operator!=(T a, T b) { return float(a) != float(b); }                               \
  inline bool __hgt(T a, T b) { return a > b; }                                                   \
  inline bool __hlt(T a, T b) { return a < b; }                                                   \
  inline bool __hge(T a, T b) { return a >= b; }                                                  \
  inline bool __hle(T a, T b) { return a <= b; }                                                  \
  inline bool __heq(T a, T b) { return a == b; }                                                  \
  inline bool __hne(T a, T b) { return a != b; }                                                  \
  inline bool __hisnan(T a) { return std::isnan(float(a)); }                                      \
  inline T __hadd(T a, T b) { return a + b; }                                                     \
  inline T __hsub(T a, T b) { return a - b; }                                                     \
  inline T __hmul(T a, T b) { return a * b; }                                                     \
  inline T __hdiv(T a, T b) { return a / b; }                                                     \
  inline T __hneg(T a) { return -a; }                                                             \
  inline T __hfma(T a, T b, T c) { return T(std::fma(float(a), float(b), float(c))); }            \
  inline T __hmax(T a, T b) { return T(std::fmax(float(a), float(b))); }                          \
  inline T __hmin(T a, T b) { return T(std::fmin(float(a), float(b))); }                          \
  inline T __habs(T a) { return T(std::fabs(float(a))); }                                         \
  inline T hexp(T a) { return T((emu::count_call(), std::exp(float(a)))); }                                            \
  inline T hexp2(T a) { return T(std::exp2(float(a))); }                                          \
  inline T hexp10(T a) { return T(std::pow(10.0f, float(a))); }                                   \
  inline T hlog(T a) { return T(std::log(float(a))); }                                            \
  inline T hlog2(T a) { return T(std::log2(float(a))); }                                          \
  inline T hlog10(T a) { return T(std::log10(float(a))); }                                        \
  inline T hsqrt(T a) { return T(std::sqrt(float(a))); }                                          \
  inline T hrsqrt(T a) { return T(1.0f / std::sqrt(float(a))); }                                  \
  inline T hrcp(T a) { return T(1.0f / float(a)); }                                               \
  inline T hsin(T a) { return T(std::sin(float(a))); }                                            \
  inline T hcos(T a) { return T(std::cos(float(a))); }                                            \
  inline T htanh(T a) { return T((emu::count_call(), std::tanh(float(a)))); }                                          \
  inline T hfloor(T a) { return T(std::floor(float(a))); }                                        \
  inline T hceil(T a) { return T(std::ceil(float(a))); }                                          \
  inline T htrunc(T a) { return T(std::trunc(float(a))); }                                        \
  inline T hrint(T a) { return T(std::nearbyint(float(a))); }

EMU_HALF(__half, emu::float_to_half, emu::half_to_float)
EMU_HALF(__nv_bfloat16, emu::float_to_bfloat16, emu::bfloat16_to_float)
#undef EMU_HALF

using half = __half;
using __half2 = __half2_;
using half2 = __half2_;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = __nv_bfloat162_;
using nv_bfloat162 = __nv_bfloat162_;

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline float __half2float(half value) { return float(value); }
inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }
inline half __int2half_rn(int value) { return half(value); }
inline unsigned short __half_as_ushort(half value) { return value.bits; }
inline half __ushort_as_half(unsigned short bits) {
  half value;
  value.bits = bits;
  return value;
}
inline float __bfloat162float(nv_bfloat16 value) { return float(value); }
inline nv_bfloat16 __float2bfloat16(float value) { return nv_bfloat16(value); }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 value) { return value.bits; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  nv_bfloat16 value;
  value.bits = bits;
  return value;
}
