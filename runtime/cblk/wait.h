// SPDX-License-Identifier: Apache-2.0
// The waiting loop of a chunk, for the files that wait: see chunk.h for how it works.
#pragma once
#include <errno.h>

#include "cblk/chunk.h"

namespace lunar::cblk {

constexpr uint64_t kRetryNs = 50'000;

// Until done() says so: 0, or -ETIMEDOUT. done() is asked under the lock. pre and post: the lock is held.
template <class Done>
int Chunk::wait_until(Waiter* waiter, uint64_t deadline_ns, Done done) {
  bool expired = false;
  for (;;) {
    if (done()) return 0;
    if (!leader_ && reap()) continue;
    if (done()) return 0;
    if (expired) return -ETIMEDOUT;
    int64_t left = -1;
    if (deadline_ns != kForever) {
      const uint64_t now = sys::now_ns();
      expired = now >= deadline_ns;
      if (expired) continue;
      left = static_cast<int64_t>(deadline_ns - now);
    }
    sleep(waiter, left);
  }
}

}  // namespace lunar::cblk
