// SPDX-License-Identifier: Apache-2.0
// Where a record goes, and which segment is emptied next. Both decide how much cleaning has to
// move.
//
// Time in the log is the number of units set. Each segment knows the mean time at which its records
// were set. A value that was overwritten soon will be overwritten soon again. So the record of a
// set goes to the tail for the age of the record that it replaces, and a record that cleaning moves
// goes to the tail for the age that it has reached. Each segment then holds records that die at
// about the same time.
// Of the segments that gain enough, cleaning takes the one with the most dead space per live byte,
// times the root of the span of its tail. The span is the time in which a segment of that tail
// dies, as measured on segments that were cleaned. A segment with a short span gains more by itself
// if it is left alone. If all values are overwritten alike, all spans are equal, and the segment
// with the fewest live units is taken. (runtime/DECISIONS.md has figures of other rules.)
// Threading: as in record_log.h.
#include <errno.h>

#include <algorithm>
#include <cmath>

#include "kv/record_log.h"

namespace lunar::kv {
namespace {

// The first tail is for ages up to a share of the log. Each next tail is for ages up to `times` as
// much. The last is for all older records, and for new keys.
struct Ages {
  uint64_t first_share, times;
};
constexpr Ages kAgesOfFew{128, 8}, kAgesOfAll{1024, 3};

// Segments. In a smaller log, so many tails would take too much of it.
constexpr uint64_t kLeastForFew = 128, kLeastForAll = 512;

constexpr uint64_t kStatesShare = 24;  // of the segments, at most, so that states cost less

}  // namespace

// Batches follow one another in one tail. Each tail takes a frame, and at least half of the frames
// must be left for other segments.
unsigned Log::tail_count() const {
  if (commits() || count_ < kLeastForFew) return 1;
  return count_ < kLeastForAll || (device_ && frame_count_ < 2 * kTails) ? kTailsFew : kTails;
}

unsigned Log::tail_for(Address before) const {
  const unsigned last = tail_count() - 1;
  if (before.value == 0) return last;
  const Ages& ages = last + 1 == kTails ? kAgesOfAll : kAgesOfFew;
  const uint64_t set_at = segments_[segment_of(before)].set_at.load(std::memory_order_relaxed);
  const uint64_t age = clock_.load(std::memory_order_relaxed) - set_at;
  uint64_t most = bytes() / kUnitBytes / ages.first_share;
  unsigned tail = 0;
  while (tail < last && age >= most) {
    most *= ages.times;
    ++tail;
  }
  return tail;
}

// Adds appended records to the mean time of a segment. before: the record that was moved; {}: a
// set, now.
// pre: the tails' lock
void Log::note_set(Segment& segment, Address before, uint64_t units) {
  const uint64_t when = before.value ? of(before).set_at.load(std::memory_order_relaxed)
                                     : clock_.load(std::memory_order_relaxed);
  const double all = static_cast<double>(segment.used.load(std::memory_order_relaxed)) / kUnitBytes;
  const auto mean = static_cast<double>(segment.set_at.load(std::memory_order_relaxed));
  const double share = static_cast<double>(units) / all;
  segment.set_at.store(static_cast<uint64_t>(mean + (static_cast<double>(when) - mean) * share),
                       std::memory_order_relaxed);
}

// Segments that must be free or held in a persistent store. A state of S segments, saved whenever R
// of N segments are held, costs S / R of the bytes written. Holding back R costs as much as a store
// that is fuller by R / N. At 80% full, the sum is about least here. A store that holds little has
// a small state, so it holds little back.
uint64_t Log::reserve_for_states() const {
  const double state =
      static_cast<double>(state_bytes_(state_owner_)) / static_cast<double>(segment_bytes());
  const auto wanted = static_cast<uint64_t>(std::sqrt(state * static_cast<double>(count_)) / 2);
  return std::max(std::min(wanted, count_ / kStatesShare), kReserve);
}

// How much cleaning gains by emptying the segment.
// pre: the mutex
double Log::worth(uint64_t number) const {
  const uint64_t whole = segment_bytes() / kUnitBytes, units = live(number);
  const double dead = static_cast<double>(whole - units) / (static_cast<double>(units) + 0.5);
  return dead * std::sqrt(spans_[segments_[number].tail]);
}

// Adds the age of a segment that is about to be emptied to the span of its tail, with a weight of
// 1/16.
// pre: the mutex
void Log::note_span(uint64_t number) {
  const double whole = static_cast<double>(segment_bytes() / kUnitBytes),
               dead = whole - live(number);
  const auto age =
      static_cast<double>(clock_.load(std::memory_order_relaxed) - segments_[number].opened_at);
  double& span = spans_[segments_[number].tail];
  span += ((age + 1) * whole / std::max(dead, whole / 8) - span) / 16;
}

// Examines kSeenMost segments per call, or more until one can be cleaned. Searching a very large
// log in full gains almost nothing.
int Log::victim(uint64_t* number) {
  MutexLock guard(mutex_);
  const uint64_t most = segment_bytes() / kUnitBytes / 8 * 7;
  const uint64_t first = next_victim_;
  double best = -1;
  bool soon = false;
  for (uint64_t seen = 0; seen < count_; ++seen) {
    const uint64_t i = (first + seen) % count_;
    if (seen != 0 && seen % kSeenMost == 0 && best >= 0) {
      next_victim_ = i;
      break;
    }
    const bool may_go =
        state(i) == SegmentState::kSealed || (state(i) == SegmentState::kDamaged && live(i) == 0);
    if (!may_go || live(i) > most) continue;
    if (filling(i)) {
      soon = true;
      continue;
    }
    const double own = worth(i);
    if (own > best) {
      best = own;
      *number = i;
    }
  }
  if (best < 0) return soon ? -EAGAIN : -ENOSPC;
  note_span(*number);
  return 0;
}

}  // namespace lunar::kv
