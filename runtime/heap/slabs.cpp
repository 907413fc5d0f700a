// SPDX-License-Identifier: Apache-2.0
// See slabs.h.
#include "heap/slabs.h"

#include <jemalloc/jemalloc.h>

#include <cstring>

#include "heap/heap.h"

#ifdef LUNAR_JEMALLOC_OF_PROGRAM
#pragma weak mallctlbymib
#pragma weak mallctlnametomib
#pragma weak mallocx
#pragma weak dallocx
#endif

namespace lunar {
namespace {

// The answer of experimental.utilization.query (inspect.h of jemalloc 5.3).
struct SlabUse {
  void* current_slab;
  size_t free_blocks, blocks, bytes, all_free_blocks, all_blocks;
};

// The MIB of a name of mallctl, looked up once.
struct Name {
  const char* text;
  size_t depth = 0, mib[3] = {};
  bool ask(void* out, size_t bytes, const void** pointer) {
    if (depth == 0) {
      size_t found = 3;
      if (mallctlnametomib(text, mib, &found) != 0) return false;
      depth = found;
    }
    size_t size = bytes;
    return mallctlbymib(mib, depth, out, &size, pointer, sizeof(*pointer)) == 0 && size == bytes;
  }
};
thread_local Name t_use{"experimental.utilization.query"}, t_arena{"arenas.lookup"};

}  // namespace

bool heap_in_sparse_slab(const void* inside) {
  SlabUse use{};
  if (!heap_owns(inside) || !t_use.ask(&use, sizeof(use), &inside)) return false;
  if (use.blocks <= 1 || use.free_blocks == 0 || use.all_blocks == 0) return false;
  return use.free_blocks * use.all_blocks > use.all_free_blocks * use.blocks;
}

void* heap_move(void* block) {
  const void* where = block;
  unsigned arena = 0;
  if (!heap_owns(block) || !t_arena.ask(&arena, sizeof(arena), &where)) return nullptr;
  const size_t bytes = heap_usable_size(block);
  void* moved = mallocx(bytes, static_cast<int>(MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE));
  if (moved == nullptr) return nullptr;
  if (heap_usable_size(moved) != bytes) {
    dallocx(moved, MALLOCX_TCACHE_NONE);
    return nullptr;
  }
  memcpy(moved, block, bytes);
  dallocx(block, MALLOCX_TCACHE_NONE);
  return moved;
}

}  // namespace lunar
