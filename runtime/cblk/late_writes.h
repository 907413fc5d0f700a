// SPDX-License-Identifier: Apache-2.0
// Writes and discards that timed out and which the device may yet carry out: changes of the same blocks wait for them.
// One list a chunk; the chunks of a group on one LUN share theirs, as a retry may go to another chunk.
// Threading: any; the lock is a leaf. Allocates nothing: a LateWrite lies in the command, or lane, that is late.
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
  bool reach(uint64_t block, uint64_t blocks);  // whether one may still change one of these
  void add(LateWrite* one, uint64_t block, uint64_t blocks);
  void remove(LateWrite* one);  // one that is not there is fine
  // they are the parent's. pre: each is made anew before it is used again
  void forget_in_child();

 private:
  sys::Mutex lock_;
  std::atomic<LateWrite*> first_{nullptr};
};

}  // namespace lunar::cblk
