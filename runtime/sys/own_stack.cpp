// SPDX-License-Identifier: Apache-2.0
// See own_stack.h.
#include "sys/own_stack.h"

#include <sys/mman.h>

#include "base/units.h"
#include "sys/arena.h"
#include "sys/mem.h"

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LUNAR_SWITCHES_STACKS 1
#else
#define LUNAR_SWITCHES_STACKS 0
#endif

namespace lunar::sys {
namespace {

constexpr size_t kStackBytes =
    256 * kKiB;  // many times what is used; the rest costs only address space

#if LUNAR_SWITCHES_STACKS
// Keeps the former stack pointer in a register that `run` preserves.
__attribute__((noinline)) void run_on(char* top, void* argument, void (*run)(void*)) {
#if defined(__x86_64__)
  __asm__ volatile(
      "movq %%rsp, %%rbx\n\t"
      "movq %[top], %%rsp\n\t"
      "call *%[run]\n\t"
      "movq %%rbx, %%rsp"
      : "+D"(argument), [top] "+r"(top), [run] "+a"(run)
      :
      : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1",
        "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
#else
  register void* first __asm__("x0") = argument;
  __asm__ volatile(
      "mov x19, sp\n\t"
      "mov sp, %[top]\n\t"
      "blr %[run]\n\t"
      "mov sp, x19"
      : "+r"(first)
      : [top] "r"(top), [run] "r"(run)
      : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
        "x15", "x16", "x17", "x19", "x30", "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6",
        "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",
        "v28", "v29", "v30", "v31");
#endif
}
#endif

}  // namespace

void OwnStack::make() {
  if (!LUNAR_SWITCHES_STACKS || base_ != nullptr) return;
  auto* base = static_cast<char*>(map_private(page_bytes() + kStackBytes, ForkPolicy::kInherit));
  if (base == nullptr) return;
  (void)protect(base, page_bytes(), PROT_NONE);
  base_ = base;
}

void OwnStack::call(void* argument, void (*run)(void* argument)) {
#if LUNAR_SWITCHES_STACKS
  if (base_ != nullptr) return run_on(base_ + page_bytes() + kStackBytes, argument, run);
#endif
  run(argument);
}

}  // namespace lunar::sys
