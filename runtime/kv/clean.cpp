// SPDX-License-Identifier: Apache-2.0
// Cleaning: frees dead space. placement.cpp chooses the segment that is emptied, and where its
// records go.
//
// Writers clean ahead: when few segments are left to fill, one takes the mutex and cleans a
// segment, or writes what a saved state needs, or saves, after its own operation; the others go on,
// the slower the less is left. A writer that finds no free segment cleans until more than the
// reserve is free; others wait for it. Readers notice nothing. What it may cost: one segment moves
// at most 7/8 of itself, so a store whose segments all live more than that is full.
// Threading: as in store.h. Pre, of all but room_*: the cleaning mutex.
#include <errno.h>

#include <algorithm>

#include "kv/store.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

constexpr unsigned kFruitlessMost = 3;  // saves for space, with cleaning in between

// segments with little dead space that one call cleans: four times what one takes
constexpr unsigned kPoorMost = 256;

// Segments that could not be read whole are tried again at most so often, so that a full store
// answers at once.
constexpr uint64_t kRetryDamagedNs = 1'000'000'000;

// For readers to leave what is retired, or a writer to publish.
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
  memcpy(static_cast<void*>(copy), record, units * kUnitBytes);  // no writer is in it: the lock
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

// Empties a sealed segment and retires it. -EAGAIN: not all of it could be moved, and it stays what
// it is; -EBADMSG: nor can it ever be.
int Store::clean(uint64_t segment) {
  for (unsigned round = 0; log_.filling(segment); ++round) wait_a_little(round);
  if (const int status = log_.commit_segment(segment); status < 0) return status;
  const uint64_t begin = segment * log_.segment_bytes();
  const char* memory = nullptr;
  if (log_.live(segment) != 0) {
    if (const int status = log_.segment_contents(segment, &memory); status < 0) {
      LUNAR_LOG_LIMITED(log_warning, 10,
                        "key/value store on %s: segment at %llu cannot be read whole (%s); its "
                        "keys are read one by "
                        "one, and its space comes back when all of them have been set or deleted",
                        device_->name(), static_cast<unsigned long long>(begin),
                        errno_text(status));
      log_.set_damaged(segment);
      return -EBADMSG;
    }
  }
  for (uint64_t at = segment == 0 ? kUnitBytes : 0, end = log_.used(segment);
       at < end && log_.live(segment) != 0;) {
    const auto* record = reinterpret_cast<const Record*>(memory + at);
    if (const int status = move_record(record, memory, Address{(begin + at) / kUnitBytes});
        status < 0)
      return status;
    at += record->span();
  }
  if (log_.live(segment) != 0) {  // the index leads to what is no record of a pair
    log_.set_damaged(segment);
    return -EBADMSG;
  }
  log_.retire_empty(segment);
  return 0;
}

int Store::room_for_frames() {
  for (unsigned round = 0;;) {
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

// A younger saved state frees what only the last one refers to. It may gain nothing, as it seals
// the tail, half empty perhaps.
int Store::save_for_space(TriesForSpace* tries) {
  if (const int status = save(); status < 0) return status;
  const uint64_t free = log_.reclaim();
  tries->fruitless = free > tries->best ? 0 : tries->fruitless + 1;
  tries->best = std::max(tries->best, free);
  return 0;
}

// A step towards a free segment: cleans one, or saves. kDone: look again. kWait: others' reads have
// to end. kFull: no segment is worth cleaning. kOver, with *error: nothing helps.
Store::Gain Store::gain_segment(bool may_clean, TriesForSpace* tries, int* error) {
  uint64_t segment;
  int chosen = may_clean ? log_.victim(&segment) : -EAGAIN;
  // Before the store is full: what deletes have freed in each segment is worth more work than
  // usual.
  if (chosen == -ENOSPC && tries->poor < kPoorMost && (chosen = log_.poor_victim(&segment)) == 0 &&
      ++tries->poor == kPoorMost)
    full_at_ = log_.bytes_live();
  const int status = chosen == 0 ? clean(segment) : chosen;
  if (status == 0 || status == -EBADMSG) return Gain::kDone;
  if (log_.any_retired()) return Gain::kWait;
  if (log_.held() != 0) {
    *error = save_for_space(tries);
    return *error < 0 ? Gain::kOver : Gain::kDone;
  }
  // What is free is for a saved state alone: there is nothing to clean into.
  if (chosen == 0 && status == -EAGAIN && log_.reclaim() <= log_.state_reserve() &&
      !log_.any_retired()) {
    *error = -ENOSPC;
    return Gain::kOver;
  }
  return status == -ENOSPC ? Gain::kFull : Gain::kWait;
}

// The thread that cleans or saves may make room meanwhile: false, has_room() said so. True: the
// mutex is the caller's.
template <class HasRoom>
bool Store::lock_for_room(HasRoom has_room) {
  wait_for_room_.fetch_add(1, std::memory_order_relaxed);
  bool locked = false;
  for (unsigned round = 0; !(locked = cleaning_.try_lock()) && !has_room(); ++round)
    wait_a_little(round);
  wait_for_room_.fetch_sub(1, std::memory_order_relaxed);
  return locked;
}

// For a thread that wants the mutex for something else: writers that wait for room (they look every
// 50 us) take it first.
void Store::yield_to_writers() const {
  for (unsigned round = 0; round < 200 && wait_for_room_.load(std::memory_order_relaxed) != 0;
       ++round)
    wait_a_little(round);
}

// By the writer that sees first that room comes to its end, after its own operation, one step a
// set: the others go on. A failure is for those that cannot go on without.
void Store::clean_early() {
  if (!log_.cleaning_wanted()) return;
  if (!cleaning_.try_lock()) {
    if (const uint64_t delay = log_.delay_ns()) sys::sleep_ns(delay);
    return;
  }
  log_.reclaim();
  Log::Ahead ahead = log_.failed() ? Log::Ahead::kNothing : log_.ahead();
  if (ahead == Log::Ahead::kSave) {
    // What the state needs on the device goes there before, a segment a set.
    const int written = log_.write_oldest();
    if (written < 0 || (written == 0 && save() < 0)) ahead = Log::Ahead::kNothing;
    log_.reclaim();
  } else if (ahead == Log::Ahead::kClean) {
    const Log::Frames frames = log_.frames();
    uint64_t segment;
    int status = frames == Log::Frames::kWanted ? log_.make_frame() : 0;
    const bool grown = status == 0 && grows_before_cleaning() && log_.grow(1) == 0;
    if (!grown && status == 0 && frames == Log::Frames::kReady &&
        (status = log_.victim(&segment)) == 0)
      status = clean(segment);
    // One that is damaged is no victim any more: the next set takes another.
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
  for (unsigned round = 0;;) {
    if (const int status = room_for_frames(); status < 0) return status;
    const uint64_t free = log_.reclaim();
    if (log_.room_for_writers(1) && !log_.log_is_long()) return 0;
    if (log_.taken() != tries.taken) tries = {.taken = log_.taken()};
    if (kept_) {
      if (const int status = settle(); status < 0) return status;
    }
    if (log_.log_is_long()) {
      if (const int status = save(); status < 0) return status;
      continue;
    }
    if (tries.fruitless >= kFruitlessMost) full_at_ = log_.bytes_live();
    // Neither saves nor cleaning did help, and what lives has become no less since: they would not
    // now.
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

// Until no segment is worth it, or what lives in them has no room before a younger state is saved.
int Store::clean_what_is_worth_it() {
  for (unsigned round = 0;;) {
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
  for (uint64_t best = UINT64_MAX;;) {
    int status = kept_ ? settle() : 0;
    if (status == 0) status = clean_what_is_worth_it();
    if (status == 0 && kept_) status = save();
    if (status < 0) return status;
    log_.reclaim();
    if (bytes_in_use() >= best) return 0;
    best = bytes_in_use();
  }
}

}  // namespace lunar::kv
