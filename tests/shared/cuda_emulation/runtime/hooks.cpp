// What the compiler calls before accesses (-fsanitize=thread) and when a check of its own fails
// (-fsanitize=alignment,bounds,integer-divide-by-zero); the libraries of these are not linked.
#include <cstring>
#include <string>

#include "state.h"

#define EMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define EMU_ACCESS(BYTES)                                                                    \
  void __tsan_read##BYTES(void* at) { aligned_access<BYTES, false>(at, EMU_PC); }           \
  void __tsan_write##BYTES(void* at) { aligned_access<BYTES, true>(at, EMU_PC); }           \
  void __tsan_unaligned_read##BYTES(void* at) {                                             \
    emu::any_access(reinterpret_cast<uintptr_t>(at), BYTES, false, EMU_PC);                 \
  }                                                                                         \
  void __tsan_unaligned_write##BYTES(void* at) {                                            \
    emu::any_access(reinterpret_cast<uintptr_t>(at), BYTES, true, EMU_PC);                  \
  }

template <int bytes, bool write>
static inline void aligned_access(void* at, uintptr_t pc) {
  uintptr_t address = reinterpret_cast<uintptr_t>(at);
  if (address % bytes != 0 && emu::block.current != nullptr)
    emu::fail("misaligned access of " + std::to_string(bytes) + " bytes", pc);
  emu::any_access(address, bytes, write, pc);
}

extern "C" {
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
void __tsan_read_range(void* at, unsigned long bytes) {
  emu::any_access(reinterpret_cast<uintptr_t>(at), bytes, false, EMU_PC);
}
void __tsan_write_range(void* at, unsigned long bytes) {
  emu::any_access(reinterpret_cast<uintptr_t>(at), bytes, true, EMU_PC);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  emu::any_access(reinterpret_cast<uintptr_t>(from), bytes, false, EMU_PC);
  emu::any_access(reinterpret_cast<uintptr_t>(to), bytes, true, EMU_PC);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  emu::any_access(reinterpret_cast<uintptr_t>(to), bytes, true, EMU_PC);
  return std::memset(to, value, bytes);
}

// The layouts that the compiler's manual of these handlers does not give: those of its libubsan.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct TypeMismatch {
  SourceLocation place;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(TypeMismatch* what, uintptr_t address) {
  if (emu::block.current == nullptr) return;
  emu::fail_at_line("misaligned access: address " + std::to_string(address % 256) +
                        " modulo 256 is not a multiple of " +
                        std::to_string(1 << what->log_alignment),
                    int(what->place.line));
}
void __ubsan_handle_out_of_bounds(SourceLocation* place, uintptr_t index) {
  if (emu::block.current == nullptr) return;
  emu::fail_at_line("index " + std::to_string(long(index)) + " is outside of the array",
                    int(place->line));
}
void __ubsan_handle_divrem_overflow(SourceLocation* place, uintptr_t, uintptr_t) {
  if (emu::block.current != nullptr) emu::fail_at_line("division by zero", int(place->line));
}
}
