// SPDX-License-Identifier: Apache-2.0
// Inbox: the fault messages of a handler that are not answered, oldest first:
//   - *parked* messages, which it could not answer yet (no DRAM, a fork)
//   - messages that it read in the middle of an answer, because an event had to be read
//   - messages of this node's threads that a handler of another NUMA node has read
// Threading: put() by any service thread, the other functions by the handler's thread.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {

class Inbox {
 public:
  static constexpr unsigned kMax = 4096;  // threads: each has one fault at a time
  struct Entry {
    sys::UffdMessage message;
    bool parked;  // an answer was tried before
  };

  // Makes it empty. 0 or -ENOMEM. Also in a forked child, whose parent may have held the lock.
  [[nodiscard]] int open();
  [[nodiscard]] bool put(const sys::UffdMessage& message, bool parked);  // false: full
  bool take(Entry* out);                                                 // false: empty
  unsigned count() const { return count_.load(std::memory_order_acquire); }
  unsigned parked() const { return parked_.load(std::memory_order_relaxed); }

 private:
  sys::SpinLock lock_;
  Entry* entries_ = nullptr;  // a ring
  unsigned first_ = 0;
  std::atomic<unsigned> count_{0}, parked_{0};  // change under the lock
};

}  // namespace lunar
