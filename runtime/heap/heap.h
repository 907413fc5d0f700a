// SPDX-License-Identifier: Apache-2.0
// The tiered allocator: jemalloc arenas whose extents come from one pager region; jemalloc's metadata stays in DRAM
// (experimental.arenas_create_ext, metadata_use_hooks=false).
//
// Extents: the alloc hook hands out address space uncommitted, the commit hook charges it against the LUN
// (region_commit), decommit discards and uncharges, dalloc opts out so that jemalloc retains addresses.
// retain_grow_limit bounds the retained surplus (address space only: nothing is charged for it).
// Threads get one of N arenas (N = min(4, CPUs)), round robin; thread caches work as usual and hold no links inside
// freed objects.
#pragma once
#include <cstddef>

#include "base/error.h"

namespace lunar {

// How the process uses this allocator.
enum class HeapMode {
  // the program's malloc, by a library whose fork handlers are older than jemalloc's (preload): a fork takes jemalloc's
  // locks before it keeps others from giving memory back, so that they may wait for it with these locks held
  kPreload,
  kProcess,  // the program's malloc: threads are bound by thread.arena, their own thread cache serves
  // the API, with another malloc in the process (jemalloc perhaps): explicit arena and a thread cache of our own, so
  // that the program's own use of jemalloc does not change
  kPrivate,
};

// kPreload: jemalloc's calls are those of its shared library from now on, whatever has their names in the program, into
// which jemalloc may be linked. Before all else here, with one thread. Returns an address inside that library.
const void* heap_find_jemalloc();
// A handle of that library, for dlsym; nullptr where the linker knows none (jemalloc is linked statically).
void* heap_jemalloc_library();

// Creates region and arenas. pre: pager_create. 0, -EEXIST, -ENOTSUP (no jemalloc >= 5.3 API), -ENOMEM; *why filled.
// Not concurrent with itself.
[[nodiscard]] int heap_create(HeapMode mode, ErrorText* why);
bool heap_ready();
// Ends a kPrivate heap. pre: no allocation lives, no other thread is in the heap. 0 or -errno (-EBUSY: another).
[[nodiscard]] int heap_destroy();

// malloc family on tiered arenas. NULL with errno on failure. Any thread; never under a HostGuard. bytes 0 is taken as
// 1.
void* heap_alloc(size_t bytes);
void* heap_alloc_zeroed(size_t bytes);
void* heap_alloc_aligned(size_t alignment, size_t bytes);  // pre: alignment is a power of two
void* heap_resize(void* pointer, size_t bytes);            // pre: heap_owns(pointer)
void heap_free(void* pointer);                             // pre: heap_owns(pointer). errno stays
// heap_free if heap_owns(pointer), else other: one jump for free()
void heap_free_or(void* pointer, void (*other)(void*));
size_t heap_usable_size(const void* pointer);
size_t heap_usable_size_or(const void* pointer, size_t (*other)(const void*));  // likewise
bool heap_owns(const void* pointer);  // lies in the heap's region. Lock-free, callable anywhere

// From the DRAM arena (metadata, guarded threads): plain jemalloc, arena 0, no thread cache. Usable before heap_create.
void* heap_alloc_dram(size_t alignment, size_t bytes, bool zero);
void* heap_resize_dram(void* pointer, size_t bytes);
void heap_free_dram(void* pointer);

// kProcess: the calling thread's cache is emptied and its allocations come from DRAM until heap_step_in. Around a fork,
// and wherever the runtime starts threads: what libc allocates for a service thread must not be tiered. Returns what
// heap_step_in wants.
unsigned heap_step_out();
void heap_step_in(unsigned arena);

// Gives back, DRAM and LUN space, what jemalloc holds committed and free: otherwise that takes it some seconds. Any
// thread; not under a HostGuard.
void heap_purge();

// Bytes that the extent hooks were called for since heap_create (tests: jemalloc keeps no metadata in the region).
struct HeapHookBytes {
  size_t reserved;   // address space handed out
  size_t committed;  // committed now
};
HeapHookBytes heap_hook_bytes();

}  // namespace lunar
