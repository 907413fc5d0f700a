// SPDX-License-Identifier: Apache-2.0
// The DRAM budget of a store, a hard limit: a request that would exceed it is refused before the
// memory is touched. Threading: any. May not: allocate, block.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::kv {

class Budget {
 public:
  void open(uint64_t bytes) { limit_ = bytes; }
  // keep_for_open: the index leaves `bytes` to the next open, whose replay may need more of it
  // (Store::begin_commits). keep_for_chains: in that open, only overflow buckets may take them.
  void keep_for_open(uint64_t bytes) { kept_ = kept_by_chains_ = bytes; }
  void keep_for_chains(uint64_t bytes) {
    kept_ = bytes;
    kept_by_chains_ = 0;
  }
  bool take(uint64_t bytes) { return take_below(limit_, bytes); }
  bool take_for_index(uint64_t bytes) { return take_below(limit_ - kept_, bytes); }
  bool take_for_chains(uint64_t bytes) { return take_below(limit_ - kept_by_chains_, bytes); }
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }

 private:
  bool take_below(uint64_t limit, uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit || used > limit - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  uint64_t limit_ = 0, kept_ = 0, kept_by_chains_ = 0;
  std::atomic<uint64_t> used_{0};
};

}  // namespace lunar::kv
