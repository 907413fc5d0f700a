// SPDX-License-Identifier: Apache-2.0
// The loops that load a store, read and write it, and that check every value: what is read must be,
// in every byte, a version of that key that was written, and no older than what was acknowledged
// when the read began.
//
// Keys are numbers; a number's state says which version was acknowledged last, and whether one is
// being written, by one writer at a time. Synchronous loops are threads; asynchronous ones are
// chains: each operation's callback issues the next, as programs of the interface do.
// Threading: one thread calls; workers live for one call. May not be used by runtime/ (it
// allocates).
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

// Which numbers are there, and what each must hold.
class KvStates {
 public:
  static constexpr uint32_t kBusy = 1u << 31;
  explicit KvStates(uint64_t capacity)
      : capacity_(capacity), states_(new std::atomic<uint32_t>[capacity] {}) {}
  uint64_t capacity() const { return capacity_; }
  uint64_t keys() const {  // numbers from 0 on; the last may be absent
    return keys_.load(std::memory_order_acquire);
  }
  void loaded(uint64_t keys);
  // A new number, claimed; false when there is room for no more.
  bool add(uint64_t* number);
  bool claim(uint64_t number);  // to write it; false: another one writes it
  // The version to write next. pre: claimed.
  uint32_t next(uint64_t number) const { return (get(number) & ~kBusy) + 1; }
  void release(uint64_t number, bool written);
  uint32_t least(uint64_t number) const { return get(number) & ~kBusy; }  // 0: not there
  // Whether a read that began when least() was `least` may find `version`.
  bool right(uint64_t number, uint32_t least, uint32_t version) const {
    return version != 0 && version >= least && version <= (get(number) & ~kBusy) + 1;
  }

 private:
  uint32_t get(uint64_t number) const { return states_[number].load(std::memory_order_acquire); }
  uint64_t capacity_;
  std::atomic<uint64_t> keys_{0};
  std::unique_ptr<std::atomic<uint32_t>[]> states_;
};

// What one thread counted.
struct alignas(64) KvTally {
  Histogram latencies;
  uint64_t reads = 0, writes = 0, mismatches = 0;
  bool measuring = false;
};

struct KvLimits {
  uint64_t memory_bytes = 0;  // of the system's memory cgroup: what it can hold at most
  uint64_t keys_max = 0;      // loaded and inserted
  std::string disk_stat;
};

class KvDriver {
 public:
  // Opens the store. All of these throw std::runtime_error: what went wrong.
  KvDriver(const KvSetup& setup, const KvLimits& limits, uint64_t seed);
  // All pairs, in no order of their keys, by `threads`, and the flush. What a store then does by
  // itself is untimed.
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
  KvTally& tally();  // the calling thread's of this run
  void fail(int code, const char* what);

  KvSetup setup_;
  KvLimits limits_;
  KvContent content_;
  KvStates states_;
  uint64_t bytes_without_store_;  // of the process
  std::unique_ptr<KvSystem> system_;
  std::unique_ptr<ZipfGenerator> zipf_;
  std::atomic<int> phase_{kWarm};
  std::atomic<bool> measured_{false};      // an operation of this run counts
  std::atomic<uint32_t> chains_alive_{0};  // that go on; the last one that ends wakes its waiters
  std::mutex lock_;                        // tallies_, error_
  std::vector<std::unique_ptr<KvTally>> tallies_;
  uint64_t run_number_ = 0;
  std::string error_;
};

}  // namespace lunar::tools
