// SPDX-License-Identifier: Apache-2.0
// Fetching results: cblk_aresult, and the calls of groups and lists.
// Threading: any. Allocates nothing.
#include "cblk/wait.h"

namespace lunar::cblk {

int64_t Chunk::fetch(uint32_t index, int* tag) {
  Entry& entry = entries_[index];
  const int64_t result = entry.result;
  *tag = entry.io.has_user_tag ? entry.io.user_tag : static_cast<int>(index);
  leave_fetchable(index);
  asynchronous(entry.io.op).leave_locked();
  give_free(index);
  if (fetchable_ == 0) {
    signal_all(Waiter::kAny);   // there is nothing left to wait for: ENOENT
    signal_all(Waiter::kIdle);  // a close waits for this
    if (finished_) finished_->tell();
  }
  return result;
}

// A late command is told of though others go on being done: they are looked at in the order in which they began.
void Chunk::expire_if_overtaken() {
  if (active_line_.oldest == kNone) return;
  if (done_ == 0 || entries_[active_line_.oldest].sequence < entries_[done_line_.oldest].sequence)
    expire_late(poll_clock_ns());
}

int64_t Chunk::next_result(int* tag, int flags, uint64_t deadline_ns) {
  if (fetchable_ == 0) return -ENOENT;
  if (flags & CBLK_ARESULT_BLOCKING) {
    Waiter waiter;
    waiter.kind = Waiter::kAny;
    const auto over = [this] { return done_ != 0 || fetchable_ == 0; };
    while (!over()) {  // the oldest is the first to be late
      const Entry& oldest = entries_[active_line_.oldest];
      const uint64_t late_at = oldest.delivered ? kForever : oldest.deadline_ns;
      if (wait_until(&waiter, late_at < deadline_ns ? late_at : deadline_ns, over) == 0 || deadline_ns < late_at) break;
      expire_late(sys::now_ns());
    }
    if (done_ > 1) signal_one(Waiter::kAny);  // a completion that this thread does not take must not be lost to it
  } else if (done_ == 0 && !leader_ && !(flags & CBLK_ARESULT_NO_HARVEST)) {
    (void)reap();
  }
  if (!(flags & CBLK_ARESULT_NO_HARVEST)) expire_if_overtaken();
  if (done_ != 0) return fetch(done_line_.oldest, tag);
  if (fetchable_ == 0) return -ENOENT;
  *tag = -1;
  return 0;
}

int64_t Chunk::result(int* tag, int flags, uint64_t deadline_ns) {
  if (inherited_.load(std::memory_order_relaxed)) return -EINVAL;
  lock_.lock();
  int64_t result;
  if (flags & CBLK_ARESULT_NEXT_TAG) {
    result = next_result(tag, flags, deadline_ns);
  } else {
    uint32_t index = kNone;
    result = find_tag(*tag, (flags & CBLK_ARESULT_USER_TAG) != 0, &index);
    if (result == 0) {
      Entry& entry = entries_[index];
      const uint32_t life = entry.life;
      const auto over = [&] {
        return entry.life != life || entry.state.load(std::memory_order_relaxed) == Entry::kDone;
      };
      if (flags & CBLK_ARESULT_BLOCKING) {
        Waiter waiter;
        waiter.kind = Waiter::kCommand;
        waiter.index = index;
        while (!over()) {
          const uint64_t late_at = entry.delivered ? kForever : entry.deadline_ns;
          if (wait_until(&waiter, late_at < deadline_ns ? late_at : deadline_ns, over) == 0 || deadline_ns < late_at)
            break;
          (void)expire(index);
        }
      } else if (!over() && !(flags & CBLK_ARESULT_NO_HARVEST)) {
        while (!leader_ && !over() && reap()) {}
        if (!over() && poll_clock_ns() >= entry.deadline_ns) (void)expire(index);
      }
      if (entry.life != life)
        result = -ENOMSG;  // its status is filled, or another thread fetched it
      else if (over())
        result = fetch(index, tag);
    }
  }
  unlock();
  if (result == 0) add(counters_.nothing_done);
  return result;
}

void Chunk::harvest() {
  lock_.lock();
  while (!leader_ && reap()) {}
  expire_late(poll_clock_ns());
  unlock();
}

uint64_t Chunk::oldest_done(bool harvests) {
  lock_.lock();
  if (harvests && fetchable_ && !leader_) (void)reap();
  if (harvests) expire_if_overtaken();
  const uint64_t sequence = done_ ? entries_[done_line_.oldest].sequence : kForever;
  unlock();
  return sequence;
}

uint64_t Chunk::oldest_active() {
  lock_.lock();
  const uint64_t sequence = active_line_.oldest == kNone ? kForever : entries_[active_line_.oldest].sequence;
  unlock();
  return sequence;
}

void Chunk::wakeups(Wakeups* out) {
  lock_.lock();
  if (in_ring_) context_->wakeups(out);
  if (backlog_count_ && backlog_blocked_)
    out->look_at(sys::now_ns() + kLostRetryNs);
  else if (backlog_count_ && !in_ring_)
    out->look_at(sys::now_ns() + kRetryNs);
  if (active_line_.oldest != kNone) out->look_at(entries_[active_line_.oldest].deadline_ns);
  unlock();
}

}  // namespace lunar::cblk
