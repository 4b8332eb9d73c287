// Mathematical functions of device code that a host's <cmath> has under another name, or not.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")

// As macros: <cmath> declares functions of these names that the C library does not have.
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __sqrtf(x) sqrtf(x)
#define __fdividef(x, y) ((float)(x) / (float)(y))
#define __frcp_rn(x) (1.0f / (float)(x))
#define __fsqrt_rn(x) sqrtf(x)
#define __frsqrt_rn(x) (1.0f / sqrtf(x))
#define __fadd_rn(x, y) ((float)(x) + (float)(y))
#define __fmul_rn(x, y) ((float)(x) * (float)(y))
#define __fmaf_rn(x, y, z) fmaf(x, y, z)
#define __fma_rn(x, y, z) fma(x, y, z)

#define EMU_ORDER(T)                                          \
  inline T max(T a, T b) { return a < b ? b : a; }            \
  inline T min(T a, T b) { return b < a ? b : a; }
EMU_ORDER(int)
EMU_ORDER(unsigned)
EMU_ORDER(long)
EMU_ORDER(unsigned long)
EMU_ORDER(long long)
EMU_ORDER(unsigned long long)
#undef EMU_ORDER
// A NaN gives way to a number.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(double(a), b); }
inline double max(double a, float b) { return fmax(a, double(b)); }
inline double min(float a, double b) { return fmin(double(a), b); }
inline double min(double a, float b) { return fmin(a, double(b)); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#define exp10f(x) powf(10.0f, x)
inline float fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return fminf(1.0f, fmaxf(0.0f, x)); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline unsigned __float_as_uint(float value) { return unsigned(__float_as_int(value)); }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float(int(bits)); }
inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned long long)x * y >> 32; }
inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }

namespace emu {
template <typename A, typename B>
int dot_of_bytes(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += int(A(a >> 8 * i)) * int(B(b >> 8 * i));
  return sum;
}
}  // namespace emu
// Overloads for mixed signs are in the generated code's own head.
inline int __dp4a(int a, int b, int sum) { return emu::dot_of_bytes<int8_t, int8_t>(a, b, sum); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  return emu::dot_of_bytes<uint8_t, uint8_t>(int(a), int(b), int(sum));
}

// Calls of exponentials, and of functions made of them, are counted.
#define expf(x) (emu::count_call(), expf(x))
#define exp2f(x) (emu::count_call(), exp2f(x))
#define logf(x) (emu::count_call(), logf(x))
#define tanhf(x) (emu::count_call(), tanhf(x))
#define erff(x) (emu::count_call(), erff(x))
#define powf(x, y) (emu::count_call(), powf(x, y))
