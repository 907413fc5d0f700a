// SPDX-License-Identifier: Apache-2.0
// See expiry.h.
#include "expiry.h"

#include <dlfcn.h>
#include <time.h>

#include "ahead.h"
#include "base/host_guard.h"
#include "freed_lookup.h"
#include "gate_inside.h"
#include "server_fields.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWindows = 4;
constexpr uint64_t kWindow = 64;          // buckets
constexpr unsigned kRoundsOfWindow = 12;  // then what is still missing is left to faults
constexpr uint64_t kTurnNs = 300'000, kRestNs = 100'000'000;
constexpr uint64_t kBucketsInTurn = 1 << 14;
constexpr uint64_t kSampledMax = 40, kBucketsMax = 800;  // of a look: twice what the server's cycle begins with
constexpr int64_t kHorizonMs = 150;                      // more than the server's cycle is away
constexpr size_t kCursor = 56;                           // in a database of 7.0

enum class State : uint8_t { kIdle, kActive, kResting };

struct Window {
  bool used = false;
  int database = 0;
  uint64_t first = 0, end = 0;
  unsigned rounds = 0;
  uint64_t sampled = 0, expired = 0;
  AheadFetch fetch;
};

struct Server {
  int (*try_expire)(const DatabaseView*, const EntryView*, long long) = nullptr;
  void (*propagate)() = nullptr;
  int (*paused)() = nullptr;
  int (*is_master)() = nullptr;
  int* enabled = nullptr;  // of active expiry; then its effort
};

struct Expiry {
  Server server;
  State state = State::kIdle;
  bool off = false;  // the server's setting says no, and that is ours
  Window window[kWindows];
  int database = 0;
  bool busy = false;           // a window had much that was due: all of them are used
  unsigned quiet = 0;          // databases one after the other in which little was due
  uint64_t empty_buckets = 0;  // since a key was seen in this database
  uint64_t rest_until = 0;
  uint64_t until = 0;  // the end of this turn
  int64_t now_ms = 0;
};

constinit Expiry g_expiry;

int64_t wall_ms() {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

uint64_t& cursor_of(const DatabaseView* database) {
  return *reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(const_cast<DatabaseView*>(database)) + kCursor);
}

uint64_t buckets_of(const DictView& dict) {
  uint64_t most = 0;
  for (int t = 0; t < 2; ++t)
    if (dict.table[t] != nullptr && uint64_t{1} << dict.exponent[t] > most) most = uint64_t{1} << dict.exponent[t];
  return most;
}

// Nullptr: nothing to look at. The server, too, leaves a table alone of which less than a hundredth is filled: it will
// shrink.
const DictView* expiries_of(const DatabaseView* database) {
  const auto* dict = static_cast<const DictView*>(database->expires);
  const uint64_t used = dict->used[0] + dict->used[1], buckets = buckets_of(*dict);
  return used == 0 || (buckets > 4 && used * 100 / buckets < 1) ? nullptr : dict;
}

EntryView** bucket_of(const DictView& dict, int table, uint64_t index) {
  return dict.table[table] == nullptr ? nullptr
                                      : dict.table[table] + (index & ((uint64_t{1} << dict.exponent[table]) - 1));
}

int64_t due_at(const EntryView& entry) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(entry.value)); }

// All that expiring this key reads.
bool is_in(NonresidentRanges* missing, const DatabaseView& database, const EntryView& entry) {
  KeyLookup lookup{gate().layout, missing};
  if (!lookup.have_text(entry.key)) return false;
  const Slice key{entry.key, sds_length(entry.key)};
  (void)lookup.look_up(database.expires, key);
  const auto* object = static_cast<const ObjectView*>(lookup.look_up(database.keys, key));
  if (object != nullptr && lookup.have(object, sizeof *object)) look_up_freed(lookup, *object, false);
  return lookup.complete;
}

// Expires what is due in a bucket and in. An expiry changes the chain, and may end a rehash: then the bucket is looked
// up again.
void expire_bucket(Window& window, const DatabaseView& database, uint64_t index, int table, bool all) {
  Expiry& e = g_expiry;
  KeyLookup lookup{gate().layout, &window.fetch.missing};
  for (unsigned again = 0; again < kChainMax; ++again) {
    const auto& dict = *static_cast<const DictView*>(database.expires);
    EntryView* const* slot = bucket_of(dict, table, index);
    if (slot == nullptr || !lookup.have(slot, sizeof *slot)) return;
    bool changed = false;
    unsigned n = 0;
    for (const EntryView* entry = *slot; entry != nullptr && n < kChainMax && lookup.have(entry, sizeof *entry);
         entry = entry->next, ++n) {
      if (e.now_ms <= due_at(*entry)) continue;
      const bool in = is_in(&window.fetch.missing, database, *entry);
      if (!in && !all) continue;
      if (e.server.try_expire(&database, entry, e.now_ms) == 0) continue;
      e.server.propagate();  // each by itself: the server's cycle makes no transaction of them
      ++window.expired;
      ahead_counters().expired += 1;
      if (!in) ahead_counters().expired_cold += 1;
      changed = true;
      break;
    }
    if (!changed) {
      window.sampled += n;
      return;
    }
  }
}

// How stale the table is here tells whether to go on.
void end_window(Window& window) {
  Expiry& e = g_expiry;
  window.used = false;
  const uint64_t seen = window.sampled + window.expired;
  if (window.database != e.database || seen == 0) return;
  e.empty_buckets = 0;
  if (window.expired * 10 > seen) {
    e.quiet = 0;
    e.busy = true;
    return;
  }
  ++e.quiet;
  ++e.database;
}

// Until its time in the turn is over, or something is missing. The window is free again when all of it has been done.
void do_window(Window& window) {
  const DatabaseView& database = *gate().layout.database(window.database);
  const bool all = window.rounds >= kRoundsOfWindow;
  NonresidentRanges& missing = window.fetch.missing;
  missing.clear();
  window.sampled = 0;
  bool late = false;
  for (uint64_t i = window.first; i < window.end && !missing.full() && !late; ++i) {
    for (int t = 0; t < 2; ++t) expire_bucket(window, database, i, t, all);
    if (missing.count == 0) window.first = i + 1;
    late = sys::now_ns() >= g_expiry.until;
  }
  if (missing.count != 0 && !all) {
    ++window.rounds;
    if (ahead_fetch(&window.fetch)) return;
  }
  if (!late || window.first == window.end) end_window(window);
}

// The next window of the tables, or nothing when all databases are quiet.
bool next_window(Window& window) {
  Expiry& e = g_expiry;
  unsigned databases = 0;
  while (gate().layout.database(static_cast<int>(databases)) != nullptr) ++databases;
  for (; e.quiet < databases; ++e.quiet, ++e.database, e.empty_buckets = 0) {
    if (e.database >= static_cast<int>(databases)) e.database = 0;
    const DatabaseView* database = gate().layout.database(e.database);
    const DictView* dict = expiries_of(database);
    if (dict == nullptr || e.empty_buckets >= buckets_of(*dict)) continue;
    uint64_t& cursor = cursor_of(database);
    window.used = true;
    window.database = e.database;
    window.first = cursor & (buckets_of(*dict) - 1);
    window.end = window.first + kWindow < buckets_of(*dict) ? window.first + kWindow : buckets_of(*dict);
    window.rounds = 0;
    window.sampled = window.expired = 0;
    cursor += window.end - window.first;
    e.empty_buckets += window.end - window.first;
    return true;
  }
  return false;
}

// Whether the server's cycle would soon meet a key that is due, or a piece that is missing.
bool something_due() {
  Gate& g = gate();
  const int64_t by = wall_ms() + kHorizonMs;
  for (int i = 0; const DatabaseView* database = g.layout.database(i); ++i) {
    const DictView* dict = expiries_of(database);
    if (dict == nullptr) continue;
    NonresidentRanges missing;
    KeyLookup lookup{g.layout, &missing};
    uint64_t sampled = 0, cursor = cursor_of(database);
    for (uint64_t b = 0; b < kBucketsMax && b < buckets_of(*dict) && sampled < kSampledMax; ++b, ++cursor) {
      for (int t = 0; t < 2; ++t) {
        EntryView* const* slot = bucket_of(*dict, t, cursor);
        if (slot == nullptr || !lookup.have(slot, sizeof *slot)) continue;
        unsigned n = 0;
        for (const EntryView* entry = *slot; entry != nullptr && n < kChainMax && lookup.have(entry, sizeof *entry);
             entry = entry->next, ++n, ++sampled)
          if (due_at(*entry) < by) return true;
      }
    }
    if (!lookup.complete) return true;
  }
  return false;
}

bool under_way() {
  for (const Window& window : g_expiry.window)
    if (window.used) return true;
  return false;
}

void work() {
  Expiry& e = g_expiry;
  uint64_t buckets = 0;
  for (Window& window : e.window)
    if (window.used && !window.fetch.under_way && sys::now_ns() < e.until) do_window(window);
  for (bool more = true; more && buckets < kBucketsInTurn;) {
    more = false;
    for (Window& window : e.window) {
      if (&window != e.window && !e.busy) break;
      if (window.used || window.fetch.under_way || sys::now_ns() >= e.until || !next_window(window)) continue;
      do_window(window);
      buckets += kWindow;
      more = true;
    }
  }
}

// Keys that were looked at are left to the server.
void stop() {
  Expiry& e = g_expiry;
  for (Window& window : e.window) window.used = false;
  e.state = State::kIdle;
}

}  // namespace

bool expiry_start() {
  Gate& g = gate();
  Server& server = g_expiry.server;
  if (g.layout.keyspace() != Keyspace::kDict) return false;
  {
    HostGuard guard;
    auto find = [](const char* name, auto* out) {
      return (*out = reinterpret_cast<std::remove_reference_t<decltype(*out)>>(dlsym(RTLD_DEFAULT, name))) != nullptr;
    };
    if (!find("activeExpireCycleTryExpire", &server.try_expire) ||
        !find("propagatePendingCommands", &server.propagate) ||
        !find("checkClientPauseTimeoutAndReturnIfPaused", &server.paused) || !find("iAmMaster", &server.is_master))
      return false;
  }
  auto* effort = static_cast<int*>(server_setting("active-expire-effort"));
  if (effort == nullptr || *effort < 1 || *effort > 10 || (effort[-1] != 0 && effort[-1] != 1)) return false;
  server.enabled = effort - 1;
  return true;
}

void expiry_open() {
  Expiry& e = g_expiry;
  if (!e.off) return;
  *e.server.enabled = 1;
  e.off = false;
}

bool expiry_shut() {
  Expiry& e = g_expiry;
  if (e.state == State::kIdle) return false;
  if (*e.server.enabled != 1) {  // switched off by a client
    if (!e.off) stop();
    return e.off;
  }
  *e.server.enabled = 0;
  return e.off = true;
}

void expiry_leave() {
  stop();
  expiry_open();
  g_expiry.server.enabled = nullptr;
}

bool expiry_works() { return g_expiry.state != State::kIdle; }

bool expiry_turn(uint64_t now) {
  Expiry& e = g_expiry;
  if (e.server.enabled == nullptr) return false;
  if (!gate().watching() || e.server.is_master() == 0 || e.server.paused() != 0) {
    stop();
    expiry_open();
    return false;
  }
  if (e.state == State::kIdle && *e.server.enabled != 1) return false;  // switched off by a client
  if (e.state == State::kResting && now < e.rest_until) return false;
  if (e.state != State::kActive) {
    if (!something_due()) {
      stop();
      expiry_open();
      return false;
    }
    e.state = State::kActive;
    e.busy = false;
    e.quiet = 0;
    e.empty_buckets = 0;
  }
  if (!expiry_shut()) return false;
  e.until = now + kTurnNs;
  e.now_ms = wall_ms();
  work();
  if (!under_way()) {
    e.state = State::kResting;
    e.rest_until = sys::now_ns() + kRestNs;
    return false;
  }
  for (const Window& window : e.window)
    if (!window.fetch.under_way && (window.used || e.busy)) return true;
  return false;
}

}  // namespace lunar::redis
