// SPDX-License-Identifier: Apache-2.0
// Measures whether the fetch threads run soon after they are woken: the time from a wake-up to the
// first request that a thread takes. If a thread that was awake takes the requests first, the
// wake-up says nothing. It is forgotten as soon as a thread finds nothing to do, so that its time
// is not added to that of a later request.
//
// Threading: woken() and late() on the main thread, the others on any. A wake-up that is lost in a
// race is not counted.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::redis {

class WakeTimes {
 public:
  static constexpr unsigned kLookedAt = 16;
  static constexpr uint64_t kLateNs = 1'000'000;  // 20 to 100 us on an idle CPU

  // Called before threads are woken for `pending` requests that no thread has taken.
  void woken(uint64_t now, uint32_t pending) {
    uint64_t none = 0;
    if (pending != 0) woken_ns_.compare_exchange_strong(none, now, std::memory_order_relaxed);
  }
  // Whether taken() must be called. Saves a look at the clock.
  bool waited_for() const { return woken_ns_.load(std::memory_order_relaxed) != 0; }
  void taken(uint64_t now) {
    const uint64_t since = woken_ns_.exchange(0, std::memory_order_relaxed);
    if (since == 0) return;
    wakes_.fetch_add(1, std::memory_order_relaxed);
    if (now > since + kLateNs) late_.fetch_add(1, std::memory_order_relaxed);
  }
  // Called when a thread has found no request.
  void nothing_there() {
    if (waited_for()) woken_ns_.store(0, std::memory_order_relaxed);
  }
  // True: most of the last kLookedAt wake-ups were late. False until so many are measured.
  bool late() {
    const uint32_t wakes = wakes_.load(std::memory_order_relaxed);
    if (wakes < kLookedAt) return false;
    const bool most = late_.load(std::memory_order_relaxed) > wakes / 2;
    wakes_.store(0, std::memory_order_relaxed);
    late_.store(0, std::memory_order_relaxed);
    return most;
  }

 private:
  std::atomic<uint64_t> woken_ns_{0};  // time of a wake-up with no request taken yet; 0: none
  std::atomic<uint32_t> wakes_{0}, late_{0};
};

}  // namespace lunar::redis
