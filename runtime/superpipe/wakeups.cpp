// SPDX-License-Identifier: Apache-2.0
// Waiting for several contexts: see wakeups.h.
// Threading: as there. May not: allocate, take a lock.
#include "superpipe/wakeups.h"

#include <errno.h>

#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kCrowdNs = 1'000'000;  // the longest sleep if poll() cannot take all descriptors

}  // namespace

void Wakeups::readable(int fd) {
  if (count_ < kMost)
    fds_[count_++] = fd;
  else
    look_at(sys::now_ns() + kCrowdNs);
}

int Wakeups::sleep(int64_t timeout_ns) const {
  if (look_at_ns_ == 0) return 0;
  int64_t most = kLookAgainNs;
  if (look_at_ns_ != UINT64_MAX) {
    const uint64_t now = sys::now_ns();
    if (now >= look_at_ns_) return 0;
    if (look_at_ns_ - now < static_cast<uint64_t>(most))
      most = static_cast<int64_t>(look_at_ns_ - now);
  }
  const bool limited = timeout_ns >= 0 && timeout_ns < most;
  uint64_t ready = 0;
  const int status = sys::poll_readable(fds_, count_, limited ? timeout_ns : most, &ready);
  return status == 0 && limited ? -ETIME : status < 0 ? status : 0;
}

}  // namespace lunar
