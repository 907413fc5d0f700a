// SPDX-License-Identifier: Apache-2.0
// Fetching results: cblk_aresult, and the calls of groups and lists.
// Threading: any. Allocates nothing.
#include "cblk/wait.h"

#include <algorithm>

namespace lunar::cblk {

int64_t Chunk::fetch(uint32_t index, int* tag) {
  Entry& entry = commands_[index];
  const int64_t result = entry.result;
  *tag = entry.io.has_user_tag ? entry.io.user_tag : static_cast<int>(index);
  commands_.leave_fetchable(index);
  asynchronous(entry.io.op).leave_locked();
  give_free(index);
  if (commands_.fetchable() == 0) {
    waiters_.signal_all(Waiter::kAny);   // no command is left: ENOENT
    waiters_.signal_all(Waiter::kIdle);  // for a close
    if (finished_) finished_->tell();
  }
  return result;
}

// Reports a late command even while others complete: commands are checked in the order in which
// they began.
void Chunk::expire_if_overtaken() {
  if (commands_.oldest_active() == kNone) return;
  if (commands_.done() == 0 ||
      commands_[commands_.oldest_active()].sequence < commands_[commands_.oldest_done()].sequence)
    expire_late(poll_clock_ns());
}

int64_t Chunk::next_result(int* tag, int flags, uint64_t deadline_ns) {
  if (commands_.fetchable() == 0) return -ENOENT;
  if (flags & CBLK_ARESULT_BLOCKING) {
    Waiter waiter(Waiter::kAny);
    const auto over = [this] { return commands_.done() != 0 || commands_.fetchable() == 0; };
    while (!over()) {  // the oldest command becomes late first
      const Entry& oldest = commands_[commands_.oldest_active()];
      const uint64_t late_at = oldest.delivered ? kForever : oldest.deadline_ns;
      if (wait_until(&waiter, std::min(late_at, deadline_ns), over) == 0 || deadline_ns < late_at)
        break;
      expire_late(sys::now_ns());
    }
    if (commands_.done() > 1)
      // This thread takes no completion, so another must be woken for it.
      waiters_.signal_one(Waiter::kAny);
  } else if (commands_.done() == 0 && !leader_ && !(flags & CBLK_ARESULT_NO_HARVEST)) {
    (void)reap();
  }
  if (!(flags & CBLK_ARESULT_NO_HARVEST)) expire_if_overtaken();
  if (commands_.done() != 0) return fetch(commands_.oldest_done(), tag);
  if (commands_.fetchable() == 0) return -ENOENT;
  *tag = -1;
  return 0;
}

int64_t Chunk::result(int* tag, int flags, uint64_t deadline_ns, const Io* like) {
  if (inherited_.load(std::memory_order_relaxed)) return -EINVAL;
  lock_.lock();
  int64_t result;
  if (flags & CBLK_ARESULT_NEXT_TAG) {
    result = next_result(tag, flags, deadline_ns);
  } else {
    uint32_t index = kNone;
    result = like ? commands_.find_like(*tag, *like, &index)
                  : commands_.find_tag(*tag, (flags & CBLK_ARESULT_USER_TAG) != 0, &index);
    if (result == 0) {
      if (like && !like->has_user_tag) *tag = static_cast<int>(index);
      Entry& entry = commands_[index];
      const uint32_t life = entry.life;
      const auto over = [&] { return entry.life != life || entry.is(Entry::kDone); };
      if (flags & CBLK_ARESULT_BLOCKING) {
        Waiter waiter(Waiter::kCommand, &entry.waiters);
        while (!over()) {
          const uint64_t late_at = entry.delivered ? kForever : entry.deadline_ns;
          if (wait_until(&waiter, std::min(late_at, deadline_ns), over) == 0 ||
              deadline_ns < late_at)
            break;
          (void)expire(index);
        }
      } else if (!over() && !(flags & CBLK_ARESULT_NO_HARVEST)) {
        while (!leader_ && !over() && reap()) {}
        if (!over() && poll_clock_ns() >= entry.deadline_ns) (void)expire(index);
      }
      if (entry.life != life)
        result = -ENOMSG;  // its status was filled in, or another thread has fetched it
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
  if (harvests && commands_.fetchable() && !leader_) (void)reap();
  if (harvests) expire_if_overtaken();
  const uint64_t sequence =
      commands_.done() ? commands_[commands_.oldest_done()].sequence : kForever;
  unlock();
  return sequence;
}

uint64_t Chunk::oldest_active() {
  lock_.lock();
  const uint64_t sequence =
      commands_.oldest_active() == kNone ? kForever : commands_[commands_.oldest_active()].sequence;
  unlock();
  return sequence;
}

void Chunk::wakeups(Wakeups* out) {
  lock_.lock();
  if (in_ring_) context_->wakeups(out);
  if (commands_.backlog() && backlog_blocked_)
    out->look_at(sys::now_ns() + kLostRetryNs);
  else if (commands_.backlog() && !in_ring_)
    out->look_at(sys::now_ns() + kRetryNs);
  if (commands_.oldest_active() != kNone)
    out->look_at(commands_[commands_.oldest_active()].deadline_ns);
  unlock();
}

}  // namespace lunar::cblk
