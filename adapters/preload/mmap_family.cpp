// SPDX-License-Identifier: Apache-2.0
// mmap, munmap, mremap, madvise, mprotect: this file decides which of the program's maps are
// tiered. These are anonymous private maps of 256 KiB and more (also of /dev/zero), and smaller
// ones that mremap makes so large. Stacks, huge pages, maps in the low 2 GiB (MAP_32BIT),
// executable maps, fixed maps outside of tiered reservations, and the maps of jemalloc and of this
// library are not tiered. Their calls go to the kernel unchanged. libc's own maps (thread stacks,
// the loader) do not pass here.
//
// Threading: any thread, also under the loader's lock and in signal handlers. A call that touches
// no area takes no lock.
#include "mmap_family.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <atomic>

#include "base/units.h"
#include "code_ranges.h"
#include "go_runtime.h"
#include "heap/heap.h"
#include "pager/pager.h"
#include "preload.h"
#include "program_memory.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"
#include "sys/proc.h"
#include "tiered_maps.h"

#ifndef MAP_32BIT
#define MAP_32BIT 0
#endif

namespace lunar::preload {
namespace {

bool aligned(const void* address, size_t step) {
  return reinterpret_cast<uintptr_t>(address) % step == 0;
}

bool wants_tier(size_t bytes, int prot, int flags, const void* caller) {
  constexpr int kPlain =
      MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB | MAP_32BIT | MAP_FIXED | MAP_FIXED_NOREPLACE;
  constexpr int kAnonymousPrivate = MAP_ANONYMOUS | MAP_PRIVATE;
  return bytes >= kMapBytesMin && (flags & (kAnonymousPrivate | MAP_SHARED)) == kAnonymousPrivate &&
         (flags & kPlain) == 0 && (prot & ~(PROT_READ | PROT_WRITE)) == 0 && serves_tiered() &&
         g_options.mmap && !is_runtime_code(caller) && !is_go_code(caller);
}

// Serves MAP_LOCKED for a new map. -EAGAIN: too much is locked. (A reservation has nothing to
// lock.)
int lock_new_map(void* address, size_t bytes, int prot, int flags) {
  if ((flags & MAP_LOCKED) == 0 || prot == PROT_NONE) return 0;
  return maps_lock(static_cast<char*>(address), bytes, 0) < 0 ? -EAGAIN : 0;
}

// MAP_FIXED where a part of the range lies in an area.
int map_over_area(const MapCall& call, size_t rounded) {
  auto* const address = static_cast<char*>(call.hint);
  const Area* area = area_of(address);
  if (area == nullptr || rounded > static_cast<size_t>(area->limit - address))
    return -ENOMEM;  // across its edge
  const int rc = maps_fixed(address, rounded, {call.prot, call.flags, call.fd, call.offset});
  if (rc < 0 || (call.flags & MAP_ANONYMOUS) == 0) return rc;
  return lock_new_map(address, rounded, call.prot, call.flags);
}

int map_in_tier(const MapCall& call, size_t rounded, void** out) {
  auto* const hint =
      aligned(call.hint, sys::page_bytes()) ? static_cast<char*>(call.hint) : nullptr;
  int rc = maps_create(hint, rounded, call.prot, call.flags, out);
  if (rc < 0) return rc;
  if (rc = lock_new_map(*out, rounded, call.prot, call.flags); rc < 0)
    return (void)maps_unmap(static_cast<char*>(*out), rounded), rc;
  // as far as DRAM goes
  if ((call.flags & MAP_POPULATE) != 0 && call.prot != PROT_NONE) (void)pager_touch(*out, rounded);
  return 0;
}

int map_in_kernel(const MapCall& call, void** out) {
  return sys::map(call.hint, call.bytes, call.prot, call.flags, call.fd, call.offset, out);
}

// Whether this is a private map of /dev/zero, which is anonymous memory, that may be tiered.
// Read-only maps stay plain, before any look at the file: most maps of files are read-only.
bool is_zero_map(const MapCall& call, size_t rounded) {
  if ((call.flags & (MAP_ANONYMOUS | MAP_TYPE)) != MAP_PRIVATE) return false;
  if (call.prot != PROT_NONE && (call.prot & PROT_WRITE) == 0) return false;
  const bool fixed = (call.flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
  const bool may_be = fixed
                          ? ready() && areas_overlap(call.hint, rounded)
                          : wants_tier(rounded, call.prot, call.flags | MAP_ANONYMOUS, call.caller);
  return may_be && sys::is_zero_device(call.fd);
}

int map_memory(MapCall call, void** out) {
  const size_t page = sys::page_bytes();
  if (call.bytes == 0 || call.bytes > PTRDIFF_MAX - page) return map_in_kernel(call, out);
  const size_t rounded = round_up(call.bytes, page);
  if (is_zero_map(call, rounded)) {
    void* trial = nullptr;  // the kernel may refuse the descriptor or the offset
    const int rc = sys::map(nullptr, page, call.prot, MAP_PRIVATE, call.fd, call.offset, &trial);
    if (rc < 0) return rc;
    (void)sys::unmap(trial, page);
    call.flags |= MAP_ANONYMOUS;
  }
  if ((call.flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0 && ready()) {
    if (!aligned(call.hint, page)) return -EINVAL;
    if (areas_overlap(call.hint, rounded)) {
      const int rc = map_over_area(call, rounded);
      if (rc == 0) *out = call.hint;
      return rc;
    }
    if ((call.flags & MAP_FIXED) != 0 && region_find(call.hint) != nullptr)
      return -EINVAL;  // over the heap: a bug, refused
  }
  if (wants_tier(call.bytes, call.prot, call.flags, call.caller)) {
    const int rc = map_in_tier(call, rounded, out);
    if (rc != -ENOTSUP) return rc;
  }
  return map_in_kernel(call, out);
}

template <class Ours, class Plain>
int for_areas(void* start, size_t bytes, Ours ours, Plain plain) {
  auto* address = static_cast<char*>(start);
  return for_parts(address, address + bytes, area_of, area_boundary, ours, plain);
}

// Whether the range is page-aligned, not empty, does not wrap, and overlaps an area. If so,
// *rounded is its length in whole pages.
bool touches_tier(void* address, size_t bytes, size_t* rounded) {
  size_t page = sys::page_bytes();
  if (!ready() || !aligned(address, page) || bytes == 0 || bytes > PTRDIFF_MAX - page) return false;
  *rounded = round_up(bytes, page);
  if (reinterpret_cast<uintptr_t>(address) > UINTPTR_MAX - *rounded) return false;
  return areas_overlap(address, *rounded);
}

// Whether the range may contain memory of the tier (maps or heap).
bool holds_tiered(const void* address, size_t bytes) {
  const char* first = static_cast<const char*>(address);
  if (bytes == 0 || bytes > PTRDIFF_MAX ||
      reinterpret_cast<uintptr_t>(address) > UINTPTR_MAX - bytes)
    return false;
  return areas_overlap(address, bytes) || region_find(address) != nullptr ||
         region_find(first + bytes - 1) != nullptr;
}

void* attach(int id, const void* address, int flags) {
  return reinterpret_cast<void*>(
      sys::kernel_call_errno(SYS_shmat, {id, reinterpret_cast<long>(address), flags, 0, 0, 0}));
}

// pre: the segment could be attached if nothing were mapped at the place.
void* attach_in_place(int id, char* address, size_t bytes, int flags) {
  const bool replace = (flags & SHM_REMAP) != 0;
  bool whole =
      area_boundary(address, address + bytes) == address + bytes && area_of(address) != nullptr;
  int placed = 0, rc = whole || replace ? 0 : -EINVAL;
  if (rc == 0)
    rc = for_areas(
        address, bytes,
        [&](char* at, size_t n) {
          const int one = maps_leave(at, n, replace);
          if (one > 0) placed = one;
          return one;
        },
        [](char*, size_t) { return 0; });
  if (rc < 0) return errno = -rc, MAP_FAILED;
  void* result = attach(id, address, placed != 0 ? flags | SHM_REMAP : flags);
  if (result == MAP_FAILED && placed != 0) {
    const int saved = errno;
    (void)for_areas(address, bytes, maps_unmap, [](char*, size_t) { return 0; });
    errno = saved;
  }
  return result;
}

// Attaches System V shared memory at a place that touches the tier. The kernel does not report what
// shmat maps over, so the place is handed to the kernel first. A trial shows before that whether
// the segment can be attached. The trial stays attached until the end: under kernel.shm_rmid_forced
// a segment is removed after its last use.
void* attach_over(int id, char* address, int flags) {
  shmid_ds segment;
  if (shmctl(id, IPC_STAT, &segment) != 0) return MAP_FAILED;
  size_t bytes = 0;
  if (!touches_tier(address, segment.shm_segsz, &bytes)) return attach(id, address, flags);
  void* trial = attach(id, nullptr, flags & ~(SHM_RND | SHM_REMAP));
  if (trial == MAP_FAILED) return trial;
  const auto at = reinterpret_cast<uintptr_t>(trial), wanted = reinterpret_cast<uintptr_t>(address);
  // the kernel has found a gap there
  const bool in_the_way = at < wanted + bytes && wanted < at + bytes;
  if (in_the_way) (void)detach_segment(trial);
  void* result = attach_in_place(id, address, bytes, flags);
  const int saved = errno;
  if (!in_the_way) (void)detach_segment(trial);
  errno = saved;
  return result;
}

// Some plain memory has guard pages or fork advice, which a copy would lose.
constinit std::atomic<bool> g_plain_is_marked{false};

bool advice_marks(int advice) {
  return advice == MADV_DONTFORK || advice == MADV_WIPEONFORK || advice == MADV_GUARD_INSTALL;
}

int advise_plain(void* address, size_t bytes, int advice) {
  if (advice_marks(advice)) g_plain_is_marked.store(true, std::memory_order_relaxed);
  return sys::advise(address, bytes, advice);
}

// mremap of plain memory. Memory that was too small for the tier moves into it when it grows; if it
// may not move, it cannot grow.
int remap_plain(const RemapCall& call, void** out) {
  const size_t page = sys::page_bytes(), old_bytes = call.old_bytes, new_bytes = call.new_bytes;
  const auto fits_tier = [&](int prot) {
    return wants_tier(new_bytes, prot, MAP_ANONYMOUS | MAP_PRIVATE, call.caller);
  };
  sys::MappedRange map;
  auto* const address = static_cast<char*>(call.old_address);
  if ((call.flags & ~MREMAP_MAYMOVE) == 0 && old_bytes != 0 && new_bytes > old_bytes &&
      new_bytes <= PTRDIFF_MAX - page && aligned(address, page) && fits_tier(PROT_READ) &&
      !g_plain_is_marked.load(std::memory_order_relaxed) && sys::mapping_of(address, &map) == 0 &&
      map.anonymous && fits_tier(map.protection)) {
    const size_t before = round_up(old_bytes, page), after = round_up(new_bytes, page);
    const bool whole = before <= map.end - reinterpret_cast<uintptr_t>(address);
    // MADV_COLD fails on locked memory, which stays plain
    if (whole && before < after && sys::advise(address, before, MADV_COLD) != -EINVAL) {
      if ((call.flags & MREMAP_MAYMOVE) == 0) return -ENOMEM;
      const int rc = maps_take_in(address, before, after, map.protection, out);
      if (rc != -ENOTSUP && rc != -EFAULT) return rc;
    }
  }
  return sys::remap(address, old_bytes, new_bytes, call.flags, call.wanted, out);
}

// mremap of a file map or of shared memory to a place that touches the tier (MREMAP_FIXED). With 0
// old bytes it makes a second view of shared memory. The place is handed to the kernel first, as
// for shmat. Private anonymous memory is refused: it would be outside of the budget.
int remap_over_tier(const RemapCall& call, void** out) {
  auto* const from = static_cast<char*>(call.old_address);
  auto* const to = static_cast<char*>(call.wanted);
  size_t bytes = 0;
  sys::MappedRange map;
  if (!touches_tier(to, call.new_bytes, &bytes) || sys::mapping_of(from, &map) < 0 || map.anonymous)
    return -ENOMEM;
  const auto nothing = [](char*, size_t) { return 0; };
  int rc =
      for_areas(to, bytes, [](char* at, size_t n) { return maps_leave(at, n, true); }, nothing);
  if (rc < 0) return rc;
  rc = sys::remap(from, call.old_bytes, call.new_bytes, call.flags, to, out);
  if (rc < 0)
    (void)for_areas(to, bytes, maps_unmap, nothing);
  else if ((call.flags & MREMAP_DONTUNMAP) == 0 && call.old_bytes != 0)
    maps_moved_away(from, round_up(call.old_bytes, sys::page_bytes()));
  return rc;
}

int remap_memory(const RemapCall& call, void** out) {
  // false for a foreign piece in an area
  const bool ours = ready() && region_find(call.old_address) != nullptr;
  if (ready() && !ours && (call.flags & MREMAP_FIXED) != 0 &&
      areas_overlap(call.wanted, call.new_bytes))
    return remap_over_tier(call, out);
  if (ready() && area_of(call.old_address) != nullptr)
    return maps_remap(static_cast<char*>(call.old_address), call.old_bytes, call.new_bytes,
                      call.flags, static_cast<char*>(call.wanted), out);
  return ours ? -ENOMEM  // the heap's pages
              : remap_plain(call, out);
}

}  // namespace

int protect_range(void* address, size_t bytes, int prot) {
  size_t rounded = 0;
  auto plain = [=](char* at, size_t n) { return sys::protect(at, n, prot); };
  return touches_tier(address, bytes, &rounded)
             ? for_areas(
                   address, rounded, [=](char* at, size_t n) { return maps_protect(at, n, prot); },
                   plain)
             : plain(static_cast<char*>(address), bytes);
}

int refuse_key() {
  LUNAR_LOG_LIMITED(
      log_info, 1,
      "pkey_alloc refused: tiered memory has no protection keys; the program goes on without");
  return -ENOSPC;
}

int protect_with_key(void* address, size_t bytes, int prot, int key) {
  return key == -1 || key == 0 ? protect_range(address, bytes, prot) : -EINVAL;
}

// Pages of the heap or of an API region need no table, because these regions have no holes.
int advise_range(void* address, size_t bytes, int advice) {
  size_t rounded = 0;
  if (touches_tier(address, bytes, &rounded))
    return for_areas(
        address, rounded, [=](char* at, size_t n) { return maps_advise(at, n, advice); },
        [=](char* at, size_t n) { return advise_plain(at, n, advice); });
  size_t page = sys::page_bytes();
  if (ready() && bytes != 0 && aligned(address, page) && bytes <= PTRDIFF_MAX - page &&
      region_find(address) != nullptr)
    return advise_tiered(static_cast<char*>(address), round_up(bytes, page), advice);
  return advise_plain(address, bytes, advice);
}

void* map_or_fail(const MapCall& call) {
  void* out = nullptr;
  const int rc = map_memory(call, &out);
  return rc == 0 ? out : (errno = -rc, MAP_FAILED);
}

void* remap_or_fail(const RemapCall& call) {
  void* out = nullptr;
  const int rc = remap_memory(call, &out);
  return rc == 0 ? out : (errno = -rc, MAP_FAILED);
}

int unmap_range(void* address, size_t bytes) {
  size_t rounded = 0;
  if (touches_tier(address, bytes, &rounded))
    return for_areas(address, rounded, maps_unmap,
                     [](char* at, size_t n) { return sys::unmap(at, n); });
  // the heap's pages are not the program's to unmap
  if (ready() && region_find(address) != nullptr) return -EINVAL;
  return sys::unmap(address, bytes);
}

void* attach_segment(int id, const void* wanted, int flags) {
  const size_t page = sys::page_bytes();
  auto* address = const_cast<char*>(static_cast<const char*>(wanted));
  if ((flags & SHM_RND) != 0) address -= reinterpret_cast<uintptr_t>(wanted) % page;
  if (!ready() || address == nullptr || !aligned(address, page)) return attach(id, wanted, flags);
  if (area_of(address) != nullptr || region_find(address) == nullptr)
    return attach_over(id, address, flags);
  errno = EINVAL;  // over the heap
  return MAP_FAILED;
}

ssize_t advise_in_process(int pidfd, const iovec* ranges, size_t count, int advice,
                          unsigned flags) {
  bool ours = false;
  iovec range;
  if (ready() && flags == 0 && count <= IOV_MAX && sys::pidfd_is_self(pidfd))
    for (size_t i = 0; i < count && !ours && read_if_readable(ranges + i, &range); ++i)
      ours = holds_tiered(range.iov_base, range.iov_len);
  if (!ours) return sys::advise_process(pidfd, ranges, count, advice, flags);
  ssize_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    int rc = read_if_readable(ranges + i, &range)
                 ? advise_range(range.iov_base, range.iov_len, advice)
                 : -EFAULT;
    if (rc < 0) return done != 0 ? done : with_errno(rc);
    done += static_cast<ssize_t>(range.iov_len);
  }
  return done;
}

// The pager could neither unmap nor evict sealed memory. So mseal fails as on a kernel without
// seals (before 6.10).
int seal_memory(void* address, size_t bytes, unsigned long flags) {
  if (ready() && holds_tiered(address, bytes)) return with_errno(-ENOSYS);
  return static_cast<int>(
      sys::kernel_call_errno(kMseal, {reinterpret_cast<long>(address), static_cast<long>(bytes),
                                      static_cast<long>(flags), 0, 0, 0}));
}

int detach_segment(const void* address) {
  if (ready() && area_of(address) != nullptr && !pager_forked_past_us())
    return with_errno(maps_detach(static_cast<const char*>(address)));
  return static_cast<int>(
      sys::kernel_call_errno(SYS_shmdt, {reinterpret_cast<long>(address), 0, 0, 0, 0, 0}));
}

}  // namespace lunar::preload

using namespace lunar;
using namespace lunar::preload;

// Defined by their symbols, because with 64-bit file offsets the headers make mmap and mmap64 one
// name.
LUNAR_EXPORT void* call_mmap(void* hint, size_t bytes, int prot, int flags, int fd,
                             off_t offset) noexcept asm("mmap");
LUNAR_EXPORT void* call_mmap64(void* hint, size_t bytes, int prot, int flags, int fd,
                               off64_t offset) noexcept asm("mmap64");

LUNAR_EXPORT void* call_mmap(void* hint, size_t bytes, int prot, int flags, int fd,
                             off_t offset) noexcept {
  return map_or_fail({hint, bytes, prot, flags, fd, offset, __builtin_return_address(0)});
}

LUNAR_EXPORT void* call_mmap64(void* hint, size_t bytes, int prot, int flags, int fd,
                               off64_t offset) noexcept {
  return map_or_fail({hint, bytes, prot, flags, fd, offset, __builtin_return_address(0)});
}

LUNAR_EXPORT int munmap(void* address, size_t bytes) noexcept {
  return with_errno(unmap_range(address, bytes));
}

LUNAR_EXPORT void* shmat(int id, const void* wanted, int flags) noexcept {
  return attach_segment(id, wanted, flags);
}

LUNAR_EXPORT int shmdt(const void* address) noexcept { return detach_segment(address); }

LUNAR_EXPORT int mseal(void* address, size_t bytes, unsigned long flags) noexcept {
  return seal_memory(address, bytes, flags);
}

LUNAR_EXPORT int mprotect(void* address, size_t bytes, int prot) noexcept {
  return with_errno(protect_range(address, bytes, prot));
}

LUNAR_EXPORT int pkey_alloc(unsigned, unsigned) noexcept { return with_errno(refuse_key()); }

LUNAR_EXPORT int pkey_mprotect(void* address, size_t bytes, int prot, int key) noexcept {
  return with_errno(protect_with_key(address, bytes, prot, key));
}

LUNAR_EXPORT int madvise(void* address, size_t bytes, int advice) noexcept {
  return with_errno(advise_range(address, bytes, advice));
}

// libc's own makes the system call directly. POSIX_MADV_DONTNEED must not lose contents, and does
// nothing in libc.
LUNAR_EXPORT int posix_madvise(void* address, size_t bytes, int advice) noexcept {
  return advice == POSIX_MADV_DONTNEED ? 0 : -advise_range(address, bytes, advice);
}

LUNAR_EXPORT ssize_t process_madvise(int pidfd, const iovec* ranges, size_t count, int advice,
                                     unsigned flags) noexcept {
  return advise_in_process(pidfd, ranges, count, advice, flags);
}

LUNAR_EXPORT void* mremap(void* old_address, size_t old_bytes, size_t new_bytes, int flags,
                          ...) noexcept {
  va_list args;
  va_start(args, flags);
  void* wanted = (flags & MREMAP_FIXED) != 0 ? va_arg(args, void*) : nullptr;
  va_end(args);
  return remap_or_fail(
      {old_address, old_bytes, new_bytes, flags, wanted, __builtin_return_address(0)});
}
