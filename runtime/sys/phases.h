// SPDX-License-Identifier: Apache-2.0
// Phases: waits for all threads that entered before a certain moment, while others keep entering (a
// grace period, in RCU's terms).
//
// Users enter, check that what they use is still there, use it, and leave. To remove it: first make
// that check fail, then drain, which waits for both phases in turn: this covers a thread that read
// the phase long ago.
// Section: the same for one thread, which enters and leaves again and again.
// Threading: enter, leave: any thread, lock-free. drain: one at a time. wait_for_end: any thread.
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
    count->inside[phase].fetch_add(1, std::memory_order_seq_cst);  // before the user's check
    return phase;
  }
  static void leave(PhaseCount* count, unsigned phase) {
    count->inside[phase].fetch_sub(1, std::memory_order_release);
  }
  // inside(phase): how many are in it, summed over all counts. False: at the deadline some that
  // entered before are still inside.
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

class Section {
 public:
  class Inside {
   public:
    explicit Inside(Section& section) : count_(section.count_) {
      count_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Inside() { count_.fetch_add(1, std::memory_order_release); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::atomic<uint64_t>& count_;
  };
  // Returns when the thread has left the section that it is in now, or at once if it is outside.
  void wait_for_end() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint64_t seen = count_.load(std::memory_order_seq_cst);
    while ((seen & 1) != 0 && count_.load(std::memory_order_acquire) == seen) sleep_ns(5000);
  }
  void reset_in_child() { count_.store(0); }

 private:
  std::atomic<uint64_t> count_{0};  // odd: inside
};

}  // namespace lunar::sys
