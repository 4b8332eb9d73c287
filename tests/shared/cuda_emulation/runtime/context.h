// Switching between the stacks of fibres.
#pragma once
#include <algorithm>

// Saves the registers that a call preserves, and goes on where the other stack stopped.
extern "C" void emu_switch_stack(void** save, void* to) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
asm(R"(
.text
.hidden emu_switch_stack
.globl emu_switch_stack
.type emu_switch_stack, @function
emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size emu_switch_stack, .-emu_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden emu_switch_stack
.globl emu_switch_stack
.type emu_switch_stack, %function
emu_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch_stack, .-emu_switch_stack
)");
#else
#error "fibres are written for x86-64 and AArch64"
#endif

namespace emu {

// The stack of a fibre that will begin with `entry`.
inline void* first_frame(char* top, void (*entry)()) {
#if defined(__x86_64__)
  void** at = reinterpret_cast<void**>(top - 64);
  *--at = nullptr;  // as if entry had been called: the stack is 8 off 16 bytes
  *--at = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--at = nullptr;
  return at;
#else
  char* at = top - 64 - 160;
  std::fill(at, at + 160, 0);
  *reinterpret_cast<void**>(at + 88) = reinterpret_cast<void*>(entry);
  return at;
#endif
}

}  // namespace emu
