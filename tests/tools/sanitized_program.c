/* SPDX-License-Identifier: Apache-2.0
 * Looks like a program with AddressSanitizer, whose mark is this name. Prints its LD_PRELOAD. */
#include <stdio.h>
#include <stdlib.h>

void __asan_init(void) {}

int main(void) {
  const char* preload = getenv("LD_PRELOAD");
  printf("LD_PRELOAD=%s\n", preload != NULL ? preload : "");
  return 9;
}
