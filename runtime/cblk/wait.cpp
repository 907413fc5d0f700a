// SPDX-License-Identifier: Apache-2.0
// Waiting and waking: see chunk.h.
// Threading: under the chunk's lock, but for the sleep itself. May not: allocate.
#include "cblk/wait.h"

#include <initializer_list>

namespace lunar::cblk {

// Whether a waiting thread may become the leader. A thread that waits for a free command may only
// if commands with a status can become free by completion, because another thread's fetch does not
// wake a leader.
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

// One turn of waiting, after neither the wanted command nor any completion was found. Releases the
// lock meanwhile.
void Chunk::sleep(Waiter* waiter, int64_t left_ns) {
  if (!leader_ && in_ring_ && may_lead(waiter->kind)) {
    leader_ = true;
    if (backlog_blocked_ && (left_ns < 0 || left_ns > static_cast<int64_t>(kLostRetryNs)))
      left_ns = kLostRetryNs;
    unlock();
    const int status = context_->await(left_ns);
    // The ring is broken: limits the rate of polls.
    if (status < 0 && status != -ETIME && status != -EINTR) sys::sleep_ns(kRetryNs);
    lock_.lock();
    leader_ = false;
  } else if (!leader_ && commands_.backlog() && !in_ring_) {
    // The kernel lacks a resource, and no completion will wake the thread.
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
