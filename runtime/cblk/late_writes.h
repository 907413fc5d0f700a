// SPDX-License-Identifier: Apache-2.0
// Writes and discards that timed out but that the device may still carry out. Later changes of the
// same blocks wait for them. There is one list per chunk; the chunks of a group on one LUN share
// one, because a retry may go to another chunk.
// Threading: any; the lock is a leaf. Allocates nothing: a LateWrite is part of the late command or
// lane.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::cblk {

struct LateWrite {
  uint64_t block = 0, blocks = 0;  // 0 blocks: not in the list
  LateWrite* next = nullptr;
  LateWrite* previous = nullptr;
};

class LateWrites {
 public:
  bool any() const { return first_.load(std::memory_order_acquire) != nullptr; }
  // Whether a late write may still change one of these blocks.
  bool reach(uint64_t block, uint64_t blocks);
  void add(LateWrite* one, uint64_t block, uint64_t blocks);
  void remove(LateWrite* one);  // does nothing if it is not in the list
  // In a forked child: late writes belong to the parent. pre: each LateWrite is initialised before
  // it is used again
  void forget_in_child();

 private:
  sys::Mutex lock_;
  std::atomic<LateWrite*> first_{nullptr};
};

}  // namespace lunar::cblk
