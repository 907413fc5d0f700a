// SPDX-License-Identifier: Apache-2.0
// The log: see record_log.h.
// Threading: as there. Locks are taken in the order mutex_, tail_lock_.
#include "kv/record_log.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/mem.h"

namespace lunar::kv {

// Maps memory for records in huge pages. With small pages, the page table walk to a random record
// costs as much as copying 4 KiB. All of it is charged in advance, so huge pages take no memory
// outside the budget.
char* Log::map_records(uint64_t bytes) {
  void* memory = map_private(bytes, ForkPolicy::kInherit);
  if (memory) (void)sys::advise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

constexpr unsigned kSmallBits = 17;  // a segment of 128 KiB

// Segments of a log on a device must be small, because a frame is a segment and several frames are
// needed, and because with about 1,024 segments the reserve for cleaning is a small share
// (runtime/DECISIONS.md). They must not be too small: a pair above a 16th of a segment lies in
// pieces.
unsigned Log::segment_bits_for(const LogPlace& place, uint64_t limit) {
  if (place.segment_bits) return place.segment_bits;
  const uint64_t bytes = std::max(place.bytes, place.bytes_most / 16);
  const auto fits = [&](unsigned bits) {
    const uint64_t least = place.device && bits > kSmallBits ? kSegmentsWanted : 4 * kSegmentsMin;
    return bytes >> bits >= least && (!place.device || limit >> bits >= 4 * kFramesMin);
  };
  unsigned bits = 16;
  while (uint64_t{1} << bits < kSegmentBytesMax && fits(bits + 1)) ++bits;
  return bits;
}

// A number that cannot be guessed. If getrandom is refused (seccomp), it is derived from the random
// bytes that the kernel gave the process at its start.
static uint64_t chance_number() {
  uint64_t number = 0;
  if (sys::random_bytes(&number, sizeof number) == 0) return number;
  const auto* given = reinterpret_cast<const void*>(getauxval(AT_RANDOM));
  return part_checksum(given, given != nullptr ? 16 : 0, sys::now_ns(), 0);
}

int Log::open(const LogPlace& place, Budget* budget, Epochs* epochs) {
  const uint64_t bytes = place.bytes;
  Device* device = place.device;
  if (bytes > kLogBytesMax) return -EINVAL;
  // Random, so that no life occurs twice in a persistent store. Lives are also ids of large pairs,
  // so keys cannot be chosen to collide with those of pieces.
  lives_.store(chance_number() >> 2, std::memory_order_relaxed);
  budget_ = budget;
  epochs_ = epochs;
  device_ = device;
  device_offset_ = place.offset;
  segment_bits_ = segment_bits_for(place, budget->limit());
  count_ = device ? bytes >> segment_bits_ : (bytes + segment_bytes() - 1) >> segment_bits_;
  const uint64_t most =
      std::min(place.bytes_most >> segment_bits_, budget->limit() / kTablesShare / sizeof(Segment));
  if (count_ < kSegmentsMin) {
    if (device && most < kSegmentsMin) return -ENOSPC;
    count_ = kSegmentsMin;
  }
  count_most_ = std::max<uint64_t>(count_, most);
  if (!budget->take(count_most_ * sizeof(Segment))) return -ENOMEM;
  segments_ =
      static_cast<Segment*>(map_private(count_most_ * sizeof(Segment), ForkPolicy::kInherit));
  if (!segments_) return -ENOMEM;
  for (uint64_t i = 0; i < count_; ++i) new (&segments_[i]) Segment;
  free_.store(count_, std::memory_order_relaxed);
  for (Tail& tail : tails_) tail.used = segment_bytes();
  // Restored records count as set long ago.
  clock_.store(2 * bytes / kUnitBytes, std::memory_order_relaxed);
  for (double& span : spans_) span = static_cast<double>(bytes) / kUnitBytes;
  if (device) return open_frames(budget->limit(), place.read_only);
  if (!budget->take(count_ << segment_bits_)) return -ENOMEM;
  memory_ = map_records(count_ << segment_bits_);
  if (!memory_) return -ENOMEM;
  for (uint64_t i = 0; i < count_; ++i)
    segments_[i].memory.store(memory_ + (i << segment_bits_), std::memory_order_relaxed);
  return 0;
}

void Log::close() {
  cache_.close();
  bodies_.close();
  if (frames_memory_) unmap_private(frames_memory_, frames_mapped_);
  if (memory_) unmap_private(memory_, count_ << segment_bits_);
  if (segments_) unmap_private(segments_, count_most_ * sizeof(Segment));
  memory_ = frames_memory_ = nullptr;
  segments_ = nullptr;
}

// On a device only the tail's newest batch may be changed, because other records may be on their
// way to the device. write_out() and write_uncommitted() run after the batch was sealed or closed,
// see `filling`, and wait.
bool Log::begin_change(Address address) {
  Segment& segment = of(address);
  const uint32_t batch = segment.batch.load(std::memory_order_relaxed);
  if ((address.value * kUnitBytes & (segment_bytes() - 1)) < (batch & ~7u)) return false;
  std::atomic<uint32_t>& filling = segment.filling[batch & 1];
  filling.fetch_add(1, std::memory_order_seq_cst);
  if (!device_ || (segment.state.load(std::memory_order_seq_cst) == SegmentState::kOpen &&
                   segment.batch.load(std::memory_order_seq_cst) == batch))
    return true;
  filling.fetch_sub(1, std::memory_order_release);
  return false;
}

uint64_t Log::block_padding(uint64_t end, uint64_t bytes) const {
  const uint64_t padding = round_up(end, media::kBlockBytes) - end;
  const bool worth_it = on_device() && padding <= bytes / kPaddingShare;
  return worth_it && bytes + padding <= inline_units_max() * kUnitBytes ? padding : 0;
}

// Finds room in a tail for a record, and for its body behind the other bodies. Ends the open group
// if that has no room.
// pre, as of the next: the tails' lock
bool Log::find_room(Tail& tail, uint64_t bytes, uint64_t body_bytes) {
  const bool group = tail.heads_end != 0;
  if (group && tail.used + bytes + sizeof(Record) <= tail.heads_end &&
      tail.bodies_end + body_bytes <= segment_bytes())
    return true;
  const uint64_t from = group ? tail.bodies_end : tail.used;
  const uint64_t heads_end =
      body_bytes ? round_up(from + bytes + sizeof(Record), media::kBlockBytes) : from + bytes;
  if (heads_end + body_bytes > segment_bytes()) return false;
  end_group(tail);
  if (body_bytes) tail.heads_end = tail.bodies_end = heads_end;
  return true;
}

// Ends the open group with a mark. Each record of the group has left room for it.
void Log::end_group(Tail& tail) {
  if (tail.heads_end == 0) return;
  Segment& segment = segments_[tail.segment];
  auto* mark =
      reinterpret_cast<Record*>(segment.memory.load(std::memory_order_relaxed) + tail.used);
  const uint64_t bytes = tail.heads_end - tail.used;
  fill_head(mark, 0, RecordType::kMark, bytes / kUnitBytes, {}, tail.bodies_end - tail.heads_end);
  memset(static_cast<void*>(mark + 1), 0, bytes - sizeof(Record));
  tail.used = tail.bodies_end;
  tail.heads_end = tail.bodies_end = 0;
  segment.used.store(static_cast<uint32_t>(tail.used), std::memory_order_relaxed);
}

bool Log::append(Tail& tail, uint64_t units, bool cleaning, Address before, Address* out,
                 uint64_t* padding, BodyRoom* body) {
  const uint64_t bytes = units * kUnitBytes, body_bytes = body ? body->bytes : 0;
  sys::Locked lock(tail_lock_);
  if ((tail.reserved && !cleaning) || !find_room(tail, bytes, body_bytes)) return false;
  Segment& segment = segments_[tail.segment];
  *out = Address{((tail.segment << segment_bits_) + tail.used) / kUnitBytes};
  const bool group = tail.heads_end != 0;
  const uint64_t more = padding && !group ? block_padding(tail.used + bytes, bytes) : 0;
  if (more) *padding = more / kUnitBytes;
  tail.used += bytes + more;
  if (body_bytes) body->block = static_cast<uint32_t>(tail.bodies_end / media::kBlockBytes);
  tail.bodies_end += body_bytes;
  const uint64_t live = units + (more + body_bytes) / kUnitBytes;
  segment.used.store(static_cast<uint32_t>(group ? tail.bodies_end : tail.used),
                     std::memory_order_relaxed);
  if (!cleaning)
    clock_.store(clock_.load(std::memory_order_relaxed) + units + body_bytes / kUnitBytes,
                 std::memory_order_relaxed);
  note_set(segment, cleaning ? before : Address{}, live);
  add_live(*out, live);
  segment.filling[segment.batch.load(std::memory_order_relaxed) & 1].fetch_add(
      1, std::memory_order_relaxed);
  return true;
}

// If no segment is free, uses the room of the other tails.
int Log::allocate(uint64_t units, bool cleaning, Address before, Address* out, uint64_t* padding,
                  BodyRoom* body) {
  Tail& wanted = tails_[tail_for(before)];
  do {
    if (append(wanted, units, cleaning, before, out, padding, body)) return 0;
  } while (roll(wanted, cleaning) == 0);
  for (Tail& other : tails_)
    if (append(other, units, cleaning, before, out, padding, body)) return 0;
  return -EAGAIN;
}

// Makes a free segment the tail, unless another thread did so meanwhile.
int Log::roll(Tail& tail, bool cleaning) {
  MutexLock guard(mutex_);
  {
    sys::Locked lock(tail_lock_);
    if (tail.reserved && !cleaning) return -EAGAIN;
    // The most bytes that any record takes, with the rest of the block before its body.
    const uint64_t most =
        std::max(inline_units_max() * kUnitBytes, body_bytes_max() + 2 * media::kBlockBytes);
    if (std::max(tail.used, tail.bodies_end) + most <= segment_bytes()) return 0;
  }
  uint64_t number;
  if (!take_one(cleaning, &number)) return -EAGAIN;
  if (!cleaning) taken_.fetch_add(1, std::memory_order_relaxed);
  sys::Locked lock(tail_lock_);
  seal_locked(tail);
  segments_[number].live.store(0, std::memory_order_relaxed);
  segments_[number].records.store(0, std::memory_order_relaxed);
  segments_[number].written.store(false, std::memory_order_relaxed);
  segments_[number].batch.store(0, std::memory_order_relaxed);
  segments_[number].durable = 0;
  segments_[number].opened_at = clock_.load(std::memory_order_relaxed);
  segments_[number].tail = static_cast<unsigned>(&tail - tails_);
  segments_[number].state.store(SegmentState::kOpen, std::memory_order_seq_cst);
  tail = {.segment = number,
          .used = first_at(number),
          .open = true,
          .reserved = cleaning && !room_for_writers(0)};
  if (commits()) open_log_segment(number);
  return 0;
}

// pre: the mutex, the tails' lock
void Log::seal_locked(Tail& tail) {
  const uint64_t number = tail.segment;
  if (!tail.open) return;
  end_group(tail);
  if (commits() && !finish_batch())
    segments_[number].used.store(used_durable(number), std::memory_order_relaxed);
  segments_[number].state.store(SegmentState::kSealed, std::memory_order_seq_cst);
  tail = {.used = segment_bytes()};
  if (!state_bytes_ && is_empty(number)) retire_locked(number, epochs_->retire());
}

void Log::seal_tails() {
  MutexLock guard(mutex_);
  sys::Locked lock(tail_lock_);
  // A segment without a batch would end the log.
  if (commits() && tail_.open && used_durable(tail_.segment) == first_at(tail_.segment) &&
      !any_in_batch())
    return;
  for (Tail& tail : tails_) seal_locked(tail);
}

// pre: the mutex
bool Log::take_one(bool cleaning, uint64_t* number) {
  note_next_state();
  if (ahead() != Ahead::kNothing) cleaning_wanted_.store(true, std::memory_order_relaxed);
  if (cleaning ? free_.load(std::memory_order_relaxed) <= state_reserve() : !room_for_writers(1))
    return false;
  if (!cleaning && log_is_long()) return false;
  for (uint64_t i = 0; i < count_; ++i) {
    const uint64_t at = (next_free_ + i) % count_;
    if (state(at) != SegmentState::kFree) continue;
    if (commits()) return take_announced(cleaning, at, number);
    segments_[at].life.store(new_life(), std::memory_order_release);
    if (device_ && !take_frame(cleaning, at)) return false;
    next_free_ = at + 1;
    free_.fetch_sub(1, std::memory_order_relaxed);
    note_taken(at);
    *number = at;
    return true;
  }
  return false;
}

uint64_t Log::segments_ahead() const { return std::clamp<uint64_t>(count_ / 64, 1, kAheadMost); }

// The step that a writer does with each set when writers will soon have to wait for room.
Log::Ahead Log::ahead() const {
  const uint64_t free = free_.load(std::memory_order_relaxed), early = segments_ahead();
  if (free + held() <= reserve() + early) return Ahead::kClean;
  return held() > held_wanted() && free <= free_reserve() + early ? Ahead::kSave : Ahead::kNothing;
}

// The delay grows as less room is left, so that writers are no faster than cleaning, and none waits
// for a whole segment.
uint64_t Log::delay_ns() const {
  const uint64_t early = segments_ahead(), room = free_.load(std::memory_order_relaxed) + held();
  const uint64_t left = room > reserve() ? room - reserve() : 0;
  return left < early ? (early - left) * kDelayMostNs / early : 0;
}

// Computes the reserve for states. It follows the size of the index, so it is computed whenever a
// segment is taken.
// pre: the mutex
void Log::note_next_state() {
  if (!state_bytes_) return;
  // For the next state; if that is larger than the last one, also for the difference, which the
  // state after it needs.
  const uint64_t one = state_bytes_(state_owner_) / media::link_room(segment_bytes()) + 2;
  state_reserve_.store(one + (one > links_ ? one - links_ : 0), std::memory_order_relaxed);
  cleaning_reserve_.store(reserve_for_states(), std::memory_order_relaxed);
  note_whether_state_is_wanted();
}

// pre: the mutex
void Log::note_whether_state_is_wanted() {
  const uint64_t gain = held() + retired_.load(std::memory_order_relaxed);
  const bool room_ends =
      gain >= count_ / 16 && free_.load(std::memory_order_relaxed) <= reserve() + count_ / 32;
  bool log_grows = false;
  if (commits()) {
    const uint64_t most = log_segments_most();
    log_grows = opened_.load(std::memory_order_relaxed) >= most - most / 4;
  }
  if (room_ends || log_grows) state_wanted_.store(true, std::memory_order_relaxed);
}

// pre: the mutex
void Log::retire_locked(uint64_t number, uint64_t epoch) {
  Segment& segment = segments_[number];
  segment.state.store(SegmentState::kRetired, std::memory_order_release);
  live_units_.fetch_sub(segment.live.exchange(0, std::memory_order_relaxed),
                        std::memory_order_relaxed);
  segment.retired = epoch;
  segment.next_retired = 0;
  if (last_retired_)
    segments_[last_retired_ - 1].next_retired = number + 1;
  else
    first_retired_ = number + 1;
  last_retired_ = number + 1;
  retired_.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Log::reclaim() {
  MutexLock guard(mutex_);
  uint64_t safe_epoch = 0;
  while (first_retired_) {
    const uint64_t number = first_retired_ - 1;
    Segment& segment = segments_[number];
    if (segment.retired > safe_epoch && !epochs_->safe(segment.retired)) break;
    safe_epoch = segment.retired;
    first_retired_ = segment.next_retired;
    if (!first_retired_) last_retired_ = 0;
    segment.used.store(0, std::memory_order_relaxed);
    if (device_) free_frame_of(number);
    retired_.fetch_sub(1, std::memory_order_relaxed);
    if (segment.saved) {
      segment.state.store(SegmentState::kHeld, std::memory_order_release);
      held_.fetch_add(1, std::memory_order_relaxed);
    } else {
      give_back(number);
    }
  }
  if (room_for_writers(1)) {
    sys::Locked lock(tail_lock_);
    for (Tail& tail : tails_) tail.reserved = false;
  }
  return free_.load(std::memory_order_relaxed);
}

bool Log::has_room() {
  if (log_is_long() || frames() != Frames::kReady) return false;
  MutexLock guard(mutex_);
  if (!room_for_writers(1)) return false;
  sys::Locked lock(tail_lock_);
  for (Tail& tail : tails_) tail.reserved = false;
  return true;
}

// pre: the mutex
void Log::give_back(uint64_t number) {
  if (state(number) == SegmentState::kState) --links_;
  segments_[number].saved = false;
  segments_[number].state.store(SegmentState::kFree, std::memory_order_release);
  free_.fetch_add(1, std::memory_order_relaxed);
  note_free(number);
}

// The unused end of a segment does not count as dead space.
int Log::poor_victim(uint64_t* number) {
  MutexLock guard(mutex_);
  uint64_t dead = 0, best = segment_bytes() / kUnitBytes / 64 - 1;
  for (uint64_t i = 0; i < count_; ++i) {
    if (state(i) != SegmentState::kSealed || filling(i)) continue;
    const uint64_t own = used(i) / kUnitBytes > live(i) ? used(i) / kUnitBytes - live(i) : 0;
    dead += own;
    if (own > best) {
      best = own;
      *number = i;
    }
  }
  return best >= segment_bytes() / kUnitBytes / 64 && dead * kUnitBytes > 2 * segment_bytes()
             ? 0
             : -ENOSPC;
}

void Log::set_damaged(uint64_t number) {
  MutexLock guard(mutex_);
  if (state(number) == SegmentState::kSealed)  // else it has been emptied meanwhile
    segments_[number].state.store(SegmentState::kDamaged, std::memory_order_release);
}

bool Log::retry_damaged() {
  MutexLock guard(mutex_);
  bool any = false;
  for (uint64_t i = 0; i < count_; ++i) {
    if (state(i) != SegmentState::kDamaged) continue;
    segments_[i].state.store(SegmentState::kSealed, std::memory_order_release);
    any = true;
  }
  return any;
}

}  // namespace lunar::kv
