// SPDX-License-Identifier: Apache-2.0
// Waits for several contexts together: descriptors that become readable, and a time to look again.
//
//   Wakeups wakeups;
//   for (each) context->wakeups(&wakeups);
//   wakeups.sleep(timeout_ns);
//   for (each) context->reap(...);
//
// Threading: one thread's. May be used on the fault path.
#pragma once
#include <cstdint>

namespace lunar {

class Wakeups {
 public:
  void readable(int fd);  // wakes when poll() says so (of a ring: where it is attached as shared)
  // wakes then at the latest (sys::now_ns(); 0: there is something already)
  void look_at(uint64_t when_ns) {
    if (when_ns < look_at_ns_) look_at_ns_ = when_ns;
  }
  // Until one of them, or timeout_ns passed (< 0: no limit). Spurious returns happen, one after kLookAgainNs at the
  // latest: the program may have closed a descriptor. 0 or -errno (-ETIME: the timeout, -EINTR).
  static constexpr int64_t kLookAgainNs = 10'000'000;
  [[nodiscard]] int sleep(int64_t timeout_ns) const;

 private:
  static constexpr unsigned kMost = 64;
  int fds_[kMost];
  unsigned count_ = 0;
  uint64_t look_at_ns_ = UINT64_MAX;
};

}  // namespace lunar
