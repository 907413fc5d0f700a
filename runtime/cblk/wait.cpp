// SPDX-License-Identifier: Apache-2.0
// Waiting and waking: see chunk.h.
// Threading: under the chunk's lock, but for the sleep itself. May not: allocate.
#include "cblk/wait.h"

#include <initializer_list>

namespace lunar::cblk {

void Chunk::enqueue(Waiter* waiter) {
  waiter->signal.store(0, std::memory_order_relaxed);
  waiter->listed = true;
  waiter->previous = nullptr;
  waiter->next = waiting_[waiter->kind];
  if (waiter->next) waiter->next->previous = waiter;
  waiting_[waiter->kind] = waiter;
  if (waiter->kind == Waiter::kCommand) {
    waiter->same_command = entries_[waiter->index].waiters;
    entries_[waiter->index].waiters = waiter;
  }
}

void Chunk::dequeue(Waiter* waiter) {
  if (!waiter->listed) return;
  waiter->listed = false;
  if (waiter->previous)
    waiter->previous->next = waiter->next;
  else
    waiting_[waiter->kind] = waiter->next;
  if (waiter->next) waiter->next->previous = waiter->previous;
  if (waiter->kind == Waiter::kCommand) {
    Waiter** place = &entries_[waiter->index].waiters;
    while (*place != waiter) place = &(*place)->same_command;
    *place = waiter->same_command;
  }
}

void Chunk::signal(Waiter* waiter) {
  dequeue(waiter);
  // its owner may be gone once it says 1; a wake-up of an old address does no harm
  std::atomic<uint32_t>* word = &waiter->signal;
  word->store(1, std::memory_order_release);
  if (to_wake_count_ == sizeof to_wake_ / sizeof *to_wake_)
    sys::futex_wake(word, 1, false);
  else
    to_wake_[to_wake_count_++] = word;
}

void Chunk::signal_one(Waiter::Kind kind) {
  Waiter* waiter = waiting_[kind];
  if (waiter) signal(waiter);
}

void Chunk::signal_all(Waiter::Kind kind) {
  while (waiting_[kind]) signal(waiting_[kind]);
}

void Chunk::signal_waiters_of(uint32_t index) {
  while (entries_[index].waiters) signal(entries_[index].waiters);
}

// A command to come free is waited for in the ring only where one comes free by itself: another thread's fetching does
// not wake a leader.
bool Chunk::may_lead(Waiter::Kind kind) const {
  return kind != Waiter::kFree || background_.load(std::memory_order_relaxed) != 0;
}

void Chunk::unlock() {
  if (!leader_ && !designated_ && in_ring_ + backlog_count_ != 0) {
    for (Waiter::Kind kind : {Waiter::kCommand, Waiter::kAny, Waiter::kIdle, Waiter::kFree}) {
      Waiter* waiter = waiting_[kind];
      if (!waiter || !may_lead(kind)) continue;
      waiter->designated = designated_ = true;
      signal(waiter);
      break;
    }
  }
  std::atomic<uint32_t>* words[sizeof to_wake_ / sizeof *to_wake_];
  const unsigned n = to_wake_count_;
  for (unsigned i = 0; i < n; ++i) words[i] = to_wake_[i];
  to_wake_count_ = 0;
  lock_.unlock();
  for (unsigned i = 0; i < n; ++i) sys::futex_wake(words[i], 1, false);
}

// One turn of waiting, when neither what is wanted nor anything to harvest is there. Releases the lock meanwhile.
void Chunk::sleep(Waiter* waiter, int64_t left_ns) {
  if (!leader_ && in_ring_ && may_lead(waiter->kind)) {
    leader_ = true;
    if (backlog_blocked_ && (left_ns < 0 || left_ns > static_cast<int64_t>(kLostRetryNs))) left_ns = kLostRetryNs;
    unlock();
    const int status = context_->await(left_ns);
    // the ring is out of order: no storm
    if (status < 0 && status != -ETIME && status != -EINTR) sys::sleep_ns(kRetryNs);
    lock_.lock();
    leader_ = false;
  } else if (!leader_ && backlog_count_ && !in_ring_) {  // the kernel is short of something; no completion will tell
    const uint64_t nap = backlog_blocked_ ? kLostRetryNs : kRetryNs;
    unlock();
    sys::sleep_ns(nap);
    lock_.lock();
  } else {
    enqueue(waiter);
    unlock();
    (void)sys::futex_wait(&waiter->signal, 0, left_ns, false);
    lock_.lock();
    dequeue(waiter);
    if (waiter->designated) waiter->designated = designated_ = false;
  }
}

}  // namespace lunar::cblk
