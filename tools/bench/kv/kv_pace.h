// SPDX-License-Identifier: Apache-2.0
// How many operations a paced run may begin by now: what was allowed and is not taken.
// Threading: begin() by one thread before the run; the rest by any.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::tools {

class KvPace {
 public:
  void begin(bool paced) {
    paced_ = paced;
    left_.store(0, std::memory_order_relaxed);
  }
  void allow(double operations) { left_.fetch_add(static_cast<int64_t>(operations), std::memory_order_relaxed); }
  bool take() {
    if (!paced_ || left_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
    left_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

 private:
  bool paced_ = false;
  std::atomic<int64_t> left_{0};
};

}  // namespace lunar::tools
