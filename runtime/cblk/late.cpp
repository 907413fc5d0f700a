// SPDX-License-Identifier: Apache-2.0
// Commands that timed out: see chunk.h, time limit.
// Threading: under the chunk's lock, but for wait_for_lost. May not: touch a caller's buffer.
#include <errno.h>
#include <time.h>

#include "cblk/wait.h"

namespace lunar::cblk {
namespace {

constexpr uint64_t kCoarseNs = 10'000'000;         // the greatest lag of the coarse clock
constexpr uint64_t kCoarseFromNs = 1'000'000'000;  // the least limit at which the lag is harmless

// The coarse clock takes a few nanoseconds, the other one twenty, and every command reads it.
uint64_t coarse_now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

// *left: the time until the deadline.
uint64_t Chunk::deadline_of_a_new_one(uint64_t* left) const {
  const bool coarse = timeout_ns_ >= kCoarseFromNs;
  *left = coarse ? timeout_ns_ + kCoarseNs : timeout_ns_;
  if (timeout_ns_ == 0) return kForever;
  return *left + (coarse ? coarse_now_ns() : sys::now_ns());
}

uint64_t Chunk::deadline_of_a_new_one() const {
  uint64_t left;
  return deadline_of_a_new_one(&left);
}

// The clock of a polling thread. A thread that slept until a deadline uses the clock that it slept
// by.
uint64_t Chunk::poll_clock_ns() const {
  if (timeout_ns_ == 0) return 0;
  return timeout_ns_ < kCoarseFromNs ? sys::now_ns() : coarse_now_ns();
}

// Fails an active command with ETIMEDOUT. False: its completion is being delivered.
bool Chunk::expire(uint32_t index) {
  Entry& entry = commands_[index];
  if (entry.delivered || !entry.is(Entry::kActive)) return false;
  if (commands_.take_from_backlog(index)) {  // it was never submitted to the device
    if (entry.io.cached_write)
      cache_.end_write(static_cast<uint64_t>(entry.io.lba), entry.io.blocks);
    bounces_.give(&entry.io.bounce);
  } else {
    entry.lost = true;
    ++lost_;
    if (entry.io.op != Op::kRead)
      late_->add(&entry.late, static_cast<uint64_t>(entry.io.lba), entry.io.blocks);
  }
  add(counters_.timeouts);
  report(index, -ETIMEDOUT);
  return true;
}

// Expires the late commands from `oldest` on. They are the first ones, because all have the same
// limit.
void Chunk::expire_late_from(uint32_t oldest, uint64_t now_ns) {
  for (uint32_t i = oldest, newer; i != kNone && now_ns >= commands_[i].deadline_ns; i = newer) {
    newer = commands_[i].newer;
    (void)expire(i);
  }
}

void Chunk::expire_late(uint64_t now_ns) { expire_late_from(commands_.oldest_active(), now_ns); }

// Expires late commands with the caller's status. Returns when the next one may be late; later
// commands have later deadlines.
uint64_t Chunk::expire_late_background() {
  const uint64_t of_a_new_one = deadline_of_a_new_one();
  if (of_a_new_one == kForever) return kForever;
  const uint64_t now = sys::now_ns();
  expire_late_from(commands_.oldest_background(), now);
  uint32_t next = commands_.oldest_background();
  while (next != kNone && now >= commands_[next].deadline_ns)
    next = commands_[next].newer;  // its completion is being delivered
  return next != kNone && commands_[next].deadline_ns < of_a_new_one ? commands_[next].deadline_ns
                                                                     : of_a_new_one;
}

// Called when the device has released a lost command.
void Chunk::end_lost(Entry& entry) {
  entry.lost = false;
  --lost_;
  late_->remove(&entry.late);
  if (entry.io.cached_write) cache_.end_write(static_cast<uint64_t>(entry.io.lba), entry.io.blocks);
  bounces_.give(&entry.io.bounce);
}

// Takes back I/O that the device has released, of the lanes and of siblings. A blocked thread calls
// this, because no other thread may check.
void Chunk::take_back_late() {
  (void)lanes_.sweep();
  for (unsigned i = 0; siblings_ && i < siblings_->count; ++i) {
    Chunk& other = *siblings_->chunk[i];
    if (&other == this) continue;
    (void)other.lanes_.sweep();
    other.lock_.lock();
    if (!other.leader_) (void)other.take_completions();
    other.unlock();
  }
}

// Waits for late writes of the same blocks, for blocking I/O, which has no backlog. 0, or
// -ETIMEDOUT.
int Chunk::wait_for_lost(const Io& io, Transfer* transfer) {
  transfer->left_ns = 0;
  while (blocked_by_late(io)) {
    take_back_late();
    lock_.lock();
    while (!leader_ && reap()) {}
    unlock();
    if (!blocked_by_late(io)) break;
    if (sys::now_ns() >= transfer->deadline_ns) return -ETIMEDOUT;
    sys::sleep_ns(kLostRetryNs);
  }
  return 0;
}

}  // namespace lunar::cblk
