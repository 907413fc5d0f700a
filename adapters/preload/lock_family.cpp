// SPDX-License-Identifier: Apache-2.0
// The mlock family. Memory that is locked in the kernel cannot be evicted, so a lock on tiered
// memory becomes a pin, which the DRAM budget counts and limits (to half of it). mlockall would
// fill DRAM with everything and keep it; it fails as beyond RLIMIT_MEMLOCK: ENOMEM, and one line in
// the log. Locks on other memory go to the kernel; a range may contain both kinds.
// Threading: any thread. Not on the fault path (pinning reads from the LUN).
#include "lock_family.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/units.h"
#include "pager/pager.h"
#include "preload.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "tiered_maps.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

template <class Ours, class Plain>
int for_pages(const void* start, size_t bytes, Ours ours, Plain plain) {
  const size_t page = sys::page_bytes(), ahead = reinterpret_cast<uintptr_t>(start) % page;
  char* address = const_cast<char*>(static_cast<const char*>(start)) - ahead;
  if (!pager_created() || bytes == 0 || bytes > PTRDIFF_MAX - 2 * page ||
      reinterpret_cast<uintptr_t>(start) > UINTPTR_MAX - bytes - page)
    return plain(address + ahead, bytes);
  return for_parts(address, address + round_up(bytes + ahead, page), region_find, region_boundary,
                   ours, plain);
}

}  // namespace

namespace lunar::preload {

int lock_range(const void* start, size_t bytes, unsigned flags) {
  if ((flags & ~1u) != 0)
    return sys::lock_memory(start, bytes, flags);  // the kernel refuses flags that it does not know
  return for_pages(
      start, bytes,
      [=](char* at, size_t n) {
        return area_of(at) != nullptr ? maps_lock(at, n, flags) : pager_pin(at, n);
      },
      [=](char* at, size_t n) { return sys::lock_memory(at, n, flags); });
}

int unlock_range(const void* start, size_t bytes) {
  return for_pages(
      start, bytes,
      [](char* at, size_t n) {
        return area_of(at) != nullptr ? maps_unlock(at, n) : pager_unpin(at, n);
      },
      [](char* at, size_t n) { return sys::unlock_memory(at, n); });
}

int lock_everything(int flags) {
  if (!pager_created()) return sys::lock_all(flags);
  LUNAR_LOG_LIMITED(log_warning, 1,
                    "mlockall refused: it would keep all of the program in DRAM; run it without "
                    "Lunar, or without locking its memory");
  return -ENOMEM;
}

int unlock_everything() {
  if (pager_created()) pager_unpin_all();
  return sys::unlock_all();
}

}  // namespace lunar::preload

LUNAR_EXPORT int mlock(const void* address, size_t bytes) noexcept {
  return with_errno(lock_range(address, bytes, 0));
}

LUNAR_EXPORT int mlock2(const void* address, size_t bytes, unsigned flags) noexcept {
  return with_errno(lock_range(address, bytes, flags));
}

LUNAR_EXPORT int munlock(const void* address, size_t bytes) noexcept {
  return with_errno(unlock_range(address, bytes));
}

LUNAR_EXPORT int mlockall(int flags) noexcept { return with_errno(lock_everything(flags)); }

LUNAR_EXPORT int munlockall() noexcept { return with_errno(unlock_everything()); }
