// SPDX-License-Identifier: Apache-2.0
// Late writes: see late_writes.h.
// Threading: any, under a lock of its own.
#include "cblk/late_writes.h"

namespace lunar::cblk {

bool LateWrites::reach(uint64_t block, uint64_t blocks) {
  if (!any()) return false;
  sys::Locked guard(lock_);
  const LateWrite* one = first_.load(std::memory_order_relaxed);
  while (one && !(block < one->block + one->blocks && one->block < block + blocks)) one = one->next;
  return one != nullptr;
}

void LateWrites::add(LateWrite* one, uint64_t block, uint64_t blocks) {
  sys::Locked guard(lock_);
  LateWrite* first = first_.load(std::memory_order_relaxed);
  *one = {block, blocks, first, nullptr};
  if (first) first->previous = one;
  first_.store(one, std::memory_order_release);
}

void LateWrites::remove(LateWrite* one) {
  if (one->blocks == 0) return;
  sys::Locked guard(lock_);
  if (one->previous)
    one->previous->next = one->next;
  else
    first_.store(one->next, std::memory_order_release);
  if (one->next) one->next->previous = one->previous;
  *one = {};
}

void LateWrites::forget_in_child() {
  lock_.reset_in_child();
  first_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace lunar::cblk
