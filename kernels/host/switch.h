// Switching between stacks: saves what the calling convention asks to keep, and nothing else.
#pragma once

#include <cstdint>

// Stores the current context's stack pointer in *save and continues the context `to`.
extern "C" void gradjury_switch(void** save, void* to);

#if defined(__x86_64__)

asm(R"(
.text
.p2align 4
.globl gradjury_switch
.hidden gradjury_switch
.type gradjury_switch,@function
gradjury_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gradjury_switch,.-gradjury_switch
)");

// A context that begins `entry` on the stack that ends at `top`.
static void* new_context(char* top, void (*entry)()) {
  void** place = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--place = nullptr;
  *--place = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--place = nullptr;
  return place;
}

#elif defined(__aarch64__)

asm(R"(
.text
.p2align 4
.globl gradjury_switch
.hidden gradjury_switch
.type gradjury_switch,%function
gradjury_switch:
  stp x19,x20,[sp,-160]!
  stp x21,x22,[sp,16]
  stp x23,x24,[sp,32]
  stp x25,x26,[sp,48]
  stp x27,x28,[sp,64]
  stp x29,x30,[sp,80]
  stp d8,d9,[sp,96]
  stp d10,d11,[sp,112]
  stp d12,d13,[sp,128]
  stp d14,d15,[sp,144]
  mov x9,sp
  str x9,[x0]
  mov sp,x1
  ldp x21,x22,[sp,16]
  ldp x23,x24,[sp,32]
  ldp x25,x26,[sp,48]
  ldp x27,x28,[sp,64]
  ldp x29,x30,[sp,80]
  ldp d8,d9,[sp,96]
  ldp d10,d11,[sp,112]
  ldp d12,d13,[sp,128]
  ldp d14,d15,[sp,144]
  ldp x19,x20,[sp],160
  ret
.size gradjury_switch,.-gradjury_switch
)");

static void* new_context(char* top, void (*entry)()) {
  void** place = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 20;
  for (int i = 0; i < 20; i++) place[i] = nullptr;
  place[11] = reinterpret_cast<void*>(entry);
  return place;
}

#else
#error "no context switch for this architecture: x86-64 and 64-bit Arm are known"
#endif
