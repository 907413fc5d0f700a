/* SPDX-License-Identifier: Apache-2.0
 * A library that is loaded with RTLD_DEEPBIND: allocates, frees what others have allocated, and
 * loads another library by a name that only its own search path ($ORIGIN) finds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

char* deep_make(void) { return strdup("made by the library"); }
void deep_free(void* block) { free(block); }
void* deep_grow(void* block, size_t bytes) { return realloc(block, bytes); }
/* Not as its last act: the loader looks at where the call returns to. */
void* deep_open(const char* name, int with_space) {
  const int mode = RTLD_NOW | RTLD_DEEPBIND;
  void* volatile library = with_space ? dlmopen(LM_ID_BASE, name, mode) : dlopen(name, mode);
  return library;
}
