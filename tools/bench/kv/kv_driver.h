// SPDX-License-Identifier: Apache-2.0
// The loops that load a store, read and write it, and check every value: a read must return a
// version of the key that was written, correct in every byte, and not older than the version that
// was acknowledged when the read began.
//
// Keys are numbers. The state of a number is the last acknowledged version, and a flag while one
// writer writes it. Synchronous loops are threads; asynchronous loops are chains: the callback of
// each operation issues the next, as in programs that use the interface.
// Threading: one thread calls; workers live for one call.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/kv/kv_order.h"
#include "tools/bench/kv/kv_system.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// The existing numbers, and the version of each.
class KvStates {
 public:
  static constexpr uint32_t kBusy = 1u << 31;
  explicit KvStates(uint64_t capacity)
      : capacity_(capacity), states_(new std::atomic<uint32_t>[capacity] {}) {}
  uint64_t capacity() const { return capacity_; }
  uint64_t keys() const {  // numbers below this exist, unless their insert is not acknowledged yet
    return keys_.load(std::memory_order_acquire);
  }
  void loaded(uint64_t keys);
  // Adds a number and claims it. False: the capacity is used up.
  bool add(uint64_t* number);
  bool claim(uint64_t number);  // to write it. False: another writer has claimed it
  // The version to write next. pre: claimed.
  uint32_t next(uint64_t number) const { return (get(number) & ~kBusy) + 1; }
  void release(uint64_t number, bool written);
  uint32_t least(uint64_t number) const { return get(number) & ~kBusy; }  // 0: it does not exist
  // True if a read may find `version`. least: least() at its begin.
  bool right(uint64_t number, uint32_t least, uint32_t version) const {
    return version != 0 && version >= least && version <= (get(number) & ~kBusy) + 1;
  }

 private:
  uint32_t get(uint64_t number) const { return states_[number].load(std::memory_order_acquire); }
  uint64_t capacity_;
  std::atomic<uint64_t> keys_{0};
  std::unique_ptr<std::atomic<uint32_t>[]> states_;
};

// The counts of one thread.
struct alignas(64) KvTally {
  Histogram latencies;
  uint64_t reads = 0, writes = 0, mismatches = 0;
  bool measuring = false;
};

struct KvLimits {
  uint64_t memory_bytes = 0;  // limit of the system's memory cgroup
  uint64_t keys_max = 0;      // loaded and inserted
  std::string disk_stat;
};

class KvDriver {
 public:
  // Opens the store. All functions throw std::runtime_error with the reason.
  KvDriver(const KvSetup& setup, const KvLimits& limits, uint64_t seed);
  // Loads all pairs with `threads`, in an order that is not that of the keys, and flushes.
  // Background work after the flush is not measured.
  RunResult load(unsigned threads);
  RunResult run(const KvOrder& order);

 private:
  friend class KvWorker;
  friend class KvChain;
  struct Counters;
  enum Phase : int { kWarm, kMeasure, kStop };
  Counters count() const;
  void begin_run();
  RunResult result(const Counters& before, const Counters& after);
  double space() const;
  double must_read_bytes(const KvOrder& order, double reads) const;
  void load_range(uint64_t from, uint64_t to);
  void work(const KvOrder& order, unsigned thread);
  void work_async(const KvOrder& order, unsigned thread);
  KvTally& tally();  // of the calling thread in this run
  void fail(int code, const char* what);

  KvSetup setup_;
  KvLimits limits_;
  KvContent content_;
  KvStates states_;
  uint64_t bytes_without_store_;  // of the process
  std::unique_ptr<KvSystem> system_;
  std::unique_ptr<ZipfGenerator> zipf_;
  std::atomic<int> phase_{kWarm};
  std::atomic<bool> measured_{false};      // this run has a measured operation
  std::atomic<uint32_t> chains_alive_{0};  // the last chain that ends wakes the waiters
  std::mutex lock_;                        // for tallies_ and error_
  std::vector<std::unique_ptr<KvTally>> tallies_;
  uint64_t run_number_ = 0;
  std::string error_;
};

}  // namespace lunar::tools
