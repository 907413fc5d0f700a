// SPDX-License-Identifier: Apache-2.0
// Phases: wait for all threads that entered before a moment, while others go on entering (a grace period, as RCU calls
// it).
//
// Users enter, look whether they still may, do their work and leave. To take something away: first make that look
// fail, then drain. It waits for both phases in turn, which covers a thread that read the phase long ago.
// Threading: enter, leave: any thread, lock-free. drain: one at a time.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::sys {

// How many are inside, by phase.
struct alignas(64) PhaseCount {
  std::atomic<uint32_t> inside[2] = {};
};

class Phases {
 public:
  // The phase to leave() with.
  unsigned enter(PhaseCount* count) const {
    const unsigned phase = phase_.load(std::memory_order_relaxed) & 1;
    count->inside[phase].fetch_add(1, std::memory_order_seq_cst);  // before the user looks
    return phase;
  }
  static void leave(PhaseCount* count, unsigned phase) { count->inside[phase].fetch_sub(1, std::memory_order_release); }
  // inside(phase): how many are in it, by all counts. False: some that entered before are inside at the deadline.
  template <class Inside>
  [[nodiscard]] bool drain(uint64_t deadline_ns, Inside inside) {
    constexpr uint64_t kPauseNs = 50'000;
    for (int round = 0; round < 2; ++round) {
      const unsigned ended = phase_.fetch_add(1, std::memory_order_seq_cst) & 1;
      while (inside(ended) != 0) {
        if (now_ns() > deadline_ns) return false;
        sleep_ns(kPauseNs);
      }
    }
    return true;
  }

 private:
  std::atomic<unsigned> phase_{0};
};

}  // namespace lunar::sys
