// SPDX-License-Identifier: Apache-2.0
// The lock of a scratch LUN given by path: see scratch_lock.h.
// Threading: any, blocking. Not for the fault path.
#include "superpipe/scratch_lock.h"

#include <errno.h>

#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr int kBusyRetries = 50;
constexpr uint64_t kBusyRetryNs = 20'000'000;

}  // namespace

int scratch_lock(int fd) {
  int status = sys::lock_range(fd, sys::RangeLock::kExclusive, 0, 0);
  for (int i = 0; i < kBusyRetries && (status == -EAGAIN || status == -EINTR); ++i) {
    sys::sleep_ns(kBusyRetryNs);
    status = sys::lock_range(fd, sys::RangeLock::kExclusive, 0, 0);
  }
  return status == 0 ? scratch_hold(fd) : status == -EAGAIN ? -EBUSY : status;
}

int scratch_hold(int fd) {
  const int status = sys::lock_range(fd, sys::RangeLock::kShared, 0, 0);
  return status == -EAGAIN ? -EBUSY : status;
}

int scratch_locked(int fd) { return sys::range_locked(fd, 0, 1); }

}  // namespace lunar
