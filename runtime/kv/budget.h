// SPDX-License-Identifier: Apache-2.0
// The DRAM budget of a store, a hard limit: a request that would exceed it is refused before the memory is touched.
// Threading: any. May not: allocate, block.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::kv {

class Budget {
 public:
  void open(uint64_t bytes) { limit_ = bytes; }
  bool take(uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ || used > limit_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void give_back(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }

 private:
  uint64_t limit_ = 0;
  std::atomic<uint64_t> used_{0};
};

}  // namespace lunar::kv
