// SPDX-License-Identifier: Apache-2.0
// See rehash_ahead.h.
#include "rehash_ahead.h"

#include <initializer_list>

#include "lookup_steps.h"
#include "pager/pager.h"
#include "server_fields.h"
#include "sys/file.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kWindow = 256;  // buckets that one look checks
constexpr unsigned kMoved = 128;   // buckets moved per read, at most
constexpr uint64_t kMovedForAdded = 4;
constexpr uint64_t kPauseNs = 20'000'000;     // after the server has refused (a child lives)
constexpr uint64_t kTableRestNs = 1'000'000;  // after a step of a table, which takes some 200 us
constexpr uint64_t kPatienceNs = 2'000'000'000;

}  // namespace

void RehashAhead::start(const ServerLayout& layout) {
  if (layout.has_slots()) return;
  if (!(layout.keyspace() == Keyspace::kTables
            ? find_export("hashtableRehashMicroseconds", &mover_.table)
            : find_export("dictRehash", &mover_.dict)))
    return;
  if (layout.keyspace() != Keyspace::kDict) {
    cron_moves_ = static_cast<int*>(server_setting("activerehashing"));
    if (cron_moves_ == nullptr) return;
  }
  works_ = true;
}

void RehashAhead::shut_cron() {
  if (!shuts_cron() || *cron_moves_ != 1) return;
  *cron_moves_ = 0;
  cron_shut_ = true;
}

void RehashAhead::open_cron() {
  if (!cron_shut_) return;
  *cron_moves_ = 1;
  cron_shut_ = false;
}

// Pauses the table. nullptr: other code has paused it, it is too small, or there are too many.
RehashAhead::Paused* RehashAhead::pause(int database, MovingTable table) {
  unsigned i = 0;
  while (i < paused_count_ && paused_[i].table != table) ++i;
  Paused* paused_one = i < paused_count_ ? paused_ + i : nullptr;
  if (paused_one != nullptr && paused_one->up && table.paused() == 1) return paused_one;
  if (table.paused() != 0 || table.small() ||
      (paused_one == nullptr && paused_count_ == kPausedMax))
    return nullptr;
  if (paused_one == nullptr) paused_one = paused_ + paused_count_++;
  table.paused() = 1;
  *paused_one = {table, database, true, table.used()};
  return paused_one;
}

// Whether the table still exists. SWAPDB may have moved it, and another table may be at its
// address. This also finds a cold table (by faults): if it were forgotten, it would stay paused
// forever.
bool RehashAhead::still_there(const ServerLayout& layout, Paused* paused_one) const {
  auto is_at = [&](int index) {
    const DatabaseView* database = layout.database(index);
    return database != nullptr && (MovingTable::of(layout, database->keys) == paused_one->table ||
                                   MovingTable::of(layout, database->expires) == paused_one->table);
  };
  if (is_at(paused_one->database)) return true;
  for (int d = 0; layout.database(d) != nullptr; ++d)
    if (is_at(d)) return paused_one->database = d, true;
  return false;
}

void RehashAhead::forget_dead(const ServerLayout& layout) {
  for (unsigned i = 0; i < paused_count_;)
    if (still_there(layout, paused_ + i))
      ++i;
    else
      paused_[i] = paused_[--paused_count_];
}

void RehashAhead::lift(const ServerLayout& layout, bool all) {
  if ((lifted_ && !all) || paused_count_ == 0) return;
  lifted_ = true;
  forget_dead(layout);
  for (unsigned i = 0; i < paused_count_; ++i) {
    Paused& paused_one = paused_[i];
    if (paused_one.table.large() && !all) continue;
    if (paused_one.up && paused_one.table.paused() > 0) --paused_one.table.paused();
    paused_one.up = false;
  }
}

void RehashAhead::pause_again(const ServerLayout& layout) {
  if (!lifted_) return;
  lifted_ = false;
  forget_dead(layout);
  for (unsigned i = 0; i < paused_count_; ++i) {
    Paused& paused_one = paused_[i];
    if (paused_one.up || paused_one.table.paused() != 0 || paused_one.table.small()) continue;
    paused_one.table.paused() = 1;
    paused_one.up = true;
  }
}

// The number of the next buckets that can be moved without a fault (of a dict: without the empty
// ones). lookup->misses counts the steps that lacked something.
unsigned RehashAhead::ready(KeyLookup* lookup, MovingTable table) {
  const uint64_t size = uint64_t{1} << table.exponent(0);
  const auto first = static_cast<uint64_t>(table.index());
  unsigned buckets = 0;
  for (uint64_t b = first; b < size && b < first + kWindow && !lookup->missing->full(); ++b) {
    bool empty;
    if (table.bucket_ready(*lookup, b, &empty) && !empty) ++buckets;
  }
  return buckets;
}

void RehashAhead::move(MovingTable table, unsigned buckets, bool whole) {
  const int64_t before = table.index();
  bool tried = true;
  if (!table.pausable()) {
    const uint64_t left = (uint64_t{1} << table.exponent(0)) - static_cast<uint64_t>(before);
    tried = buckets >= MovingTable::kTableStep || buckets >= left;
    if (tried) table.move(mover_, buckets);
  } else if (buckets != 0) {
    table.move(mover_, buckets < kMoved ? buckets : kMoved);
  } else if (whole) {  // all are empty: skipped by tens, within the window
    for (uint64_t n = 0; n + kEmptyBucketsMax <= kWindow && table.index() >= 0 &&
                         (n == 0 || table.index() != before);
         n += kEmptyBucketsMax)
      table.move(mover_, 1);
  } else {
    tried = false;
  }
  const uint64_t now = sys::now_ns();
  if (table.index() != before) {
    stuck_since_ns_ = 0;
    if (!table.pausable()) not_before_ns_ = now + kTableRestNs;
  } else if (tried) {
    not_before_ns_ = now + kPauseNs;
  } else if (stuck_since_ns_ == 0) {
    stuck_since_ns_ = now;
  } else if (now - stuck_since_ns_ > kPatienceNs) {
    table.move(mover_, 1);
    stuck_since_ns_ = 0;
  }
}

// If keys are added faster than entries come in, moves buckets with their faults, so that chains do
// not grow long. (Alone, the server would take faults for one bucket per command.)
void RehashAhead::keep_pace(MovingTable table, Paused* paused_one) {
  const uint64_t room = uint64_t{1} << table.exponent(1), used = table.used();
  const uint64_t added = used > paused_one->used ? used - paused_one->used : 0,
                 most = uint64_t{1} << table.exponent(0);
  paused_one->used = used;
  if (used <= room + room / 4 || table.exponent(1) <= table.exponent(0)) return;
  const uint64_t buckets = added * kMovedForAdded < kMoved ? kMoved : added * kMovedForAdded;
  table.move(mover_, static_cast<unsigned>(buckets < most ? buckets : most));
}

bool RehashAhead::look_at(const ServerLayout& layout, int database, void* store, Fetcher* fetcher) {
  NonresidentRanges missing;
  PagesSeen seen;
  KeyLookup lookup{layout, &missing};
  const MovingTable table = MovingTable::of(layout, store, &lookup);
  if (!table || !table.have(lookup)) return false;
  if (table.pausable()) {
    Paused* paused_one = pause(database, table);
    if (paused_one == nullptr) return false;
    if (table.index() < 0) return paused_one->used = table.used(), false;
    keep_pace(table, paused_one);
  }
  if (table.index() < 0 || table.small()) return false;
  if (share_.requests != 0 || (not_before_ns_ != 0 && sys::now_ns() < not_before_ns_)) return true;
  not_before_ns_ = 0;
  lookup.seen = &seen;
  const unsigned buckets = ready(&lookup, table);
  move(table, buckets, lookup.misses == 0);
  if (missing.count != 0) (void)fetcher->submit(-1, 0, &share_, missing);
  return true;
}

// Looks at the database with a moving table each time, and at the others in turn. The first
// database always has its turn, because most servers use no other.
void RehashAhead::look(const ServerLayout& layout, bool watching, Fetcher* fetcher) {
  if (!works_) return;
  if (!watching) {
    lift(layout, true);
    paused_count_ = 0;
    lifted_ = false;
    moving_ = -1;
    return;
  }
  pause_again(layout);
  if (reads_++ % kEvery != 0 && moving_ < 0) return;
  if (paused_count_ == kPausedMax) forget_dead(layout);
  auto moves = [&](int index) {
    const DatabaseView* database = layout.database(index);
    if (database == nullptr) return false;
    const bool keys = look_at(layout, index, database->keys, fetcher);
    return look_at(layout, index, database->expires, fetcher) || keys;
  };
  const bool still = moving_ >= 0 && moves(moving_);
  if (still && reads_ % kEvery != 0) return;
  if (!still) moving_ = -1;
  if (layout.database(++turn_) == nullptr) turn_ = 0;
  for (const int index : {turn_, 0})
    if (index != moving_ && moves(index) && moving_ < 0) moving_ = index;
}

}  // namespace lunar::redis
