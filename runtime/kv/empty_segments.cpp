// SPDX-License-Identifier: Apache-2.0
// Segments in which no record lives become free at once, without cleaning, and a store in memory
// gives their memory back to the kernel. A store in memory also cleans segments while all of them
// hold more than twice the live bytes. So a delete or set moves less than it left dead, and at most
// half a segment.
//
//   last record deleted ──► retired ──► (readers have left) ──► free, touched ──► free, no memory
//
// A log in memory takes the first free segment, so touched segments are used again first. Of the
// touched free segments, the last ones lose their memory, beyond a slack that spares a store that
// overwrites from page faults. A store with durable sets leaves empty segments to cleaning, because
// a delete has to be durable before its segment is reused.
// Threading: as in store.h and record_log.h.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "kv/store.h"
#include "sys/mem.h"

namespace lunar::kv {
namespace {

// The slack of touched free segments: so many, plus a share of the segments in use.
constexpr uint64_t kSlackSegments = 8, kSlackShare = 8;
constexpr unsigned kShedMost = 2;  // segments that lose their memory when one becomes free

}  // namespace

uint64_t Log::bytes_in_use() const {
  uint64_t unused =
      free_.load(std::memory_order_relaxed) + retired_.load(std::memory_order_relaxed);
  {
    sys::Locked lock(tail_lock_);
    for (const Tail& tail : tails_) unused += tail.open && records(tail.segment) == 0 ? 1 : 0;
  }
  return unused < count_ ? (count_ - unused) << segment_bits_ : 0;
}

bool Log::wastes_memory() const {
  const uint64_t unused = free_.load(std::memory_order_relaxed) +
                          retired_.load(std::memory_order_relaxed) + tail_count();
  return !device_ && unused < count_ && (count_ - unused) << segment_bits_ > 2 * bytes_live();
}

// pre: the mutex
bool Log::is_empty(uint64_t number) const {
  const SegmentState now = state(number);
  return (now == SegmentState::kSealed || now == SegmentState::kDamaged) && records(number) == 0 &&
         !filling(number);
}

void Log::retire_empty(uint64_t number) {
  const uint64_t epoch = epochs_->retire();
  MutexLock guard(mutex_);
  if (is_empty(number)) retire_locked(number, epoch);
}

void Log::retire_all() {
  seal_tails();
  const uint64_t epoch = epochs_->retire();
  MutexLock guard(mutex_);
  for (uint64_t i = 0; i < count_; ++i) {
    const SegmentState now = state(i);
    if (now != SegmentState::kSealed && now != SegmentState::kDamaged) continue;
    segments_[i].records.store(0, std::memory_order_relaxed);
    retire_locked(i, epoch);
  }
}

// pre of these: the mutex
void Log::note_taken(uint64_t number) {
  if (segments_[number].touched) --touched_free_;
  segments_[number].touched = true;
}

void Log::note_free(uint64_t number) {
  if (device_) return;
  ++touched_free_;
  next_free_ = std::min(next_free_, number);
  touched_end_ = std::max(touched_end_, number + 1);
  const uint64_t slack =
      kSlackSegments + (count_ - free_.load(std::memory_order_relaxed)) / kSlackShare;
  unsigned shed = 0;
  for (unsigned seen = 0; shed < kShedMost && seen < kSeenMost && touched_free_ > slack; ++seen) {
    Segment& last = segments_[--touched_end_];
    if (!last.touched || last.state.load(std::memory_order_relaxed) != SegmentState::kFree)
      continue;
    (void)sys::advise(last.memory.load(std::memory_order_relaxed), segment_bytes(), MADV_DONTNEED);
    last.touched = false;
    --touched_free_;
    ++shed;
  }
}

// Segments that a state refers to must stay while it is saved. The saving thread has the cleaning
// mutex.
void Store::give_back_empty(uint64_t segment) {
  if (log_.commits() || (log_.state(segment) == SegmentState::kOpen && !log_.any_retired())) return;
  const bool locked = cleaning_.try_lock();
  if (locked || !persistent_) log_.retire_empty(segment);
  if (!locked) return;
  log_.reclaim();
  cleaning_.unlock();
}

void Store::give_back_dead() {
  if (!log_.wastes_memory() || !cleaning_.try_lock()) return;
  log_.reclaim();
  uint64_t segment;
  if (log_.wastes_memory() && log_.victim(&segment) == 0 && clean(segment) == 0) log_.reclaim();
  cleaning_.unlock();
}

int Store::clear() {
  if (persistent_) return -EOPNOTSUPP;
  MutexLock cleaning(cleaning_);
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) shards_[i].lock.lock();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    shards_[i].index.clear();
    shards_[i].pieces.clear();
    shards_[i].pair_bytes.store(0, std::memory_order_relaxed);
  }
  note_cleared();
  clears_.fetch_add(1, std::memory_order_relaxed);
  log_.retire_all();
  full_at_ = 0;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) shards_[i].lock.unlock();
  log_.reclaim();
  return 0;
}

}  // namespace lunar::kv
