// SPDX-License-Identifier: Apache-2.0
// Times the faults of one thread (a server's main thread): how many needed a read, how long they
// took, and the longest since the last query. A fault lasts from the moment when a handler reads
// its message until the page is installed. Faults that another thread's range operation ends are
// not counted. Threading: handlers write, any thread reads.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

struct WatchedThread {
  std::atomic<int> thread_id{0};  // 0: none
  std::atomic<uint64_t> address{0}, since_ns{0}, longest_ns{0};
  std::atomic<uint64_t> reads{0}, read_ns{0};  // since the start

  // A thread sleeps until its fault is answered, so it has one fault at a time.
  void begins(int of_thread, uint64_t at) {
    if (of_thread == 0 || of_thread != thread_id.load(std::memory_order_relaxed)) return;
    address.store(at, std::memory_order_relaxed);
    since_ns.store(sys::now_ns(), std::memory_order_relaxed);
  }
  // Called before the pages are installed, after which the thread's next fault may begin. Returns
  // when the fault on one of them began, or 0.
  uint64_t take(const void* first, uint64_t bytes) {
    if (since_ns.load(std::memory_order_relaxed) == 0 ||
        address.load(std::memory_order_relaxed) - reinterpret_cast<uint64_t>(first) >= bytes)
      return 0;
    return since_ns.exchange(0, std::memory_order_relaxed);
  }
  // Called after that. `since`: the result of take().
  void ends(uint64_t since, bool read) {
    if (since == 0) return;
    const uint64_t took = static_cast<uint64_t>(sys::now_ns()) - since;
    if (read) {
      read_ns.fetch_add(took, std::memory_order_relaxed);
      reads.fetch_add(1, std::memory_order_relaxed);
    }
    uint64_t longest = longest_ns.load(std::memory_order_relaxed);
    while (took > longest &&
           !longest_ns.compare_exchange_weak(longest, took, std::memory_order_relaxed)) {}
  }
  // Another thread brings the page in: the fault is not counted.
  void leave_to_another_thread() {
    if (since_ns.load(std::memory_order_relaxed) != 0) since_ns.store(0, std::memory_order_relaxed);
  }
};

}  // namespace lunar
