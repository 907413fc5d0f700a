// SPDX-License-Identifier: Apache-2.0
// Times the faults of one thread (a server's main thread), the longest since it was last asked for. From the moment that a handler reads
// the message to the page being there; faults that another thread's door ends are not counted.
// Threading: handlers write, anybody asks.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

struct WatchedThread {
  std::atomic<int> thread_id{0};   // 0: none
  std::atomic<uint64_t> address{0}, since_ns{0}, longest_ns{0};

  // A thread sleeps until its fault is answered: it has one at a time.
  void begins(int of_thread, uint64_t at) {
    if (of_thread == 0 || of_thread != thread_id.load(std::memory_order_relaxed)) return;
    address.store(at, std::memory_order_relaxed);
    since_ns.store(sys::now_ns(), std::memory_order_relaxed);
  }
  void ends(const void* first, uint64_t bytes) {
    const uint64_t since = since_ns.load(std::memory_order_relaxed);
    if (since == 0 || address.load(std::memory_order_relaxed) - reinterpret_cast<uint64_t>(first) >= bytes) return;
    since_ns.store(0, std::memory_order_relaxed);
    const uint64_t took = sys::now_ns() - since;
    uint64_t longest = longest_ns.load(std::memory_order_relaxed);
    while (took > longest && !longest_ns.compare_exchange_weak(longest, took, std::memory_order_relaxed)) {}
  }
  void is_in_other_hands() {
    if (since_ns.load(std::memory_order_relaxed) != 0) since_ns.store(0, std::memory_order_relaxed);
  }
};

}  // namespace lunar
