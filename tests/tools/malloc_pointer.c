/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is linked to a fixed address and takes the address of malloc: for such a pointer
 * the linker uses the program's own jump to the function. Fails when that is not so, or what it
 * gets is not tiered. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  int (*is_tiered)(const void*) = (int (*)(const void*))dlsym(RTLD_DEFAULT, "lunar_is_tiered");
  void* (*volatile allocate)(size_t) = malloc;
  char* memory = allocate(1 << 20);
  if (memory == NULL || is_tiered == NULL ||
      dlsym(RTLD_DEFAULT, "malloc") == dlsym(RTLD_NEXT, "malloc"))
    return 1;
  memset(memory, 1, 1 << 20);
  return is_tiered(memory) == 1 ? 0 : 2;
}
