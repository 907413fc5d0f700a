// SPDX-License-Identifier: Apache-2.0
// The log: see record_log.h.
// Threading: as there. Locks are taken in the order mutex_, tail_lock_.
#include "kv/record_log.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/mem.h"

namespace lunar::kv {

// Huge pages: a record found by chance costs a walk of the page tables else, as much as the copy of 4 KiB. All of it is
// charged, so a huge page takes nothing that the budget does not know of.
char* Log::map_records(uint64_t bytes) {
  void* memory = map_private(bytes, ForkPolicy::kInherit);
  if (memory) (void)sys::advise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

// On a device a frame is a segment, and several are wanted.
unsigned Log::segment_bits_for(const LogPlace& place, uint64_t limit) {
  if (place.segment_bits) return place.segment_bits;
  const uint64_t bytes = std::max(place.bytes, place.bytes_most / 16);
  const auto fits = [&](unsigned bits) {
    return bytes >> bits >= 4 * kSegmentsMin && (!place.device || limit >> bits >= 4 * kFramesMin);
  };
  unsigned bits = 16;
  while (uint64_t{1} << bits < kSegmentBytesMax && fits(bits + 1)) ++bits;
  return bits;
}

int Log::open(const LogPlace& place, Budget* budget, Epochs* epochs) {
  const uint64_t bytes = place.bytes;
  Device* device = place.device;
  if (bytes > kLogBytesMax) return -EINVAL;
  budget_ = budget;
  epochs_ = epochs;
  device_ = device;
  device_offset_ = place.offset;
  segment_bits_ = segment_bits_for(place, budget->limit());
  count_ = device ? bytes >> segment_bits_ : (bytes + segment_bytes() - 1) >> segment_bits_;
  const uint64_t most = std::min(place.bytes_most >> segment_bits_, budget->limit() / kTablesShare / sizeof(Segment));
  if (count_ < kSegmentsMin) {
    if (device && most < kSegmentsMin) return -ENOSPC;
    count_ = kSegmentsMin;
  }
  count_most_ = std::max<uint64_t>(count_, most);
  if (!budget->take(count_most_ * sizeof(Segment))) return -ENOMEM;
  segments_ = static_cast<Segment*>(map_private(count_most_ * sizeof(Segment), ForkPolicy::kInherit));
  if (!segments_) return -ENOMEM;
  for (uint64_t i = 0; i < count_; ++i) new (&segments_[i]) Segment;
  free_.store(count_, std::memory_order_relaxed);
  for (Tail& tail : tails_) tail.used = segment_bytes();
  clock_.store(2 * bytes / kUnitBytes, std::memory_order_relaxed);  // what is restored was set long ago
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
  if (frames_memory_) unmap_private(frames_memory_, frames_mapped_);
  if (memory_) unmap_private(memory_, count_ << segment_bits_);
  if (segments_) unmap_private(segments_, count_most_ * sizeof(Segment));
  memory_ = frames_memory_ = nullptr;
  segments_ = nullptr;
}

// On a device only the tail's newest batch may be changed: all else may be on its way there. Seen by write_out() and
// write_uncommitted(), before which its batch was sealed or closed, and which then wait.
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

bool Log::append(Tail& tail, uint64_t units, bool cleaning, Address before, Address* out, uint64_t* padding) {
  const uint64_t bytes = units * kUnitBytes;
  sys::Locked lock(tail_lock_);
  if ((tail.reserved && !cleaning) || tail.used + bytes > segment_bytes()) return false;
  Segment& segment = segments_[tail.segment];
  *out = Address{((tail.segment << segment_bits_) + tail.used) / kUnitBytes};
  const uint64_t more = padding ? block_padding(tail.used + bytes, bytes) : 0;
  if (more) *padding = more / kUnitBytes;
  tail.used += bytes + more;
  segment.used.store(static_cast<uint32_t>(tail.used), std::memory_order_relaxed);
  if (!cleaning) clock_.store(clock_.load(std::memory_order_relaxed) + units, std::memory_order_relaxed);
  note_set(segment, cleaning ? before : Address{}, units + more / kUnitBytes);
  add_live(*out, units + more / kUnitBytes);
  segment.filling[segment.batch.load(std::memory_order_relaxed) & 1].fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Where no segment is free, what the other tails have left is better than none.
int Log::allocate(uint64_t units, bool cleaning, Address before, Address* out, uint64_t* padding) {
  Tail& wanted = tails_[tail_for(before)];
  for (int status = 0; status == 0; status = roll(wanted, cleaning))
    if (append(wanted, units, cleaning, before, out, padding)) return 0;
  for (Tail& other : tails_)
    if (append(other, units, cleaning, before, out, padding)) return 0;
  return -EAGAIN;
}

// Makes a free segment the tail, unless another thread did so meanwhile.
int Log::roll(Tail& tail, bool cleaning) {
  MutexLock guard(mutex_);
  {
    sys::Locked lock(tail_lock_);
    if (tail.reserved && !cleaning) return -EAGAIN;
    if (tail.used + inline_units_max() * kUnitBytes <= segment_bytes()) return 0;
  }
  uint64_t number;
  if (!take_one(cleaning, &number)) return -EAGAIN;
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
  tail = {number, first_at(number), true, cleaning && !room_for_writers(0)};
  if (commits()) open_log_segment(number);
  return 0;
}

// Pre: the mutex, the tails' lock.
void Log::seal_locked(Tail& tail) {
  const uint64_t number = tail.segment;
  if (!tail.open) return;
  if (commits() && !finish_batch()) segments_[number].used.store(used_durable(number), std::memory_order_relaxed);
  segments_[number].state.store(SegmentState::kSealed, std::memory_order_seq_cst);
  tail = {.used = segment_bytes()};
  if (!state_bytes_ && is_empty(number)) retire_locked(number, epochs_->retire());
}

void Log::seal_tails() {
  MutexLock guard(mutex_);
  sys::Locked lock(tail_lock_);
  // A segment of the log without a batch would end it.
  if (commits() && tail_.open && used_durable(tail_.segment) == first_at(tail_.segment) && !any_in_batch()) return;
  for (Tail& tail : tails_) seal_locked(tail);
}

// Pre: the mutex.
bool Log::take_one(bool cleaning, uint64_t* number) {
  note_next_state();
  if (ahead() != Ahead::kNothing) cleaning_wanted_.store(true, std::memory_order_relaxed);
  if (cleaning ? free_.load(std::memory_order_relaxed) <= state_reserve() : !room_for_writers(1)) return false;
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

uint64_t Log::segments_ahead() const {
  const uint64_t early = count_ / 64;
  return early == 0 ? 1 : early > kAheadMost ? kAheadMost : early;
}

// A few segments before writers have to wait one of them cleans a segment with each set.
Log::Ahead Log::ahead() const {
  const uint64_t free = free_.load(std::memory_order_relaxed), early = segments_ahead();
  if (free + held() <= reserve() + early) return Ahead::kClean;
  return held() > held_wanted() && free <= free_reserve() + early ? Ahead::kSave : Ahead::kNothing;
}

// The less room is left the more: so that writers are no faster than what cleans, and none waits for a whole segment.
uint64_t Log::delay_ns() const {
  const uint64_t early = segments_ahead(), room = free_.load(std::memory_order_relaxed) + held();
  const uint64_t left = room > reserve() ? room - reserve() : 0;
  return left < early ? (early - left) * kDelayMostNs / early : 0;
}

// What is reserved for states: it grows and shrinks with the index, so it is asked for with each taking of segments.
// Pre: the mutex.
void Log::note_next_state() {
  if (!state_bytes_) return;
  // For the next one, and when that is larger than the last one, for the one after it too.
  const uint64_t one = state_bytes_(state_owner_) / media::link_room(segment_bytes()) + 2;
  state_reserve_.store(one + (one > links_ ? one - links_ : 0), std::memory_order_relaxed);
  cleaning_reserve_.store(reserve_for_states(), std::memory_order_relaxed);
  note_whether_state_is_wanted();
}

// Pre: the mutex.
void Log::note_whether_state_is_wanted() {
  const uint64_t gain = held() + retired_.load(std::memory_order_relaxed);
  const bool room_ends = gain >= count_ / 16 && free_.load(std::memory_order_relaxed) <= reserve() + count_ / 32;
  bool log_grows = false;
  if (commits()) {
    const uint64_t most = log_segments_most();
    log_grows = opened_.load(std::memory_order_relaxed) >= most - most / 4;
  }
  if (room_ends || log_grows) state_wanted_.store(true, std::memory_order_relaxed);
}

// The shortest row of free segments that is long enough: of all, or in a log of very many of the next kSeenMost from
// where the last was. Pre: the mutex.
bool Log::find_row(uint64_t count, uint64_t* first) {
  uint64_t length = 0, best = UINT64_MAX;
  // Behind the last segment, and at last where it began, a row ends.
  for (uint64_t seen = 0, i = next_run_; seen <= count_ + 1 && best != count; ++seen, i = i < count_ ? i + 1 : 0) {
    const bool free = seen <= count_ && i < count_ && state(i) == SegmentState::kFree;
    if (free && length < count + kSeenMost) {
      ++length;
      continue;
    }
    if (length >= count && length < best) best = length, *first = i - length;
    length = 0;
    if (seen >= kSeenMost && best != UINT64_MAX) break;
  }
  if (best != UINT64_MAX && count_ > kSeenMost) next_run_ = *first;
  return best != UINT64_MAX;
}

int Log::take_run(uint64_t count, uint64_t* first) {
  MutexLock guard(mutex_);
  note_next_state();
  if (!room_for_writers(count) || !find_row(count, first)) return -EAGAIN;
  for (uint64_t i = *first; i < *first + count; ++i) {
    segments_[i].pending.store(true, std::memory_order_relaxed);
    segments_[i].saved = commits();
    segments_[i].state.store(SegmentState::kLarge, std::memory_order_release);
    note_taken(i);
  }
  segments_[*first].life.store(new_life(), std::memory_order_release);
  free_.fetch_sub(count, std::memory_order_relaxed);
  return 0;
}

void Log::run_published(const LargePlace& place, uint32_t entry) {
  for (uint64_t i = place.first; i < place.first + place.count; ++i) {
    segments_[i].entry.store(entry, std::memory_order_relaxed);
    segments_[i].pending.store(false, std::memory_order_relaxed);
  }
}

LargePlace Log::run_of(uint32_t entry) const {
  LargePlace run{};
  for (uint64_t i = 0; i < count_; ++i) {
    if (state(i) != SegmentState::kLarge || pending(i)) continue;
    if (segments_[i].entry.load(std::memory_order_relaxed) != entry) continue;
    if (run.count == 0) run.first = i, run.life = life(i);
    if (i != run.first + run.count++) return {};
  }
  return run;
}

void Log::retire(uint64_t first, uint64_t count) {
  const uint64_t epoch = epochs_->retire();
  MutexLock guard(mutex_);
  for (uint64_t i = first; i < first + count; ++i) retire_locked(i, epoch);
}

// Pre: the mutex.
void Log::retire_locked(uint64_t number, uint64_t epoch) {
  Segment& segment = segments_[number];
  segment.state.store(SegmentState::kRetired, std::memory_order_release);
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

// Free, or the window's. Pre: the mutex.
void Log::give_back(uint64_t number) {
  const bool in_window = number - window_ < window_count_;
  if (state(number) == SegmentState::kState) --links_;
  segments_[number].saved = false;
  segments_[number].state.store(in_window ? SegmentState::kReserved : SegmentState::kFree, std::memory_order_release);
  if (in_window) return;
  free_.fetch_add(1, std::memory_order_relaxed);
  note_free(number);
}

// What the end of a segment had no room for is no dead space: cleaning would not gain it.
int Log::poor_victim(uint64_t* number) {
  MutexLock guard(mutex_);
  uint64_t dead = 0, best = segment_bytes() / kUnitBytes / 64 - 1;
  for (uint64_t i = 0; i < count_; ++i) {
    if (state(i) != SegmentState::kSealed || filling(i)) continue;
    const uint64_t own = used(i) / kUnitBytes > live(i) ? used(i) / kUnitBytes - live(i) : 0;
    dead += own;
    if (own > best) best = own, *number = i;
  }
  return best >= segment_bytes() / kUnitBytes / 64 && dead * kUnitBytes > 2 * segment_bytes() ? 0 : -ENOSPC;
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

// What it costs to have a segment for a large pair: what lives in it moves; a saved state is written anew elsewhere,
// the log goes on elsewhere. UINT64_MAX: it cannot be had.
uint64_t Log::cost_in_window(uint64_t number) const {
  const uint64_t whole = segment_bytes() / kUnitBytes;
  switch (state(number)) {
    case SegmentState::kFree:
      return 0;
    case SegmentState::kRetired:
    case SegmentState::kHeld:  // what is free already comes first
      return 1;
    case SegmentState::kSealed:
      return live(number);
    case SegmentState::kDamaged:
      return live(number) == 0 ? 1 : UINT64_MAX;
    case SegmentState::kOpen:
    case SegmentState::kNext:
    case SegmentState::kState:
      return whole + live(number);
    default:
      return UINT64_MAX;
  }
}

// The one that costs least, in one pass: the window moves on by a segment at a time. What changes meanwhile makes the
// choice worse, no more. Pre: the mutex.
bool Log::cheapest_window(uint64_t count, uint64_t* first) const {
  uint64_t best = UINT64_MAX, begin = 0, cost = 0;
  for (uint64_t i = 0; i < count_; ++i) {
    const uint64_t own = cost_in_window(i);
    if (own == UINT64_MAX) {
      begin = i + 1;
      cost = 0;
      continue;
    }
    cost += own;
    if (i + 1 - begin < count) continue;
    if (cost < best) best = cost, *first = begin;
    const uint64_t left = cost_in_window(begin++);
    cost -= std::min(cost, left);
  }
  return best != UINT64_MAX;
}

int Log::reserve_window(uint64_t count, uint64_t* first) {
  MutexLock guard(mutex_);
  note_next_state();
  if (!cheapest_window(count, first)) return -ENOSPC;
  uint64_t inside = 0, held_inside = 0, units = 0, heads = 0;
  for (uint64_t i = *first; i < *first + count; ++i) {
    const SegmentState now = state(i);
    inside += now == SegmentState::kFree ? 1 : 0;
    held_inside += now == SegmentState::kHeld ? 1 : 0;
    heads += now == SegmentState::kOpen || now == SegmentState::kNext ? 1 : 0;
    units += now == SegmentState::kSealed || now == SegmentState::kOpen ? live(i) : 0;
  }
  const uint64_t outside = free_.load(std::memory_order_relaxed) - inside, held_outside = held() - held_inside;
  // What lives there must find room elsewhere, a sixteenth of each segment being lost at its end, and where the log
  // goes on, and leave the reserve, in which a state has its place.
  const uint64_t room = segment_bytes() / kUnitBytes / 16 * 15;
  LUNAR_DCHECK(room > 0);
  const uint64_t wanted = units / room + 1 + heads;
  if (outside < wanted + free_reserve() || outside + held_outside < wanted + reserve()) return -EAGAIN;
  for (uint64_t i = *first; i < *first + count; ++i) {
    if (state(i) != SegmentState::kFree) continue;
    segments_[i].state.store(SegmentState::kReserved, std::memory_order_release);
    note_taken(i);
  }
  free_.fetch_sub(inside, std::memory_order_relaxed);
  window_ = *first;
  window_count_ = count;
  window_needs_.store(wanted, std::memory_order_relaxed);
  return 0;
}

// In the order in which they are to be dealt with: what is moved first is freed by the same saved state.
SegmentState Log::next_in_window(uint64_t* number) const {
  constexpr SegmentState kOrder[] = {SegmentState::kSealed, SegmentState::kDamaged, SegmentState::kOpen,
                                     SegmentState::kNext,   SegmentState::kRetired, SegmentState::kHeld,
                                     SegmentState::kState};
  for (const SegmentState wanted : kOrder) {
    for (*number = window_; *number < window_ + window_count_; ++*number) {
      if (state(*number) == wanted) return wanted;
    }
  }
  return SegmentState::kReserved;
}

void Log::take_reserved() {
  MutexLock guard(mutex_);
  for (uint64_t i = window_; i < window_ + window_count_; ++i) {
    segments_[i].pending.store(true, std::memory_order_relaxed);
    segments_[i].saved = commits();
    segments_[i].state.store(SegmentState::kLarge, std::memory_order_release);
  }
  segments_[window_].life.store(new_life(), std::memory_order_release);
  window_count_ = 0;
  window_needs_.store(0, std::memory_order_relaxed);
}

void Log::release_window() {
  MutexLock guard(mutex_);
  for (uint64_t i = window_; i < window_ + window_count_; ++i) {
    if (state(i) != SegmentState::kReserved) continue;
    segments_[i].state.store(SegmentState::kFree, std::memory_order_release);
    free_.fetch_add(1, std::memory_order_relaxed);
    note_free(i);
  }
  window_count_ = 0;
  window_needs_.store(0, std::memory_order_relaxed);
}

}  // namespace lunar::kv
