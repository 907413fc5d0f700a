// SPDX-License-Identifier: Apache-2.0
// Memory of a program that carries the build id of the Go linker: discarded by madvise in the
// program's own code, it reads as zeros afterwards, also where the budget has long been exceeded
// (adapters/preload/go_runtime.h).
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

__asm__(
    ".pushsection .note.go.buildid, \"a\", @note\n"
    ".balign 4\n"
    ".long 4, 4, 4\n"
    ".asciz \"Go\\0\"\n"
    ".long 0\n"
    ".popsection\n");

static long raw_madvise(char* address, size_t bytes) {
  long result;
#if defined(__x86_64__)
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"((long)SYS_madvise), "D"(address), "S"(bytes), "d"((long)MADV_DONTNEED)
                   : "rcx", "r11", "memory");
#else
  (void)address, (void)bytes;
  result = -1;
#endif
  return result;
}

int main(void) {
  enum { kBytes = 48 << 20, kPage = 4096 };
  char* memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  memset(memory, 7, kBytes);
  if (raw_madvise(memory, kBytes) != 0) {
    printf("skip: x86_64: the call is not written for this machine\n");
    return 77;
  }
  size_t old = 0;
  for (size_t i = 0; i < kBytes; i += kPage) old += memory[i] != 0;
  if (old != 0) printf("%zu pages have their old content\n", old);
  return old != 0;
}
