// SPDX-License-Identifier: Apache-2.0
// The tiered allocator over jemalloc: see heap.h for the idea.
//
// The region is handed out by a bump pointer that never goes back: jemalloc retains addresses for
// itself (the dalloc hook opts out) and decommits them, so free memory costs neither DRAM nor LUN
// space, only addresses.
//
// Threading: any thread. The hooks run inside jemalloc, with its locks held: they may not allocate,
// may not call back into jemalloc, and take no lock of their own (a fork may happen at any moment:
// the bump pointer is one atomic word). jemalloc is called by its extended names (mallocx, ...):
// malloc and free belong to the program. jemalloc's own malloc, free and malloc_usable_size are
// looked up in its library, because only they have the fast path through the thread's cache (3% of
// a redis SET's CPU time).
#include "heap/heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/host_guard.h"
#include "base/units.h"
#include "heap/commit_ahead.h"
#include "pager/pager.h"
#include "sys/mem.h"
#include "sys/thread.h"

#ifdef LUNAR_JEMALLOC_OF_PROGRAM
// A library that is loaded into a program uses the program's jemalloc. It must not bring another
// one, because dlopen then fails for lack of static TLS. Libraries that define this macro check for
// a jemalloc before heap_create.
#pragma weak mallctl
#pragma weak mallctlbymib
#pragma weak mallctlnametomib
#pragma weak mallocx
#pragma weak rallocx
#pragma weak dallocx
#pragma weak sallocx
#endif

namespace lunar {
namespace {

constexpr char kLibrary[] = "libjemalloc.so.2";
constexpr unsigned kArenasMax = 4;
constexpr uint64_t kRegionBytesMin = 16 * kGiB;
constexpr size_t kRegionAlign = 2 * kMiB;
constexpr size_t kRetainGrowLimit = 64 * kMiB;
constexpr int kDramFlags = MALLOCX_ARENA(0) | MALLOCX_TCACHE_NONE;

// From arena_types.h of jemalloc 5.3; its installed header does not contain this structure.
struct ArenaConfig {
  extent_hooks_t* extent_hooks;
  bool metadata_use_hooks;
};

struct Heap {
  Region* region = nullptr;
  HeapMode mode = HeapMode::kPrivate;
  unsigned arena_count = 0;
  unsigned arenas[kArenasMax] = {};
  CommitAhead ahead[kArenasMax];
  size_t purge_mib[3] = {};    // "arena.<i>.purge"
  std::atomic<size_t> top{0};  // bump pointer: offset of the first address never handed out
  std::atomic<size_t> committed{0};
  std::atomic<unsigned> next_arena{0};
  std::atomic<bool> ready{false};
  bool key_made = false;
  pthread_key_t thread_key{};
};
Heap g_heap;

// jemalloc's calls, as bound by the linker or found by heap_find_jemalloc.
struct Jemalloc {
  decltype(&::mallctl) mallctl = ::mallctl;
  decltype(&::mallctlbymib) mallctlbymib = ::mallctlbymib;
  decltype(&::mallctlnametomib) mallctlnametomib = ::mallctlnametomib;
  decltype(&::mallocx) mallocx = ::mallocx;
  decltype(&::rallocx) rallocx = ::rallocx;
  decltype(&::dallocx) dallocx = ::dallocx;
  decltype(&::sallocx) sallocx = ::sallocx;
};
constinit Jemalloc g_jemalloc;
constinit void* g_library = nullptr;  // that holds them

}  // namespace

constinit HeapFront g_heap_front{
    .alloc = [](size_t bytes) { return g_jemalloc.mallocx(bytes == 0 ? 1 : bytes, 0); },
    .free = [](void* pointer) { g_jemalloc.dallocx(pointer, 0); },
    .usable_size = [](void* pointer) { return g_jemalloc.sallocx(pointer, 0); },
};
constinit thread_local ThreadBinding t_heap_binding;

namespace {

// Finds jemalloc's malloc, free and malloc_usable_size: takes all three from the library that
// contains mallocx, or none.
void find_short_way() {
  Dl_info where;
  void* library = heap_jemalloc_library();
  if (library == nullptr || dladdr(reinterpret_cast<const void*>(g_jemalloc.mallocx), &where) == 0)
    return;
  const char* const names[] = {"malloc", "free", "malloc_usable_size"};
  void* found[3];
  for (int i = 0; i < 3; ++i) {
    Dl_info there;
    found[i] = dlsym(library, names[i]);
    if (found[i] == nullptr || dladdr(found[i], &there) == 0 || there.dli_fbase != where.dli_fbase)
      return;
  }
  g_heap_front.alloc = reinterpret_cast<void* (*)(size_t)>(found[0]);
  g_heap_front.free = reinterpret_cast<void (*)(void*)>(found[1]);
  g_heap_front.usable_size = reinterpret_cast<size_t (*)(void*)>(found[2]);
}

// Thread caches of kPrivate, so that heap_destroy can end those of threads that still run. Bit per
// tcache index.
constexpr unsigned kCachesMax = 4096;
std::atomic<uint64_t> g_caches[kCachesMax / 64];

void note_cache(unsigned cache, bool live) {
  uint64_t bit = 1ull << (cache % 64);
  if (live)
    g_caches[cache / 64].fetch_or(bit, std::memory_order_relaxed);
  else
    g_caches[cache / 64].fetch_and(~bit, std::memory_order_relaxed);
}

// ---- extent hooks -------------------------------------------------------------------------------

size_t offset_in_region(const void* address) {
  return static_cast<size_t>(static_cast<const char*>(address) - g_heap_front.base);
}

bool commit_range(size_t offset, size_t bytes) {
  if (region_commit(g_heap.region, offset, bytes) < 0) return false;
  g_heap.committed.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

bool commit_pages(uint64_t first, uint64_t pages) {
  return commit_range(first * sys::page_bytes(), pages * sys::page_bytes());
}

void forget_pages(uint64_t first, uint64_t pages) {
  region_forget(g_heap.region, first * sys::page_bytes(), pages * sys::page_bytes());
  g_heap.committed.fetch_sub(pages * sys::page_bytes(), std::memory_order_relaxed);
}

// nullptr for an arena that is being created.
CommitAhead* ahead_of(unsigned arena) {
  for (unsigned i = 0; i < g_heap.arena_count; ++i)
    if (g_heap.arenas[i] == arena) return &g_heap.ahead[i];
  return nullptr;
}

void* hook_alloc(extent_hooks_t*, void* wanted, size_t bytes, size_t alignment, bool* zero,
                 bool* commit, unsigned arena) {
  if (wanted != nullptr)
    return nullptr;  // growing in place goes through extents that jemalloc retains
  size_t before = g_heap.top.load(std::memory_order_relaxed);
  size_t start;
  do {
    uintptr_t address =
        round_up(reinterpret_cast<uintptr_t>(g_heap_front.base) + before, alignment);
    start = address - reinterpret_cast<uintptr_t>(g_heap_front.base);
    if (start > g_heap_front.bytes || bytes > g_heap_front.bytes - start) return nullptr;
  } while (!g_heap.top.compare_exchange_weak(before, start + bytes, std::memory_order_relaxed));
  if (*commit && !commit_range(start, bytes)) {
    // Give the addresses back unless another thread took more meanwhile (then they are lost:
    // addresses only).
    size_t end = start + bytes;
    g_heap.top.compare_exchange_strong(end, before, std::memory_order_relaxed);
    return nullptr;
  }
  if (CommitAhead* ahead = ahead_of(arena); ahead != nullptr)
    ahead->start(start / sys::page_bytes(), *commit ? 0 : bytes / sys::page_bytes(), forget_pages);
  *zero = true;  // never touched: the pager fills it with zeros
  return g_heap_front.base + start;
}

bool hook_dalloc(extent_hooks_t*, void*, size_t, bool, unsigned) {
  return true;
}  // opt out: retained

bool hook_commit(extent_hooks_t*, void* address, size_t, size_t offset, size_t length,
                 unsigned arena) {
  const size_t start = offset_in_region(address) + offset;
  CommitAhead* ahead = ahead_of(arena);
  if (ahead == nullptr) return !commit_range(start, length);
  return !ahead->commit(start / sys::page_bytes(), length / sys::page_bytes(), commit_pages,
                        forget_pages);
}

// free() must keep errno, and only these two hooks below it may set errno.
class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

bool hook_decommit(extent_hooks_t*, void* address, size_t, size_t offset, size_t length, unsigned) {
  KeepErrno keep;
  const size_t start = offset_in_region(address) + offset;
  // In the other modes a fork may wait for a lock that this call holds. If the pager is busy, the
  // memory stays committed.
  if (g_heap.mode == HeapMode::kPreload)
    region_decommit(g_heap.region, start, length);
  else if (region_try_decommit(g_heap.region, start, length) < 0)
    return true;
  g_heap.committed.fetch_sub(length, std::memory_order_relaxed);
  return false;
}

bool hook_purge_forced(extent_hooks_t*, void* address, size_t, size_t offset, size_t length,
                       unsigned) {
  KeepErrno keep;
  char* start = static_cast<char*>(address) + offset;
  return (g_heap.mode == HeapMode::kPreload ? pager_discard(start, length, Discard::kMapping)
                                            : pager_try_discard(start, length)) < 0;
}

bool hook_split(extent_hooks_t*, void*, size_t, size_t, size_t, bool, unsigned) { return false; }
bool hook_merge(extent_hooks_t*, void*, size_t, void*, size_t, bool, unsigned) { return false; }

extent_hooks_t g_hooks = {hook_alloc, hook_dalloc,       nullptr,    hook_commit, hook_decommit,
                          nullptr,    hook_purge_forced, hook_split, hook_merge};

// ---- threads ------------------------------------------------------------------------------------

void end_private_cache(unsigned cache) {
  note_cache(cache, false);
  (void)g_jemalloc.mallctl("tcache.destroy", nullptr, nullptr, &cache, sizeof(cache));
}

// Thread exit, kPrivate. Destructors of the program that run after this one allocate without a
// cache.
void leave_thread(void*) {
  ThreadBinding& binding = t_heap_binding;
  if (binding.cache == UINT32_MAX ||
      binding.generation != g_heap_front.generation.load(std::memory_order_relaxed))
    return;
  binding.flags = (binding.flags & ~MALLOCX_TCACHE(binding.cache)) | MALLOCX_TCACHE_NONE;
  end_private_cache(binding.cache);
  binding.cache = UINT32_MAX;
}

// First use by this thread. Returns its flags.
__attribute__((noinline)) int bind_thread() {
  ThreadBinding& binding = t_heap_binding;
  uint32_t generation = g_heap_front.generation.load(std::memory_order_relaxed);
  unsigned arena =
      g_heap.arenas[g_heap.next_arena.fetch_add(1, std::memory_order_relaxed) % g_heap.arena_count];
  binding.cache = UINT32_MAX;
  if (g_heap.mode != HeapMode::kPrivate) {
    // Where the program's MALLOC_CONF forbids it (percpu arenas), name the arena in every call
    // instead.
    bool bound = g_jemalloc.mallctl("thread.arena", nullptr, nullptr, &arena, sizeof(arena)) == 0;
    binding.flags = bound ? 0 : static_cast<int>(MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE);
  } else {
    unsigned cache = 0;
    size_t size = sizeof(cache);
    binding.flags = static_cast<int>(MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE);
    if (g_heap.key_made && g_jemalloc.mallctl("tcache.create", &cache, &size, nullptr, 0) == 0) {
      if (cache < kCachesMax && pthread_setspecific(g_heap.thread_key, &binding) == 0) {
        note_cache(cache, true);
        binding.cache = cache;
        binding.flags = static_cast<int>(MALLOCX_ARENA(arena) | MALLOCX_TCACHE(cache));
      } else {
        (void)g_jemalloc.mallctl("tcache.destroy", nullptr, nullptr, &cache, sizeof(cache));
      }
    }
  }
  binding.generation = generation;
  return binding.flags;
}

inline int thread_flags() {
  const ThreadBinding& binding = t_heap_binding;
  if (__builtin_expect(
          binding.generation == g_heap_front.generation.load(std::memory_order_relaxed), 1))
    return binding.flags;
  return bind_thread();
}

// ---- failure ------------------------------------------------------------------------------------

void purge_arenas() {
  size_t mib[3];
  memcpy(mib, g_heap.purge_mib, sizeof(mib));
  for (unsigned i = 0; i < g_heap.arena_count; ++i) {
    mib[1] = g_heap.arenas[i];
    (void)g_jemalloc.mallctlbymib(mib, 3, nullptr, nullptr, nullptr, 0);
  }
}

// The LUN is full: gives back the memory that jemalloc holds free but committed, then tries once
// more.
__attribute__((noinline)) void* alloc_again(size_t bytes, int flags) {
  if (bytes > g_heap_front.bytes) {
    errno = ENOMEM;
    return nullptr;
  }
  purge_arenas();
  void* pointer = g_jemalloc.mallocx(bytes, flags);
  if (pointer == nullptr) {
    pager_say_refused();
    errno = ENOMEM;
  }
  return pointer;
}

inline void* alloc_with(size_t bytes, int flags) {
  void* pointer = flags == 0 ? g_heap_front.alloc(bytes) : g_jemalloc.mallocx(bytes, flags);
  return __builtin_expect(pointer != nullptr, 1) ? pointer : alloc_again(bytes, flags);
}

template <class F>
bool find_in(void* library, F& slot, const char* name) {
  const F found = reinterpret_cast<F>(dlsym(library, name));
  if (found != nullptr) slot = found;
  return found != nullptr;
}

int create_arenas(ErrorText* why) {
  unsigned wanted = static_cast<unsigned>(sys::cpu_count());
  wanted = std::clamp(wanted, 1u, kArenasMax);
  size_t limit_mib[3], purge_mib[3], depth = 3;
  if (g_jemalloc.mallctlnametomib("arena.0.purge", purge_mib, &depth) != 0)
    return why->set(-ENOTSUP, "jemalloc has no arena.i.purge; install jemalloc 5.3");
  memcpy(g_heap.purge_mib, purge_mib, sizeof(purge_mib));
  depth = 3;
  bool has_limit = g_jemalloc.mallctlnametomib("arena.0.retain_grow_limit", limit_mib, &depth) == 0;
  ArenaConfig config{&g_hooks, false};
  for (unsigned i = 0; i < wanted; ++i) {
    unsigned arena = 0;
    size_t size = sizeof(arena);
    int err = g_jemalloc.mallctl("experimental.arenas_create_ext", &arena, &size, &config,
                                 sizeof(config));
    if (err != 0 && i > 0) break;
    if (err == ENOENT)
      return why->set(-ENOTSUP,
                      "jemalloc lacks experimental.arenas_create_ext; install jemalloc 5.3");
    if (err != 0) return why->set(-ENOMEM, "jemalloc cannot create an arena: %s", errno_name(err));
    if (has_limit) {
      limit_mib[1] = arena;
      size_t limit = kRetainGrowLimit;
      (void)g_jemalloc.mallctlbymib(limit_mib, 3, nullptr, nullptr, &limit, sizeof(limit));
    }
    g_heap.arenas[i] = arena;
    g_heap.arena_count = i + 1;
  }
  return 0;
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

const void* heap_find_jemalloc() {
  Jemalloc found;
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr && find_in(library, found.mallctl, "mallctl") &&
      find_in(library, found.mallctlbymib, "mallctlbymib") &&
      find_in(library, found.mallctlnametomib, "mallctlnametomib") &&
      find_in(library, found.mallocx, "mallocx") && find_in(library, found.rallocx, "rallocx") &&
      find_in(library, found.dallocx, "dallocx") && find_in(library, found.sallocx, "sallocx")) {
    g_jemalloc = found;
    g_library = library;
  }
  return reinterpret_cast<const void*>(g_jemalloc.mallocx);
}

void* heap_jemalloc_library() {
  Dl_info where;
  if (g_library == nullptr &&
      dladdr(reinterpret_cast<const void*>(g_jemalloc.mallocx), &where) != 0)
    g_library = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return g_library;
}

int heap_create(HeapMode mode, ErrorText* why) {
  if (heap_ready()) return why->set(-EEXIST, "the tiered heap exists already");
  HostGuard guard;  // jemalloc, pthread and the loader may allocate
  find_short_way();
  uint64_t bytes = 2 * pager_lun_bytes();
  if (bytes < kRegionBytesMin) bytes = kRegionBytesMin;
  bytes = round_up(bytes, kRegionAlign);
  Region* region = nullptr;
  int rc = region_create(bytes, kRegionHeap, &region);
  if (rc < 0)
    return why->set(
        rc, "cannot reserve %llu bytes of address space for the heap: %s; raise the limit (%s)",
        static_cast<unsigned long long>(bytes), errno_name(rc), sys::memory_limit());
  g_heap.region = region;
  g_heap_front.base = region_base(region);
  g_heap_front.bytes = region_size(region);
  g_heap.mode = mode;
  g_heap.top.store(0, std::memory_order_relaxed);
  g_heap.committed.store(0, std::memory_order_relaxed);
  g_heap.arena_count = 0;
  rc = create_arenas(why);
  if (rc < 0) {
    (void)region_destroy(region);
    g_heap.region = nullptr;
    g_heap_front.bytes = 0;
    return rc;
  }
  if (mode == HeapMode::kPrivate && !g_heap.key_made)
    g_heap.key_made = pthread_key_create(&g_heap.thread_key, leave_thread) == 0;
  g_heap.ready.store(true, std::memory_order_release);
  return 0;
}

bool heap_ready() { return g_heap.ready.load(std::memory_order_acquire); }

int heap_destroy() {
  if (!heap_ready()) return 0;
  if (g_heap.mode != HeapMode::kPrivate) return -EBUSY;
  g_heap.ready.store(false, std::memory_order_release);
  g_heap_front.generation.fetch_add(1, std::memory_order_relaxed);
  for (unsigned cache = 0; cache < kCachesMax; ++cache)
    if (g_caches[cache / 64].load(std::memory_order_relaxed) >> (cache % 64) & 1)
      end_private_cache(cache);
  size_t mib[3], depth = 3;
  if (g_jemalloc.mallctlnametomib("arena.0.destroy", mib, &depth) != 0) return -ENOTSUP;
  for (unsigned i = 0; i < g_heap.arena_count; ++i) {
    mib[1] = g_heap.arenas[i];
    (void)g_jemalloc.mallctlbymib(mib, 3, nullptr, nullptr, nullptr, 0);
  }
  for (CommitAhead& ahead : g_heap.ahead) ahead.start(0, 0, forget_pages);
  g_heap.arena_count = 0;
  int rc = region_destroy(g_heap.region);
  g_heap.region = nullptr;
  g_heap_front.bytes = 0;
  return rc;
}

// ---- malloc family ------------------------------------------------------------------------------

void* heap_alloc(size_t bytes) { return alloc_with(bytes == 0 ? 1 : bytes, thread_flags()); }

void* heap_alloc_zeroed(size_t bytes) {
  return alloc_with(bytes == 0 ? 1 : bytes, thread_flags() | MALLOCX_ZERO);
}

void* heap_alloc_aligned(size_t alignment, size_t bytes) {
  return alloc_with(bytes == 0 ? 1 : bytes,
                    thread_flags() | static_cast<int>(MALLOCX_ALIGN(alignment)));
}

void* heap_resize(void* pointer, size_t bytes) {
  if (bytes == 0) bytes = 1;
  int flags = thread_flags();
  void* moved = g_jemalloc.rallocx(pointer, bytes, flags);
  if (__builtin_expect(moved == nullptr, 0)) {
    if (bytes <= g_heap_front.bytes) {
      purge_arenas();
      moved = g_jemalloc.rallocx(pointer, bytes, flags);
    }
    if (moved == nullptr) {
      pager_say_refused();
      errno = ENOMEM;
    }
  }
  return moved;
}

namespace {

inline __attribute__((always_inline)) void free_tiered(void* pointer) {
  // A guarded thread must not fill its cache with tiered memory, nor be bound to a tiered arena.
  if (__builtin_expect(HostGuard::active(), 0))
    return g_jemalloc.dallocx(pointer, MALLOCX_TCACHE_NONE);
  // dallocx takes the cache from the flags; the arena is the pointer's own.
  int flags = thread_flags() & ((1 << 20) - 1);
  flags == 0 ? g_heap_front.free(pointer) : g_jemalloc.dallocx(pointer, flags);
}

}  // namespace

void heap_free(void* pointer) { free_tiered(pointer); }

void heap_free_or(void* pointer, void (*other)(void*)) {
  if (__builtin_expect(!heap_owns(pointer), 0)) return other(pointer);
  free_tiered(pointer);
}

// ---- DRAM ---------------------------------------------------------------------------------------

void* heap_alloc_dram(size_t alignment, size_t bytes, bool zero) {
  int flags = kDramFlags | (zero ? MALLOCX_ZERO : 0);
  if (alignment > 1) flags |= static_cast<int>(MALLOCX_ALIGN(alignment));
  void* pointer = g_jemalloc.mallocx(bytes == 0 ? 1 : bytes, flags);
  if (pointer == nullptr) errno = ENOMEM;
  return pointer;
}

void* heap_resize_dram(void* pointer, size_t bytes) {
  void* moved = g_jemalloc.rallocx(pointer, bytes == 0 ? 1 : bytes, kDramFlags);
  if (moved == nullptr) errno = ENOMEM;
  return moved;
}

void heap_free_dram(void* pointer) { g_jemalloc.dallocx(pointer, MALLOCX_TCACHE_NONE); }

unsigned heap_step_out() {
  unsigned dram = 0, before = 0;
  size_t size = sizeof(before);
  if (g_jemalloc.mallctl("thread.arena", &before, &size, &dram, sizeof(dram)) != 0) return 0;
  (void)g_jemalloc.mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  return before;
}

void heap_step_in(unsigned arena) {
  if (arena != 0) (void)g_jemalloc.mallctl("thread.arena", nullptr, nullptr, &arena, sizeof(arena));
}

void heap_purge() {
  if (heap_ready()) purge_arenas();
}

void heap_counts(HeapCounts* out) {
  uint64_t epoch = 1;
  size_t size = sizeof epoch, allocated = 0, active = 0;
  (void)g_jemalloc.mallctl("epoch", &epoch, &size, &epoch, sizeof epoch);  // counts anew
  size = sizeof allocated;
  if (g_jemalloc.mallctl("stats.allocated", &allocated, &size, nullptr, 0) == 0 &&
      g_jemalloc.mallctl("stats.active", &active, &size, nullptr, 0) == 0)
    *out = {allocated, std::max(allocated, active)};
}

HeapHookBytes heap_hook_bytes() {
  uint64_t ahead = 0;
  for (const CommitAhead& one : g_heap.ahead) ahead += one.pages_ahead();
  return {g_heap.top.load(std::memory_order_relaxed),
          g_heap.committed.load(std::memory_order_relaxed), ahead * sys::page_bytes()};
}

}  // namespace lunar
