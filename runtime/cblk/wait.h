// SPDX-License-Identifier: Apache-2.0
// The waiting loop of a chunk, for the files that wait: see chunk.h for how it works.
#pragma once
#include <errno.h>

#include "cblk/chunk.h"

namespace lunar::cblk {

constexpr uint64_t kRetryNs = 50'000;
constexpr unsigned kHarvestBatch = 64;  // maximum number of completions that one reap takes

// Waits until done() is true: 0, or -ETIMEDOUT after a last check of the ring. A stream of other
// commands' completions does not prolong the wait. Calls done() under the lock. pre and post: the
// lock is held.
template <class Done>
int Chunk::wait_until(Waiter* waiter, uint64_t deadline_ns, Done done) {
  bool expired = false;
  uint32_t turns = 0;  // of harvesting, after the deadline
  for (;;) {
    if (done()) return 0;
    const bool reaped = !leader_ && reap();
    if (done()) return 0;
    if (expired) {
      if (!reaped || turns-- == 0) return -ETIMEDOUT;
      continue;
    }
    int64_t left = -1;
    if (deadline_ns != kForever) {
      const uint64_t now = sys::now_ns();
      expired = now >= deadline_ns;
      if (expired) {
        turns = in_ring_ / kHarvestBatch;
        continue;
      }
      left = static_cast<int64_t>(deadline_ns - now);
    }
    if (!reaped) sleep(waiter, left);
  }
}

}  // namespace lunar::cblk
