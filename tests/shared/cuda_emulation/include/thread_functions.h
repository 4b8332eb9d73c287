// Barriers, operations of a warp, atomic operations.
#pragma once
#include <cstdint>
#include <cstring>

#define __syncthreads() emu::barrier(__LINE__)
#define __syncwarp(...) emu::sync_warp(__LINE__, emu::mask_or_all(__VA_ARGS__))
#define __activemask() emu::active_mask(__LINE__)
#define __threadfence() emu::global_fence()
#define __threadfence_block()
#define __threadfence_system() emu::global_fence()
#define __nanosleep(duration)
#define __trap() emu::trap("__trap", __LINE__)

#define __shfl_sync(...) emu::shuffled<0>(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emu::shuffled<1>(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emu::shuffled<2>(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emu::shuffled<3>(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) emu::ballot(__LINE__, mask, predicate)
#define __any_sync(mask, predicate) (emu::ballot(__LINE__, mask, predicate) != 0)
#define __all_sync(mask, predicate) (emu::ballot(__LINE__, mask, !(predicate)) == 0)

#define atomicAdd(at, value) emu::atomic(__LINE__, at, value, [](auto a, auto b) { return a + b; })
#define atomicMax(at, value) \
  emu::atomic(__LINE__, at, value, [](auto a, auto b) { return a < b ? b : a; })
#define atomicMin(at, value) \
  emu::atomic(__LINE__, at, value, [](auto a, auto b) { return b < a ? b : a; })
#define atomicAnd(at, value) emu::atomic(__LINE__, at, value, [](auto a, auto b) { return a & b; })
#define atomicOr(at, value) emu::atomic(__LINE__, at, value, [](auto a, auto b) { return a | b; })
#define atomicExch(at, value) emu::atomic(__LINE__, at, value, [](auto, auto b) { return b; })
#define atomicCAS(at, expected, value) emu::atomic_exchange_if(__LINE__, at, expected, value)

// A uniform value: the same in all lanes of the warp that run.
template <typename T>
inline T __ldg(const T* at) {
  return *at;
}
template <typename T>
inline T __ldcg(const T* at) {
  return *at;
}
inline uint64_t __cvta_generic_to_shared(const void* pointer) {
  return emu::shared_address(pointer);
}
inline uint64_t __cvta_generic_to_global(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

namespace emu {

inline unsigned mask_or_all(unsigned mask = 0xFFFFFFFFu) { return mask; }

template <int kind, typename T>
inline T shuffled(int line, unsigned mask, T value, int operand, int width = 32) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(line, mask, bits, kind, operand, width);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T, typename V, typename F>
__attribute__((noinline, no_sanitize("thread"))) T atomic(int line, T* at, V value, F change) {
  atomic_access(at, sizeof(T), line);
  T old = *at;
  *at = static_cast<T>(change(old, static_cast<T>(value)));
  return old;
}

template <typename T, typename V>
__attribute__((noinline, no_sanitize("thread"))) T atomic_exchange_if(int line, T* at, V expected,
                                                                     V value) {
  atomic_access(at, sizeof(T), line);
  T old = *at;
  if (old == static_cast<T>(expected)) *at = static_cast<T>(value);
  return old;
}

}  // namespace emu
