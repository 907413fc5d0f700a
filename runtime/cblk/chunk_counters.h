// SPDX-License-Identifier: Apache-2.0
// A chunk's counters, for cblk_get_stats. Relaxed atomics: each figure is exact, but together they
// are not a snapshot of one moment.
// Threading: any.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::cblk {

using Count = std::atomic<uint64_t>;
inline void add(Count& count, uint64_t n = 1) { count.fetch_add(n, std::memory_order_relaxed); }

// How many are in progress, and the maximum so far.
struct Gauge {
  std::atomic<uint32_t> now{0}, most{0};
  void enter() {
    const uint32_t n = now.fetch_add(1, std::memory_order_relaxed) + 1;
    uint32_t seen = most.load(std::memory_order_relaxed);
    while (n > seen && !most.compare_exchange_weak(seen, n, std::memory_order_relaxed)) {}
  }
  void leave() { now.fetch_sub(1, std::memory_order_relaxed); }
  // The same under a lock that excludes other callers: no locked instruction.
  void enter_locked() {
    const uint32_t n = now.load(std::memory_order_relaxed) + 1;
    now.store(n, std::memory_order_relaxed);
    if (n > most.load(std::memory_order_relaxed)) most.store(n, std::memory_order_relaxed);
  }
  void leave_locked() {
    now.store(now.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  }
};

struct Counters {
  Count reads{0}, writes{0}, areads{0}, awrites{0}, blocks_read{0}, blocks_written{0};
  Count errors{0}, nothing_done{0}, timeouts{0}, none_free{0}, none_free_failed{0}, no_room{0},
      cache_hits{0};
  Count threads_started{0}, threads_failed{0};
  Gauge act_reads, act_writes, act_areads, act_awrites;
};

}  // namespace lunar::cblk
