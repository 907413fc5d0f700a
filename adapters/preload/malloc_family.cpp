// SPDX-License-Identifier: Apache-2.0
// malloc's family. Memory comes from three places, which are distinguished by the address when it
// is freed:
//   the heap's region      ordinary calls: tiered
//   jemalloc, arena 0      threads of the runtime (HostGuard) and the time before the heap is
//                          ready: plain DRAM
//   the early heap         before our constructor, between the allocator's fork handlers, and for
//                          requests of the dynamic linker
// A resize moves memory from the latter two to the tier.
//
// The dynamic linker allocates while it holds a lock that thread creation needs (dlopen).
// Activation creates threads while it holds locks of the allocator: the two would wait for each
// other.
//
// Threading: any thread, also while the linker holds its locks: nothing here looks up symbols or
// takes a lock of its own.
#include "malloc_family.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "code_ranges.h"
#include "early_heap.h"
#include "heap/heap.h"
#include "preload.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

// jemalloc's locks may be held by threads that do not exist in this process.
bool allocator_is_locked() {
  return g_phase.load(std::memory_order_acquire) == Phase::kEarly ||
         (HostGuard::active() && host_fork_bootstrap.load(std::memory_order_relaxed));
}

__attribute__((noinline)) void* allocate_untiered(size_t alignment, size_t bytes, bool zero) {
  if (!allocator_is_locked()) return heap_alloc_dram(alignment, bytes, zero);
  void* pointer = early_alloc(alignment, bytes);
  if (pointer == nullptr) errno = ENOMEM;
  return pointer;
}

__attribute__((noinline)) void release_untiered(void* pointer) {
  if (early_owns(pointer)) return early_free(pointer);
  if (pointer == nullptr || allocator_is_locked()) return;
  int saved = errno;
  heap_free_dram(pointer);
  errno = saved;
}

size_t size_of_untiered(const void* pointer) {
  if (pointer == nullptr) return 0;
  return early_owns(pointer) ? early_size(pointer) : heap_usable_size(pointer);
}

size_t size_of(const void* pointer) {
  return heap_owns(pointer) ? heap_usable_size(pointer) : size_of_untiered(pointer);
}

bool linker_asks(const void* caller, size_t bytes) {
  return __builtin_expect(linker_holds(caller), 0) && bytes <= kLinkerBytesMax;
}

void* allocate_for(const void* caller, size_t bytes, bool zero) {
  if (!linker_asks(caller, bytes)) return allocate(0, bytes, zero);
  void* pointer = early_alloc(0, bytes);
  return pointer != nullptr ? pointer : allocate_untiered(0, bytes, zero);
}

// Moves the block to the place from which `caller` gets memory now.
void* move_block(void* pointer, size_t bytes, const void* caller) {
  void* moved = allocate_for(caller, bytes, false);
  if (moved == nullptr) return nullptr;
  size_t old = size_of(pointer);
  memcpy(moved, pointer, old < bytes ? old : bytes);
  release(pointer);
  return moved;
}

void* resize(void* pointer, size_t bytes, const void* caller) {
  if (pointer == nullptr) return allocate_for(caller, bytes, false);
  if (bytes == 0) {  // glibc: frees
    release(pointer);
    return nullptr;
  }
  if (linker_asks(caller, bytes)) return move_block(pointer, bytes, caller);
  bool tiered = serves_tiered();
  if (tiered && heap_owns(pointer)) return heap_resize(pointer, bytes);
  if (!tiered && !heap_owns(pointer) && !early_owns(pointer) && !allocator_is_locked())
    return heap_resize_dram(pointer, bytes);
  return move_block(pointer, bytes, caller);
}

size_t power_of_two_above(size_t value) {
  size_t power = sizeof(void*);
  while (power < value && power != 0) power <<= 1;
  return power;
}

}  // namespace

void* allocate(size_t alignment, size_t bytes, bool zero) {
  if (!serves_tiered()) return allocate_untiered(alignment, bytes, zero);
  if (alignment > 8) {  // blocks of 8 bytes are aligned to no more
    void* pointer = heap_alloc_aligned(alignment, bytes);
    if (pointer != nullptr && zero) memset(pointer, 0, bytes);
    return pointer;
  }
  return zero ? heap_alloc_zeroed(bytes) : heap_alloc(bytes);
}

void release(void* pointer) { heap_free_or(pointer, release_untiered); }

// Whether jemalloc's functions can serve this thread directly. malloc and free check this first,
// and then read no more than three cache lines.
static inline bool is_direct() {
  return __builtin_expect(heap_thread_is_bound() && !HostGuard::active(), 1);
}

}  // namespace lunar::preload

using lunar::preload::allocate;
using lunar::preload::allocate_for;

LUNAR_EXPORT void* malloc(size_t bytes) noexcept {
  const void* caller = __builtin_return_address(0);
  if (lunar::preload::is_direct() && !lunar::preload::linker_holds(caller)) {
    void* pointer = lunar::g_heap_front.alloc(bytes);
    if (__builtin_expect(pointer != nullptr, 1)) return pointer;
  }
  return allocate_for(caller, bytes, false);
}

LUNAR_EXPORT void* calloc(size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return allocate_for(__builtin_return_address(0), bytes, true);
}

LUNAR_EXPORT void* realloc(void* pointer, size_t bytes) noexcept {
  return lunar::preload::resize(pointer, bytes, __builtin_return_address(0));
}

LUNAR_EXPORT void* reallocarray(void* pointer, size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return lunar::preload::resize(pointer, bytes, __builtin_return_address(0));
}

LUNAR_EXPORT void free(void* pointer) noexcept {
  if (lunar::heap_owns(pointer) && lunar::preload::is_direct())
    return lunar::g_heap_front.free(pointer);
  lunar::heap_free_or(pointer, lunar::preload::release_untiered);
}

LUNAR_EXPORT int posix_memalign(void** out, size_t alignment, size_t bytes) noexcept {
  if (alignment < sizeof(void*) || (alignment & (alignment - 1)) != 0) return EINVAL;
  int saved = errno;  // the result reports the error; errno stays
  void* pointer = allocate(alignment, bytes, false);
  errno = saved;
  if (pointer == nullptr) return ENOMEM;
  *out = pointer;
  return 0;
}

namespace lunar::preload {
namespace {

void* allocate_rounded(size_t alignment, size_t bytes) {
  size_t power = power_of_two_above(alignment);  // as glibc does
  if (power == 0) {
    errno = EINVAL;
    return nullptr;
  }
  return allocate(power, bytes, false);
}

// From glibc 2.38 on, aligned_alloc refuses an alignment that is no power of two; before, it is
// memalign.
bool libc_refuses_odd_alignments() { return atoi(strchr(gnu_get_libc_version(), '.') + 1) >= 38; }

}  // namespace
}  // namespace lunar::preload

LUNAR_EXPORT void* memalign(size_t alignment, size_t bytes) noexcept {
  return lunar::preload::allocate_rounded(alignment, bytes);
}

LUNAR_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  const bool odd = alignment == 0 || (alignment & (alignment - 1)) != 0;
  if (odd && lunar::preload::libc_refuses_odd_alignments()) {
    errno = EINVAL;
    return nullptr;
  }
  return lunar::preload::allocate_rounded(alignment, bytes);
}

LUNAR_EXPORT void* valloc(size_t bytes) noexcept {
  return allocate(lunar::sys::page_bytes(), bytes, false);
}

LUNAR_EXPORT void* pvalloc(size_t bytes) noexcept {
  size_t page = lunar::sys::page_bytes();
  if (bytes > SIZE_MAX - page) {
    errno = ENOMEM;
    return nullptr;
  }
  size_t rounded = (bytes + page - 1) / page * page;
  return allocate(page, rounded == 0 ? page : rounded, false);
}

LUNAR_EXPORT size_t malloc_usable_size(void* pointer) noexcept {
  return lunar::preload::size_of(pointer);
}
