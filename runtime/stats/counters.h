// SPDX-License-Identifier: Apache-2.0
// Counters of the pager: one relaxed atomic each, grouped on cache lines by the threads that write
// them most. Export: lunar_get_stats, the live stats file (stats/export.h), the table of `lunar run
// --stats`.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar {

struct Counter {
  std::atomic<uint64_t> value{0};
  void add(uint64_t n = 1) { value.fetch_add(n, std::memory_order_relaxed); }
  uint64_t get() const { return value.load(std::memory_order_relaxed); }
  operator uint64_t() const { return get(); }
};

struct Counters {
  // written by resolvers
  alignas(64) Counter faults;
  Counter zero_fills, major_faults, second_chances, prefetched, budget_waits, read_bytes,
      read_errors, poisoned, duplicates;
  Counter service_faults;  // by our own threads except the evictor: must stay 0
  // written by the evictor
  alignas(64) Counter evictions;
  Counter evicted_clean, evicted_zero, written_bytes, write_errors, kept_pinned, made_exclusive,
      batches;
  alignas(64) std::atomic<int64_t> resident{0}, evicted{0};  // pages, now
  Counter forks;
};

Counters& counters();

}  // namespace lunar
