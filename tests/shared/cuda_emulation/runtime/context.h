// Switching between the stacks of fibres.
#pragma once
#include <algorithm>

namespace emu {

#if defined(__x86_64__)
// Saves the registers that a call preserves, and goes on where the other stack stopped.
__attribute__((naked, noinline)) static void switch_stack(void** /*save*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n retq\n");
}

inline void* first_frame(char* top, void (*entry)()) {
  void** at = reinterpret_cast<void**>(top - 64);
  *--at = nullptr;  // as if entry had been called: the stack is 8 off 16 bytes
  *--at = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--at = nullptr;
  return at;
}
#elif defined(__aarch64__)
__attribute__((naked, noinline)) static void switch_stack(void** /*save*/, void* /*to*/) {
  asm volatile(
      "sub sp, sp, #160\n"
      "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
      "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
      "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n"
      "stp d14, d15, [sp, #144]\n"
      "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
      "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
      "ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
      "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n"
      "ldp d14, d15, [sp, #144]\n"
      "add sp, sp, #160\n ret\n");
}

inline void* first_frame(char* top, void (*entry)()) {
  char* at = top - 64 - 160;
  std::fill(at, at + 160, 0);
  *reinterpret_cast<void**>(at + 88) = reinterpret_cast<void*>(entry);
  return at;
}
#else
#error "fibres are written for x86-64 and AArch64"
#endif

}  // namespace emu
