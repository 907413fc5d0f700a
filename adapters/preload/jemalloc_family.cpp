// SPDX-License-Identifier: Apache-2.0
// jemalloc's extended calls that free memory or ask about it, for programs that call them by name
// (Valkey 8.1 frees everything by sdallocx, Redis 8.0 defragments by dallocx). A block may lie in
// the early heap (malloc_family.cpp says when), which jemalloc does not know: it would put such a
// block into the thread's cache unseen, and crash when it empties the cache. Memory from jemalloc
// goes to jemalloc.
//
// The runtime's own calls of these names also come here, because this library defines them.
// Threading: any thread.
#include "jemalloc_family.h"

#include <dlfcn.h>
#include <jemalloc/jemalloc.h>

#include <cstring>

#include "early_heap.h"
#include "heap/heap.h"
#include "preload.h"

namespace lunar::preload {
namespace {

struct Jemalloc {
  void (*dallocx)(void*, int) = nullptr;
  void (*sdallocx)(void*, size_t, int) = nullptr;
  void* (*rallocx)(void*, size_t, int) = nullptr;
  size_t (*xallocx)(void*, size_t, size_t, int) = nullptr;
  size_t (*sallocx)(const void*, int) = nullptr;
};
constinit Jemalloc g_jemalloc;

constexpr int kCacheOfFlags = 0xfff00;

template <class F>
void find(void* library, F& slot, const char* name) {
  slot = reinterpret_cast<F>(dlsym(library != nullptr ? library : RTLD_NEXT, name));
}

// A guarded thread (HostGuard) must not mix memory of the tier and memory that stays out of it in
// its cache.
int cache_of_guarded(int flags) {
  return HostGuard::active() && (flags & kCacheOfFlags) == 0 ? flags | MALLOCX_TCACHE_NONE : flags;
}

}  // namespace

const void* jemalloc_prepare() {
  const void* inside = heap_find_jemalloc();
  void* library = heap_jemalloc_library();
  find(library, g_jemalloc.dallocx, "dallocx");
  find(library, g_jemalloc.sdallocx, "sdallocx");
  find(library, g_jemalloc.rallocx, "rallocx");
  find(library, g_jemalloc.xallocx, "xallocx");
  find(library, g_jemalloc.sallocx, "sallocx");
  return inside;
}

}  // namespace lunar::preload

using lunar::preload::cache_of_guarded;
using lunar::preload::early_free;
using lunar::preload::early_owns;
using lunar::preload::early_size;
using lunar::preload::g_jemalloc;

extern "C" {

LUNAR_EXPORT void dallocx(void* pointer, int flags) noexcept {
  if (__builtin_expect(early_owns(pointer), 0)) return early_free(pointer);
  g_jemalloc.dallocx(pointer, cache_of_guarded(flags));
}

LUNAR_EXPORT void sdallocx(void* pointer, size_t bytes, int flags) noexcept {
  if (__builtin_expect(early_owns(pointer), 0)) return early_free(pointer);
  g_jemalloc.sdallocx(pointer, bytes, cache_of_guarded(flags));
}

LUNAR_EXPORT void* rallocx(void* pointer, size_t bytes, int flags) noexcept {
  flags = cache_of_guarded(flags);
  if (__builtin_expect(!early_owns(pointer), 1)) return g_jemalloc.rallocx(pointer, bytes, flags);
  void* moved = mallocx(bytes, flags);
  if (moved == nullptr) return nullptr;
  const size_t old = early_size(pointer);
  memcpy(moved, pointer, old < bytes ? old : bytes);
  early_free(pointer);
  return moved;
}

LUNAR_EXPORT size_t xallocx(void* pointer, size_t bytes, size_t extra, int flags) noexcept {
  if (__builtin_expect(early_owns(pointer), 0)) return early_size(pointer);
  return g_jemalloc.xallocx(pointer, bytes, extra, flags);
}

LUNAR_EXPORT size_t sallocx(const void* pointer, int flags) noexcept {
  return __builtin_expect(early_owns(pointer), 0) ? early_size(pointer)
                                                  : g_jemalloc.sallocx(pointer, flags);
}

}  // extern "C"
