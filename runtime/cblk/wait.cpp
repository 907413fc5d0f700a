// SPDX-License-Identifier: Apache-2.0
// Waiting and waking: see chunk.h.
// Threading: under the chunk's lock, but for the sleep itself. May not: allocate.
#include "cblk/wait.h"

#include <initializer_list>

namespace lunar::cblk {

// A command to come free is waited for in the ring only where one comes free by itself: another
// thread's fetching does not wake a leader.
bool Chunk::may_lead(Waiter::Kind kind) const {
  return kind != Waiter::kFree || completer_.commands() != 0;
}

void Chunk::unlock() {
  if (!leader_ && !designated_ && !idle()) {
    for (Waiter::Kind kind : {Waiter::kCommand, Waiter::kAny, Waiter::kIdle, Waiter::kFree}) {
      Waiter* waiter = waiters_.first(kind);
      if (!waiter || !may_lead(kind)) continue;
      waiter->designated = designated_ = true;
      waiters_.signal(waiter);
      break;
    }
  }
  const WaitQueue::Wakes wakes = waiters_.take_wakes();
  lock_.unlock();
  wakes.wake();
}

// One turn of waiting, when neither what is wanted nor anything to harvest is there. Releases the
// lock meanwhile.
void Chunk::sleep(Waiter* waiter, int64_t left_ns) {
  if (!leader_ && in_ring_ && may_lead(waiter->kind)) {
    leader_ = true;
    if (backlog_blocked_ && (left_ns < 0 || left_ns > static_cast<int64_t>(kLostRetryNs)))
      left_ns = kLostRetryNs;
    unlock();
    const int status = context_->await(left_ns);
    // the ring is out of order: no storm
    if (status < 0 && status != -ETIME && status != -EINTR) sys::sleep_ns(kRetryNs);
    lock_.lock();
    leader_ = false;
  } else if (!leader_ && commands_.backlog() &&
             !in_ring_) {  // the kernel is short of something; no completion will tell
    const uint64_t nap = backlog_blocked_ ? kLostRetryNs : kRetryNs;
    unlock();
    sys::sleep_ns(nap);
    lock_.lock();
  } else {
    waiters_.enqueue(waiter);
    unlock();
    (void)sys::futex_wait(&waiter->signal, 0, left_ns, false);
    lock_.lock();
    waiters_.dequeue(waiter);
    if (waiter->designated) waiter->designated = designated_ = false;
  }
}

}  // namespace lunar::cblk
