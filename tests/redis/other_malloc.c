/* SPDX-License-Identifier: Apache-2.0 */
/* A malloc that is not jemalloc, put first by LD_PRELOAD: glibc's own blocks with a head that tells
 * size and start. For the test of what the Redis module refuses. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void* __libc_malloc(size_t);
void __libc_free(void*);

struct head {
  void* start;
  size_t size;
};

void* memalign(size_t alignment, size_t size) {
  if (alignment < 16) alignment = 16;
  char* start = __libc_malloc(size + alignment + sizeof(struct head));
  if (start == NULL) return NULL;
  char* block =
      (char*)(((uintptr_t)start + sizeof(struct head) + alignment - 1) / alignment * alignment);
  ((struct head*)block)[-1] = (struct head){start, size};
  return block;
}

void* malloc(size_t size) { return memalign(16, size); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
size_t malloc_usable_size(void* block) {
  return block == NULL ? 0 : ((struct head*)block)[-1].size;
}
void free(void* block) {
  if (block != NULL) __libc_free(((struct head*)block)[-1].start);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == NULL ? ENOMEM : 0;
}

void* calloc(size_t count, size_t size) {
  void* block = malloc(count * size);
  return block == NULL ? NULL : memset(block, 0, count * size);
}

void* realloc(void* block, size_t size) {
  void* moved = malloc(size);
  if (moved != NULL && block != NULL) {
    size_t before = malloc_usable_size(block);
    memcpy(moved, block, before < size ? before : size);
    free(block);
  }
  return moved;
}
