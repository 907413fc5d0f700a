// SPDX-License-Identifier: Apache-2.0
// See rehash_ahead.h.
#include "rehash_ahead.h"

#include <dlfcn.h>

#include <initializer_list>

#include "base/host_guard.h"
#include "lookup_steps.h"
#include "pager/pager.h"
#include "sys/file.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kWindow = 256;      // buckets looked at
constexpr unsigned kMoved = 128;       // of them at most, a read
constexpr unsigned kEmptyVisits = 10;  // that the server's function passes for each bucket it is to move
constexpr int8_t kExponentMin = 12;    // of a table: what the server moves soon is left to it
constexpr int8_t kExponentStays = 20;  // paused for all commands: as many keys take the longest of them seconds
constexpr uint64_t kMovedForAdded = 4;
constexpr uint64_t kPauseNs = 20'000'000;  // when the server does not want to rehash: a child lives
constexpr uint64_t kPatienceNs = 2'000'000'000;

}  // namespace

void RehashAhead::start(const ServerLayout& layout) {
  HostGuard guard;
  if (layout.keyspace() == Keyspace::kDict)
    rehash_ = reinterpret_cast<int (*)(DictView*, int)>(dlsym(RTLD_DEFAULT, "dictRehash"));
}

// nullptr: paused by other code, or too small to be worth it.
RehashAhead::Paused* RehashAhead::pause(int database, DictView* dict) {
  unsigned i = 0;
  while (i < paused_count_ && paused_[i].dict != dict) ++i;
  Paused* paused_one = i < paused_count_ ? paused_ + i : nullptr;
  if (paused_one != nullptr && paused_one->up && dict->paused == 1) return paused_one;
  if (dict->paused != 0 || dict->exponent[0] < kExponentMin || (paused_one == nullptr && paused_count_ == kPausedMax))
    return nullptr;
  if (paused_one == nullptr) paused_one = paused_ + paused_count_++;
  dict->paused = 1;
  *paused_one = {dict, database, true, dict->used[0] + dict->used[1]};
  return paused_one;
}

// SWAPDB may have moved it, and another one may be at its address.
bool RehashAhead::still_there(const ServerLayout& layout, Paused* paused_one) const {
  auto is_at = [&](int index) {
    const DatabaseView* database = layout.database(index);
    return database != nullptr && (database->keys == paused_one->dict || database->expires == paused_one->dict);
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
    if (paused_one.dict->exponent[0] >= kExponentStays && !all) continue;
    if (paused_one.up && paused_one.dict->paused > 0) --paused_one.dict->paused;
    paused_one.up = false;
  }
}

void RehashAhead::pause_again(const ServerLayout& layout) {
  if (!lifted_) return;
  lifted_ = false;
  forget_dead(layout);
  for (unsigned i = 0; i < paused_count_; ++i) {
    Paused& paused_one = paused_[i];
    if (paused_one.up || paused_one.dict->paused != 0 || paused_one.dict->exponent[0] < kExponentMin) continue;
    paused_one.dict->paused = 1;
    paused_one.up = true;
  }
}

// How many of the next buckets that are not empty can be moved without a fault. *whole: nothing in the window is
// missing.
unsigned RehashAhead::ready(const ServerLayout& layout, DictView* dict, bool* whole, NonresidentRanges* missing) {
  PagesSeen seen;
  KeyLookup lookup{layout, missing};
  lookup.seen = &seen;
  const uint64_t size = uint64_t{1} << dict->exponent[0], mask = (uint64_t{1} << dict->exponent[1]) - 1;
  const auto first = static_cast<uint64_t>(dict->rehash_index);
  unsigned buckets = 0;
  for (uint64_t b = first; b < size && b < first + kWindow && !missing->full(); ++b) {
    if (!lookup.have(dict->table[0] + b, sizeof(void*))) continue;
    EntryView* entry = dict->table[0][b];
    if (entry != nullptr) {
      (void)lookup.have(dict->table[1] + (b & mask), sizeof(void*));
      (void)lookup.have(dict->table[1] + ((b + size) & mask), sizeof(void*));
    }
    const bool was_empty = entry == nullptr;
    for (unsigned n = 0; entry != nullptr && n < kChainMax; ++n) {
      if (!lookup.have(entry, sizeof *entry)) break;
      (void)lookup.have_text(entry->key);
      entry = entry->next;
    }
    if (lookup.complete && !was_empty) ++buckets;
  }
  *whole = lookup.complete;
  return buckets;
}

void RehashAhead::move(DictView* dict, unsigned buckets, bool whole) {
  const int64_t before = dict->rehash_index;
  if (buckets != 0)
    (void)rehash_(dict, static_cast<int>(buckets < kMoved ? buckets : kMoved));
  else if (whole)  // all empty: passed by tens, none of which goes beyond the window
    for (uint64_t n = 0;
         n + kEmptyVisits <= kWindow && dict->rehash_index >= 0 && (n == 0 || dict->rehash_index != before);
         n += kEmptyVisits)
      (void)rehash_(dict, 1);
  const uint64_t now = sys::now_ns();
  if (dict->rehash_index != before) {
    stuck_since_ns_ = 0;
  } else if (buckets != 0 || whole) {
    not_before_ns_ = now + kPauseNs;
  } else if (stuck_since_ns_ == 0) {
    stuck_since_ns_ = now;
  } else if (now - stuck_since_ns_ > kPatienceNs) {
    (void)rehash_(dict, 1);
    stuck_since_ns_ = 0;
  }
}

// Keys are added faster than entries come in: chains must not grow long for it. The server would fault for a bucket a
// command.
void RehashAhead::keep_pace(DictView* dict, Paused* paused_one) {
  const uint64_t room = uint64_t{1} << dict->exponent[1], used = dict->used[0] + dict->used[1];
  const uint64_t added = used > paused_one->used ? used - paused_one->used : 0, most = uint64_t{1} << dict->exponent[0];
  paused_one->used = used;
  if (used <= room + room / 4 || dict->exponent[1] <= dict->exponent[0]) return;
  const uint64_t buckets = added * kMovedForAdded < kMoved ? kMoved : added * kMovedForAdded;
  (void)rehash_(dict, static_cast<int>(buckets < most ? buckets : most));
}

bool RehashAhead::look_at(const ServerLayout& layout, int database, DictView* dict, Fetcher* fetcher) {
  NonresidentRanges missing;
  KeyLookup lookup{layout, &missing};
  if (dict == nullptr || !lookup.have(dict, sizeof *dict)) return false;
  Paused* paused_one = pause(database, dict);
  if (paused_one == nullptr) return false;
  if (dict->rehash_index < 0) return paused_one->used = dict->used[0], false;
  keep_pace(dict, paused_one);
  if (dict->rehash_index < 0) return false;
  if (share_.requests != 0 || (not_before_ns_ != 0 && sys::now_ns() < not_before_ns_)) return true;
  not_before_ns_ = 0;
  bool whole = false;
  const unsigned buckets = ready(layout, dict, &whole, &missing);
  move(dict, buckets, whole);
  Request* request = missing.count != 0 ? fetcher->spare() : nullptr;
  if (request == nullptr) return true;
  request->fd = -1;
  request->share = &share_;
  request->pages = missing;
  share_.bytes += missing.bytes;
  ++share_.requests;
  fetcher->submit(request);
  return true;
}

// The database where something moves each time; the others in turn, and the first, which most servers have alone.
void RehashAhead::look(const ServerLayout& layout, bool watching, Fetcher* fetcher) {
  if (rehash_ == nullptr) return;
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
    const bool keys = look_at(layout, index, static_cast<DictView*>(database->keys), fetcher);
    return look_at(layout, index, static_cast<DictView*>(database->expires), fetcher) || keys;
  };
  const bool still = moving_ >= 0 && moves(moving_);
  if (still && reads_ % kEvery != 0) return;
  if (!still) moving_ = -1;
  if (layout.database(++turn_) == nullptr) turn_ = 0;
  for (const int index : {turn_, 0})
    if (index != moving_ && moves(index) && moving_ < 0) moving_ = index;
}

}  // namespace lunar::redis
