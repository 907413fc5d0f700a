// SPDX-License-Identifier: Apache-2.0
// The log: where records lie. Space is cut into segments; records are appended to the open one, the *tail*.
//
//   segment   │ record │ record │ ...           │ unused │     free ─► open ─► sealed ─► (cleaned) retired ─► free
//   run       │ key of a large pair │ value ...            │ free ─► large ─────────────► retired ─► free
//
// How many units of a segment are live is counted: by whoever publishes a record and by whoever replaces or deletes one. Cleaning
// takes the sealed segment with the fewest, moves its live records to the tail (the store does that, as only the index knows which
// live) and retires it: it is free again when no reader is left that may look at it (epoch.h). kReserve segments are for cleaning
// alone, so that it can always begin.
//
// Large pairs lie in runs of neighbouring segments. Where no run is free, one is made: the window that is cheapest to empty is held
// back, and what lives in it moves.
// Threading: any. allocate is a spin lock for some instructions; what picks segments takes a mutex. May not: call the store.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "kv/budget.h"
#include "kv/epoch.h"
#include "kv/record.h"
#include "sys/thread.h"

namespace lunar::kv {

class Held {   // a mutex, without holding signals: no handler of ours runs here
 public:
  explicit Held(sys::Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Held() { mutex_.unlock(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  sys::Mutex& mutex_;
};

enum class SegmentState : uint8_t { kFree, kHeld, kOpen, kSealed, kLarge, kRetired };

struct Segment {
  std::atomic<uint32_t> live{0};      // units
  std::atomic<uint32_t> used{0};      // bytes, from its start, that records take
  std::atomic<uint32_t> filling{0};   // records in it that are not published yet
  std::atomic<SegmentState> state{SegmentState::kFree};
  uint64_t retired = 0;               // epoch. Under the mutex, as what follows
  uint64_t next_retired = 0;          // number + 1
};

class Log {
 public:
  static constexpr uint64_t kReserve = 3, kSegmentsMin = 16;
  static constexpr uint64_t kSegmentBytesMin = 64 * kKiB, kSegmentBytesMax = kMiB;

  // All of it is charged to the budget at once, and mapped lazily. 0, -EINVAL (larger than an address reaches), -ENOMEM.
  [[nodiscard]] int open(uint64_t bytes, Budget* budget, Epochs* epochs);
  void close();

  // Room for a record. It counts as live from now on, and its segment is not cleaned before published(). -EAGAIN: no free segment but
  // the reserve (or, cleaning: none at all).
  [[nodiscard]] int allocate(uint64_t units, bool cleaning, Address* out);
  void published(Address address) { of(address).filling.fetch_sub(1, std::memory_order_release); }
  void add_live(Address address, uint64_t units) { of(address).live.fetch_add(static_cast<uint32_t>(units), std::memory_order_relaxed); }
  void drop_live(Address address, uint64_t units) { of(address).live.fetch_sub(static_cast<uint32_t>(units), std::memory_order_relaxed); }
  Record* at(Address address) const { return reinterpret_cast<Record*>(memory_ + address.value * kUnitBytes); }
  uint64_t segment_of(Address address) const { return address.value * kUnitBytes >> segment_bits_; }
  // A record larger than that lies in a run, unless it is a descriptor.
  uint64_t inline_units_max() const { return segment_bytes() / 16 / kUnitBytes; }

  // Runs. take: first segment of `count` free neighbours, or -EAGAIN. retire: may be used again when nobody looks any more.
  [[nodiscard]] int take_run(uint64_t count, uint64_t* first);
  void retire(uint64_t first, uint64_t count);
  char* segment_memory(uint64_t number) const { return memory_ + (number << segment_bits_); }

  // What to clean next: a sealed segment, nothing in it unpublished. -ENOSPC: none has an eighth to give; -EAGAIN: one may have, soon.
  [[nodiscard]] int victim(uint64_t* number);
  // The window of `count` neighbours that is cheapest to empty: what of it is free is held back, and what becomes free in it from now on.
  // -ENOSPC when what lives in any cannot be put elsewhere. One at a time, until take_held() makes a run of it (all of it is held
  // back: see held()) or release_window() gives it up.
  [[nodiscard]] int hold_window(uint64_t count, uint64_t* first);
  bool held() const;
  void take_held();
  void release_window();
  SegmentState state(uint64_t number) const { return segments_[number].state.load(std::memory_order_acquire); }
  uint32_t used(uint64_t number) const { return segments_[number].used.load(std::memory_order_relaxed); }
  uint32_t live(uint64_t number) const { return segments_[number].live.load(std::memory_order_relaxed); }
  bool filling(uint64_t number) const { return segments_[number].filling.load(std::memory_order_acquire) != 0; }

  // Retired segments that nobody looks at any more become free. Returns how many are free.
  uint64_t reclaim();
  bool any_retired() const { return retired_.load(std::memory_order_relaxed) != 0; }
  // The open segment is sealed, so that it can be cleaned.
  void seal_tail();

  uint64_t segment_bytes() const { return uint64_t{1} << segment_bits_; }
  uint64_t segments() const { return count_; }
  uint64_t bytes() const { return count_ << segment_bits_; }
  uint64_t bytes_in_use() const { return (count_ - free_.load(std::memory_order_relaxed)) << segment_bits_; }

 private:
  Segment& of(Address address) { return segments_[segment_of(address)]; }
  int roll(bool cleaning);
  bool take_one(bool cleaning, uint64_t* number);
  bool window_may_go(uint64_t first, uint64_t count, uint64_t* live) const;

  char* memory_ = nullptr;
  Segment* segments_ = nullptr;
  unsigned segment_bits_ = 0;
  uint64_t count_ = 0;
  Budget* budget_ = nullptr;
  Epochs* epochs_ = nullptr;

  alignas(64) sys::SpinLock tail_lock_;
  uint64_t tail_ = 0, tail_used_ = 0;      // open segment and bytes used in it; tail_used_ == segment_bytes(): none is open
  bool tail_reserved_ = false;             // opened out of the reserve: for cleaning alone, until there is more free again
  alignas(64) sys::Mutex mutex_;           // state changes
  std::atomic<uint64_t> free_{0}, retired_{0};
  uint64_t next_free_ = 0;                 // where to look first
  uint64_t first_retired_ = 0, last_retired_ = 0;   // number + 1, oldest first
  uint64_t window_ = 0, window_count_ = 0;          // held back; 0: none
};

}  // namespace lunar::kv
