// SPDX-License-Identifier: Apache-2.0
// Cleaning: frees dead space. placement.cpp chooses the segment that is emptied, and where its
// records go.
//
// Writers clean ahead. When few free segments are left, one writer takes the mutex after its own
// operation, and cleans a segment, writes out one that a saved state needs, or saves. The other
// writers continue, delayed more as less is left. A writer that finds no free segment cleans until
// more than the reserve is free; other writers wait for it. Readers are not affected. Cleaning
// moves at most 7/8 of a segment, so a store whose segments are all fuller than that is full.
// Threading: as in store.h.
// pre, of all but room_*: the cleaning mutex
#include <errno.h>

#include <algorithm>

#include "kv/store.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

constexpr unsigned kFruitlessMost = 3;  // saves for space without gain, with cleaning in between

// Segments with little dead space that one call cleans. Freeing one segment takes up to 64.
constexpr unsigned kPoorMost = 256;

// The least time between two tries of segments that could not be read whole, so that a full store
// answers at once.
constexpr uint64_t kRetryDamagedNs = 1'000'000'000;

// Waits for readers to leave retired segments, or for a writer to publish.
void wait_a_little(unsigned round) { round < 100 ? sys::yield_cpu() : sys::sleep_ns(50'000); }

}  // namespace

// Moves one record to a tail, if it lives. -EAGAIN: no tail has room.
int Store::move_record(const Record* record, const char* segment, Address from) {
  if (record->type() == RecordType::kMark || record->type() == RecordType::kDeleted) return 0;
  const unsigned stripped = Record::replaced_units(record->size_type);
  const uint64_t hash = hash_of_record(record), units = record->units() - stripped;
  Shard& shard = shard_of(hash);
  const ShardLock lock(*this, shard);
  const Index& index = shard.index_of(record);
  std::atomic<uint64_t>* place =
      index.find_entry(hash, [&](Address address) { return address == from; });
  if (!place) return 0;
  Address to;
  BodyRoom body{record->body_bytes()};
  if (const int status = log_.allocate(units, true, from, &to, nullptr, &body); status < 0)
    return status;
  Record* copy = log_.at(to);
  // The lock keeps writers out of the record.
  memcpy(static_cast<void*>(copy), record, units * kUnitBytes);
  constexpr uint32_t kLost = RecordNotes::kReplacesPair | RecordNotes::kReplacesLarge;
  copy->size_type = static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(record->type())) |
                    (record->size_type & (RecordNotes::kPiece | RecordNotes::kBody));
  if (log_.commits())
    copy->note_moved(log_.segment_of(from), record->moved() ? 0 : record->size_type & kLost);
  if (body.bytes) {
    const_cast<Body&>(copy->body()).at = body.block;
    memcpy(log_.value_of(copy), Log::value_in(record, segment), body.bytes);
  }
  Index::replace(place, to);
  log_.drop_live(from, record->live_units());
  log_.published(to);
  cleaned_.fetch_add(units * kUnitBytes + body.bytes, std::memory_order_relaxed);
  return 0;
}

// Empties a sealed segment and retires it. -EAGAIN: not all of it could be moved, and it stays
// sealed; -EBADMSG: it is damaged, and is not tried again soon.
int Store::clean(uint64_t segment) {
  for (unsigned round = 0; log_.filling(segment); ++round) wait_a_little(round);
  if (const int status = log_.commit_segment(segment); status < 0) return status;
  const uint64_t begin = segment * log_.segment_bytes();
  const char* memory = nullptr;
  if (log_.live(segment) != 0) {
    if (const int status = log_.segment_contents(segment, &memory); status < 0) {
      LUNAR_LOG_LIMITED(log_warning, 10,
                        "key/value store on %s: segment at %llu cannot be read whole (%s); "
                        "its keys are read one by one, "
                        "and its space comes back when all of them have been set or deleted",
                        device_->name(), static_cast<unsigned long long>(begin),
                        errno_text(status));
      log_.set_damaged(segment);
      return -EBADMSG;
    }
  }
  const uint64_t end = log_.used(segment);
  uint64_t at = log_.first_at(segment);
  while (at < end && log_.live(segment) != 0) {
    const auto* record = reinterpret_cast<const Record*>(memory + at);
    if (const int status = move_record(record, memory, Address{(begin + at) / kUnitBytes});
        status < 0)
      return status;
    at += record->span();
  }
  if (log_.live(segment) != 0) {  // the index leads to bytes that are no record of a pair
    log_.set_damaged(segment);
    return -EBADMSG;
  }
  log_.retire_empty(segment);
  return 0;
}

int Store::room_for_frames() {
  unsigned round = 0;
  for (;;) {
    if (log_.failed()) return -EIO;
    const Log::Frames frames = log_.frames();
    if (frames == Log::Frames::kReady) return 0;
    const int status = frames == Log::Frames::kWanted ? log_.make_frame() : -EAGAIN;
    if (status == 0) continue;
    if (status != -EAGAIN) return status;
    log_.reclaim();
    wait_a_little(round++);
  }
}

// A younger saved state frees the segments that only the last one refers to. It may gain nothing,
// because it seals the tail, which may be half empty.
int Store::save_for_space(TriesForSpace* tries) {
  if (const int status = save(); status < 0) return status;
  const uint64_t free = log_.reclaim();
  tries->fruitless = free > tries->best ? 0 : tries->fruitless + 1;
  tries->best = std::max(tries->best, free);
  return 0;
}

// One step towards a free segment: cleans one, or saves. kDone: look again. kWait: reads of other
// threads have to end. kFull: no segment is worth cleaning. kOver, with *error: nothing helps.
Store::Gain Store::gain_segment(bool may_clean, TriesForSpace* tries, int* error) {
  uint64_t segment;
  int chosen = may_clean ? log_.victim(&segment) : -EAGAIN;
  // Before the store is full, the little space that deletes have freed in a segment is worth more
  // work than usual.
  if (chosen == -ENOSPC && tries->poor < kPoorMost) {
    chosen = log_.poor_victim(&segment);
    if (chosen == 0 && ++tries->poor == kPoorMost) full_at_ = log_.bytes_live();
  }
  const int status = chosen == 0 ? clean(segment) : chosen;
  if (status == 0 || status == -EBADMSG) return Gain::kDone;
  if (log_.any_retired()) return Gain::kWait;
  if (log_.held() != 0) {
    *error = save_for_space(tries);
    return *error < 0 ? Gain::kOver : Gain::kDone;
  }
  // The free segments are for a saved state alone, so there is none to clean into.
  if (chosen == 0 && status == -EAGAIN && log_.reclaim() <= log_.state_reserve() &&
      !log_.any_retired()) {
    *error = -ENOSPC;
    return Gain::kOver;
  }
  return status == -ENOSPC ? Gain::kFull : Gain::kWait;
}

// Waits for the cleaning mutex, or for room that its owner makes. True: the caller has the mutex.
// False: has_room() returned true.
template <class HasRoom>
bool Store::lock_for_room(HasRoom has_room) {
  wait_for_room_.fetch_add(1, std::memory_order_relaxed);
  bool locked = cleaning_.try_lock();
  for (unsigned round = 0; !locked && !has_room(); ++round) {
    wait_a_little(round);
    locked = cleaning_.try_lock();
  }
  wait_for_room_.fetch_sub(1, std::memory_order_relaxed);
  return locked;
}

// Called before the mutex is taken for another purpose, so that writers that wait for room take it
// first. They look every 50 us.
void Store::yield_to_writers() const {
  for (unsigned round = 0; round < 200 && wait_for_room_.load(std::memory_order_relaxed) != 0;
       ++round)
    wait_a_little(round);
}

// Called after each set. The first writer that finds space low does one cleaning step; other
// writers continue. A failure is reported by a writer that cannot continue without space.
void Store::clean_early() {
  if (!log_.cleaning_wanted()) return;
  if (!cleaning_.try_lock()) {
    if (const uint64_t delay = log_.delay_ns()) sys::sleep_ns(delay);
    return;
  }
  log_.reclaim();
  Log::Ahead ahead = log_.failed() ? Log::Ahead::kNothing : log_.ahead();
  if (ahead == Log::Ahead::kSave) {
    // Segments that the state refers to are written out before, one per set.
    const int written = log_.write_oldest();
    if (written < 0 || (written == 0 && save() < 0)) ahead = Log::Ahead::kNothing;
    log_.reclaim();
  } else if (ahead == Log::Ahead::kClean) {
    const Log::Frames frames = log_.frames();
    uint64_t segment;
    int status = frames == Log::Frames::kWanted ? log_.make_frame() : 0;
    const bool grown = status == 0 && grows_before_cleaning() && log_.grow(1) == 0;
    if (!grown && status == 0 && frames == Log::Frames::kReady) {
      status = log_.victim(&segment);
      if (status == 0) status = clean(segment);
    }
    // A damaged segment is not chosen again, so the next set takes another.
    if (status < 0 && status != -EBADMSG) ahead = Log::Ahead::kNothing;
  }
  if (ahead == Log::Ahead::kNothing) log_.end_cleaning_ahead();
  cleaning_.unlock();
}

int Store::room_for_segment() {
  if (!log_.room_for_writers(1)) waits_for_room_.fetch_add(1, std::memory_order_relaxed);
  if (!lock_for_room([&] { return log_.has_room(); })) return 0;
  int status = grows_before_cleaning() ? log_.grow(1) : -ENOSPC;
  if (status < 0) status = room_for_segment_locked();
  if (status == -ENOSPC) status = log_.grow(1);
  cleaning_.unlock();
  return status == -ENOSPC ? refuse_as_full() : status;
}

int Store::room_for_segment_locked() {
  bool retried = false;
  TriesForSpace tries;
  unsigned round = 0;
  for (;;) {
    if (const int status = room_for_frames(); status < 0) return status;
    const uint64_t free = log_.reclaim();
    if (log_.room_for_writers(1) && !log_.log_is_long()) return 0;
    if (log_.taken() != tries.taken) tries = {.taken = log_.taken()};
    if (persistent_) {
      if (const int status = settle(); status < 0) return status;
    }
    if (log_.log_is_long()) {
      if (const int status = save(); status < 0) return status;
      continue;
    }
    if (tries.fruitless >= kFruitlessMost) full_at_ = log_.bytes_live();
    // Saves and cleaning did not help before, and the live bytes have not become fewer since.
    if (full_at_ != 0 && log_.bytes_live() + log_.segment_bytes() > full_at_) return -ENOSPC;
    full_at_ = 0;
    if (log_.held_suffice()) {
      if (const int status = save_for_space(&tries); status < 0) return status;
      continue;
    }
    int error = -ENOSPC;
    switch (gain_segment(free > log_.state_reserve() + 1 || !log_.any_retired(), &tries, &error)) {
      case Gain::kOver:
        return error;
      case Gain::kFull:
        if (retried || sys::now_ns() < retry_damaged_at_ || !log_.retry_damaged()) return error;
        retried = true;
        retry_damaged_at_ = sys::now_ns() + kRetryDamagedNs;
        break;
      case Gain::kWait:
        wait_a_little(round++);
        break;
      case Gain::kDone:
        break;
    }
  }
}

// Cleans until no segment is worth it, or until its records have no room before a younger state is
// saved.
int Store::clean_what_is_worth_it() {
  unsigned round = 0;
  for (;;) {
    if (const int status = room_for_frames(); status < 0) return status;
    log_.reclaim();
    uint64_t segment;
    const int chosen = log_.victim(&segment);
    if (chosen == -ENOSPC) return 0;
    const int status = chosen == 0 ? clean(segment) : chosen;
    if (status == 0 || status == -EBADMSG) continue;
    if (status != -EAGAIN) return status;
    if (chosen == 0 && !log_.any_retired()) return 0;
    wait_a_little(round++);
  }
}

int Store::compact() {
  if (read_only_) return -EROFS;
  MutexLock guard(cleaning_);
  uint64_t best = UINT64_MAX;
  for (;;) {
    int status = persistent_ ? settle() : 0;
    if (status == 0) status = clean_what_is_worth_it();
    if (status == 0 && persistent_) status = save();
    if (status < 0) return status;
    log_.reclaim();
    if (bytes_in_use() >= best) return 0;
    best = bytes_in_use();
  }
}

}  // namespace lunar::kv
