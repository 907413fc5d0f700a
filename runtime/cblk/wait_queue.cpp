// SPDX-License-Identifier: Apache-2.0
#include "cblk/wait_queue.h"

namespace lunar::cblk {

void WaitQueue::enqueue(Waiter* waiter) {
  waiter->signal.store(0, std::memory_order_relaxed);
  waiter->listed = true;
  waiter->previous = nullptr;
  waiter->next = waiting_[waiter->kind];
  if (waiter->next) waiter->next->previous = waiter;
  waiting_[waiter->kind] = waiter;
  if (!waiter->command) return;
  waiter->same_command = *waiter->command;
  *waiter->command = waiter;
}

void WaitQueue::dequeue(Waiter* waiter) {
  if (!waiter->listed) return;
  waiter->listed = false;
  (waiter->previous ? waiter->previous->next : waiting_[waiter->kind]) = waiter->next;
  if (waiter->next) waiter->next->previous = waiter->previous;
  if (!waiter->command) return;
  Waiter** place = waiter->command;
  while (*place != waiter) place = &(*place)->same_command;
  *place = waiter->same_command;
}

void WaitQueue::signal(Waiter* waiter) {
  dequeue(waiter);
  // The waiter may end as soon as the word is 1. A wake-up of a former address does no harm.
  std::atomic<uint32_t>* word = &waiter->signal;
  word->store(1, std::memory_order_release);
  if (to_wake_count_ == kWakesMax)
    sys::futex_wake(word, 1, false);
  else
    to_wake_[to_wake_count_++] = word;
}

WaitQueue::Wakes WaitQueue::take_wakes() {
  Wakes wakes;
  wakes.count_ = to_wake_count_;
  for (unsigned i = 0; i < to_wake_count_; ++i) wakes.words_[i] = to_wake_[i];
  to_wake_count_ = 0;
  return wakes;
}

void WaitQueue::forget_in_child() {
  for (Waiter*& waiter : waiting_) waiter = nullptr;
  to_wake_count_ = 0;
}

}  // namespace lunar::cblk
