// SPDX-License-Identifier: Apache-2.0
// The tiered allocator: jemalloc arenas whose extents come from one pager region; jemalloc's
// metadata stays in DRAM (experimental.arenas_create_ext, metadata_use_hooks=false).
//
// Extents: the alloc hook hands out address space uncommitted, the commit hook charges it against
// the LUN (region_commit), decommit discards and uncharges, dalloc opts out so that jemalloc
// retains addresses. retain_grow_limit bounds the retained surplus (address space only, which is
// not charged). Threads get one of N arenas (N = min(4, CPUs)), round robin; thread caches work as
// usual and hold no links inside freed objects.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar {

// How the process uses this allocator.
enum class HeapMode {
  // It is the program's malloc: threads are bound by thread.arena and use jemalloc's own thread
  // caches. kPreload: the library registered its fork handlers before jemalloc did, so a fork takes
  // jemalloc's locks first and the pager's then; a hook, which runs with jemalloc's locks held, may
  // wait for the pager. kProcess: the other way round, so a hook only tries.
  kPreload,
  kProcess,
  // The API, in a program with another malloc (which may be jemalloc): separate arenas and thread
  // caches, so that the program's use of jemalloc does not change.
  kPrivate,
};

// kPreload: binds jemalloc's calls to its shared library, even if the program defines functions of
// the same names (it may be linked with its own jemalloc). Must be the first call of this header,
// while there is one thread. Returns an address inside that library.
const void* heap_find_jemalloc();
// A handle of that library, for dlsym; nullptr if the linker knows none (jemalloc is linked
// statically).
void* heap_jemalloc_library();

// Creates region and arenas. pre: pager_create. 0, -EEXIST, -ENOTSUP (no jemalloc >= 5.3 API),
// -ENOMEM; *why filled. Not concurrent with itself.
[[nodiscard]] int heap_create(HeapMode mode, ErrorText* why);
bool heap_ready();
// Ends a kPrivate heap. pre: all allocations are freed, no other thread is in the heap. 0 (also if
// there is none) or -errno (-EBUSY: the heap has another mode).
[[nodiscard]] int heap_destroy();

// The fields that every call of the malloc family reads, in one cache line.
struct alignas(64) HeapFront {
  char* base = nullptr;  // of the region
  size_t bytes = 0;
  // jemalloc's malloc, free and malloc_usable_size, or equivalents.
  void* (*alloc)(size_t) = nullptr;
  void (*free)(void*) = nullptr;
  size_t (*usable_size)(void*) = nullptr;
  // Of arenas and thread caches. Threads bind again when it has changed.
  std::atomic<uint32_t> generation{1};
};
extern constinit HeapFront g_heap_front;
// The arguments that a thread passes to jemalloc. `flags` is valid while `generation` is the
// heap's.
struct ThreadBinding {
  uint32_t generation = 0;
  int flags = 0;
  unsigned cache = UINT32_MAX;  // kPrivate: index of the thread's tcache
};
extern constinit thread_local ThreadBinding t_heap_binding
    __attribute__((tls_model("initial-exec")));

// Whether `pointer` lies in the heap's region. Lock-free; may be called anywhere.
inline bool heap_owns(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(g_heap_front.base) <
         g_heap_front.bytes;
}
// Whether this thread may call g_heap_front's functions. Implies heap_ready(). pre: no HostGuard.
inline bool heap_thread_is_bound() {
  return t_heap_binding.generation == g_heap_front.generation.load(std::memory_order_relaxed) &&
         t_heap_binding.flags == 0;
}

// malloc family on tiered arenas. NULL with errno on failure. Any thread; never under a HostGuard.
// bytes 0 is taken as 1.
void* heap_alloc(size_t bytes);
void* heap_alloc_zeroed(size_t bytes);
void* heap_alloc_aligned(size_t alignment, size_t bytes);  // pre: alignment is a power of two
void* heap_resize(void* pointer, size_t bytes);            // pre: heap_owns(pointer)
void heap_free(void* pointer);                             // pre: heap_owns(pointer). errno stays
// heap_free(pointer) if heap_owns(pointer), else other(pointer): a fast path for free()
void heap_free_or(void* pointer, void (*other)(void*));
inline size_t heap_usable_size(const void* pointer) {
  return g_heap_front.usable_size(const_cast<void*>(pointer));
}

// These allocate from the DRAM arena (metadata, guarded threads): plain jemalloc, arena 0, no
// thread cache. Usable before heap_create.
void* heap_alloc_dram(size_t alignment, size_t bytes, bool zero);
void* heap_resize_dram(void* pointer, size_t bytes);
void heap_free_dram(void* pointer);

// kProcess: empties the calling thread's cache; its allocations come from DRAM until
// heap_step_in(the result). Needed around a fork, and wherever the runtime starts threads: memory
// that libc allocates for a service thread must not be tiered.
unsigned heap_step_out();
void heap_step_in(unsigned arena);

// Gives back the DRAM and LUN space of memory that jemalloc holds committed and free. jemalloc
// itself does this only after some seconds. Any thread; not under a HostGuard.
void heap_purge();

// Bytes of the process' blocks, and of the pages under them, including the DRAM arena. Any thread.
struct HeapCounts {
  size_t allocated = 0, active = 0;
};
void heap_counts(HeapCounts* out);  // {} if the allocator does not tell

// The extent hooks' counts since heap_create, in bytes (for tests: jemalloc keeps no metadata in
// the region).
struct HeapHookBytes {
  size_t reserved;   // address space handed out
  size_t committed;  // committed now, including `ahead`
  size_t ahead;      // committed before jemalloc asked for it (commit_ahead.h)
};
HeapHookBytes heap_hook_bytes();

}  // namespace lunar
