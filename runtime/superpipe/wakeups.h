// SPDX-License-Identifier: Apache-2.0
// Waits for several contexts together: for descriptors that become readable, and until a time to
// check again.
//
//   Wakeups wakeups;
//   for (each) context->wakeups(&wakeups);
//   wakeups.sleep(timeout_ns);
//   for (each) context->reap(...);
//
// Threading: used by one thread. May be used on the fault path.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lunar {

class Wakeups {
 public:
  void readable(int fd);  // wakes when poll() reports it (a ring: if it is attached as shared)
  // wakes at that time at the latest (sys::now_ns(); 0: a response is available already)
  void look_at(uint64_t when_ns) { look_at_ns_ = std::min(look_at_ns_, when_ns); }
  // Sleeps until one of them, or until timeout_ns has passed (< 0: no limit). May return
  // spuriously, and does after kLookAgainNs at the latest, because the program may have closed a
  // descriptor. 0 or -errno (-ETIME: the timeout, -EINTR).
  static constexpr int64_t kLookAgainNs = 10'000'000;
  [[nodiscard]] int sleep(int64_t timeout_ns) const;

 private:
  static constexpr unsigned kMost = 64;
  int fds_[kMost];
  unsigned count_ = 0;
  uint64_t look_at_ns_ = UINT64_MAX;
};

}  // namespace lunar
