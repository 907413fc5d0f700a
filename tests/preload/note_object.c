// SPDX-License-Identifier: Apache-2.0
// An object that makes a map through libc.
#include <sys/mman.h>

void* map_from_object(unsigned long bytes) {
  void* const made = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  __asm__ volatile("" ::: "memory");  // a return address in this object: no tail call
  return made;
}
