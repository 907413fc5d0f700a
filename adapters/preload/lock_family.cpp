// SPDX-License-Identifier: Apache-2.0
// mlock and its kin. Memory that is locked in the kernel cannot be evicted, so a lock on tiered memory becomes a pin, which the
// DRAM budget knows and bounds (half of it); mlockall, which would fill DRAM with everything and keep it, is refused as the
// kernel does beyond RLIMIT_MEMLOCK: ENOMEM, and one line in the log. Other memory goes to the kernel.
// Threading: any thread. Not on the fault path (pinning reads from the LUN).
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "pager/pager.h"
#include "preload.h"
#include "sys/mem.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

bool tiered(const void* address) { return pager_created() && region_find(address) != nullptr; }

int answer_of(int rc) {
  if (rc == 0) return 0;
  errno = -rc;
  return -1;
}

}  // namespace

LUNAR_EXPORT int mlock(const void* address, size_t bytes) noexcept {
  return answer_of(tiered(address) ? pager_pin(address, bytes) : sys::lock_memory(address, bytes, 0));
}

LUNAR_EXPORT int mlock2(const void* address, size_t bytes, unsigned flags) noexcept {
  return answer_of(tiered(address) ? pager_pin(address, bytes) : sys::lock_memory(address, bytes, flags));
}

LUNAR_EXPORT int munlock(const void* address, size_t bytes) noexcept {
  return answer_of(tiered(address) ? pager_unpin(address, bytes) : sys::unlock_memory(address, bytes));
}

LUNAR_EXPORT int mlockall(int flags) noexcept {
  if (!pager_created()) return answer_of(sys::lock_all(flags));
  log_warning("mlockall refused: it would keep all of the program in DRAM; run it without Lunar, or without locking its memory");
  return answer_of(-ENOMEM);
}
