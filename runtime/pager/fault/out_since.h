// SPDX-License-Identifier: Apache-2.0
// OutSince: whether a charge has failed for a while, with no success in between. In that time the
// housekeeping thread has given back the charges of dead members. Threading: any.
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar {

class OutSince {
 public:
  static constexpr uint64_t kTryNs = 200'000'000;

  // Notes a failure at `now`. True: charges have failed for kTryNs, at most kTryNs apart.
  bool failed_for_a_while(uint64_t now_ns) {
    // the first failure, or the first one after a success or a pause
    if (now_ns - last_.exchange(now_ns) > kTryNs) since_.store(now_ns);
    return now_ns - since_.load() > kTryNs;
  }
  void succeeded() {
    if (last_.load(std::memory_order_relaxed) != 0) last_.store(0);
  }

 private:
  std::atomic<uint64_t> since_{0}, last_{0};  // the first and the last failure; last_ 0: none
};

}  // namespace lunar
