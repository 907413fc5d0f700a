/* SPDX-License-Identifier: Apache-2.0
 * A loader that is not glibc's, without any libc: stands for musl's. Prints the program's
 * LD_PRELOAD ("LD_PRELOAD=" if there is none), and ends by 9. x86-64 only. */
static long call(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
}

static void print(const char* text) {
  long length = 0;
  while (text[length] != 0) ++length;
  call(1, 1, (long)text, length);
  call(1, 1, (long)"\n", 1);
}

__attribute__((used)) void begin(long* stack) {
  const char* found = "LD_PRELOAD=";
  for (const char** at = (const char**)stack + stack[0] + 2; *at != 0; ++at) {
    int same = 0;
    while (same < 11 && (*at)[same] == "LD_PRELOAD="[same]) ++same;
    if (same == 11) found = *at;
  }
  print(found);
  call(60, 9, 0, 0);
  __builtin_unreachable();
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");
