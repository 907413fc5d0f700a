// SPDX-License-Identifier: Apache-2.0
// See expiry.h.
#include "expiry.h"

#include <time.h>

#include "ahead.h"
#include "freed_lookup.h"
#include "gate_inside.h"
#include "server_fields.h"
#include "server_tables.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWindows = 4;
constexpr uint64_t kWindow = 64;          // places for entries
constexpr unsigned kRoundsOfWindow = 12;  // then pages that are still missing are left to faults
constexpr uint64_t kTurnNs = 300'000, kRestNs = 100'000'000;
constexpr uint64_t kBucketsInTurn = 1 << 14;
// of one check: twice as many as the server's cycle begins with
constexpr uint64_t kSampledMax = 40, kBucketsMax = 800;
constexpr int64_t kHorizonMs = 150;  // longer than the time to the server's next cycle
constexpr uint32_t kPauseOfExpiry = 1 << 2;

enum class State : uint8_t { kIdle, kActive, kResting };

struct Window {
  bool used = false;
  int database = 0;
  uint64_t cursor = 0, left = 0;  // the next bucket; buckets left
  unsigned rounds = 0;
  uint64_t sampled = 0, expired = 0;
  AheadFetch fetch;
};

struct Server {
  int (*try_expire)(const DatabaseView*, const void*, long long) = nullptr;
  void (*propagate)() = nullptr;
  int (*paused)(uint32_t) = nullptr;  // (7.0's takes nothing)
  int (*is_master)() = nullptr;
  int* enabled = nullptr;          // active expiry; the next field is its effort
  const int* importing = nullptr;  // Valkey: nothing expires meanwhile
  const int* debug = nullptr;      // 0: the server refuses DEBUG
};

struct Expiry {
  Server server;
  State state = State::kIdle;
  bool off_by_gate = false;    // the gate has switched the server's setting off
  bool off_by_client = false;  // a client has switched expiry off: it is left to the server,
  bool seen_off = false;       // until the server's setting has been off since then, and is on
  Window window[kWindows];
  int database = 0;
  bool busy = false;           // a window had many due keys: all windows are used
  unsigned quiet = 0;          // successive databases with few due keys
  uint64_t empty_buckets = 0;  // since a key was seen in this database
  uint64_t rest_until = 0;
  uint64_t until = 0;  // the end of this turn
  int64_t now_ms = 0;
};

constinit Expiry g_expiry;

// The clock of the server's own cycle. Commands have a cached one, which the server sets before it
// runs them; a turn is never inside a command, so no command loses a key that its clock still has.
int64_t wall_ms() {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

// Whether all memory is in DRAM that the expiry of this key reads.
bool is_in(NonresidentRanges* missing, const DatabaseView& database,
           const ExpiryTable::Entry& entry) {
  KeyLookup lookup{gate().layout, missing};
  const char* text = ExpiryTable::key_of(lookup, entry);
  if (text == nullptr) return false;
  const Slice key{text, sds_length(text)};
  lookup.removes = true;
  (void)lookup.look_up(database.expires, key);
  const auto* object = static_cast<const ObjectView*>(lookup.look_up(database.keys, key));
  if (object != nullptr && lookup.have(object, sizeof *object))
    look_up_freed(lookup, *object, false);
  return lookup.misses == 0;
}

// Expires the keys of a bucket that are due and in DRAM (`all`: all due keys). An expiry changes
// the chain, and may end a rehash; the bucket is then looked up again.
void expire_bucket(Window& window, const DatabaseView& database, uint64_t cursor, bool all) {
  Expiry& e = g_expiry;
  for (unsigned again = 0; again < ExpiryTable::kEntriesMax; ++again) {
    const ExpiryTable table(database);
    if (table.buckets() == 0) return;
    KeyLookup lookup{gate().layout, &window.fetch.missing};
    ExpiryTable::Entry entry[ExpiryTable::kEntriesMax];
    const unsigned n = table.bucket(lookup, cursor, entry);
    bool changed = false;
    for (unsigned i = 0; i < n && !changed; ++i) {
      if (e.now_ms <= entry[i].due_ms) continue;
      const bool in = is_in(&window.fetch.missing, database, entry[i]);
      if ((!in && !all) || e.server.try_expire(&database, entry[i].at, e.now_ms) == 0) continue;
      e.server.propagate();  // one by one, as in the server's cycle
      ++window.expired;
      ahead_counters().expired += 1;
      if (!in) ahead_counters().expired_cold += 1;
      changed = true;
    }
    if (!changed) {
      window.sampled += n;
      return;
    }
  }
}

// The share of due keys in this window decides whether the database goes on.
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

// Works on a window until the time of the turn is over, or pages are missing. The window is free
// again when all of it is done.
void do_window(Window& window) {
  const DatabaseView& database = *gate().layout.database(window.database);
  const bool all = window.rounds >= kRoundsOfWindow;
  NonresidentRanges& missing = window.fetch.missing;
  missing.clear();
  window.sampled = 0;
  bool late = false;
  uint64_t at = window.cursor;
  for (uint64_t left = window.left; left != 0 && !missing.full() && !late; --left) {
    const ExpiryTable table(database);
    if (table.buckets() == 0) return end_window(window);
    expire_bucket(window, database, at, all);
    at = table.after(at);
    if (missing.count == 0) window.cursor = at, window.left = left - 1;
    late = sys::now_ns() >= g_expiry.until;
  }
  if (missing.count != 0 && !all) {
    ++window.rounds;
    if (ahead_fetch(&window.fetch)) return;
  }
  if (!late || window.left == 0) end_window(window);
}

// Begins the next window of the tables. False: all databases are quiet.
bool next_window(Window& window) {
  Expiry& e = g_expiry;
  unsigned databases = 0;
  while (gate().layout.database(static_cast<int>(databases)) != nullptr) ++databases;
  for (; e.quiet < databases; ++e.quiet, ++e.database, e.empty_buckets = 0) {
    if (e.database >= static_cast<int>(databases)) e.database = 0;
    const DatabaseView* database = gate().layout.database(e.database);
    const ExpiryTable table(*database);
    if (e.empty_buckets >= table.buckets()) continue;
    uint64_t& cursor = gate().layout.expiry_cursor(*database);
    window.used = true;
    window.database = e.database;
    window.cursor = cursor;
    const uint64_t buckets = kWindow / table.places();
    window.left = buckets < table.buckets() ? buckets : table.buckets();
    window.rounds = 0;
    window.sampled = window.expired = 0;
    for (uint64_t i = 0; i < window.left; ++i) cursor = table.after(cursor);
    e.empty_buckets += window.left;
    return true;
  }
  return false;
}

// Whether the server's cycle would soon meet a due key, or a missing page.
bool something_due() {
  Gate& g = gate();
  const int64_t by = wall_ms() + kHorizonMs;
  for (int i = 0; const DatabaseView* database = g.layout.database(i); ++i) {
    const ExpiryTable table(*database);
    NonresidentRanges missing;
    KeyLookup lookup{g.layout, &missing};
    ExpiryTable::Entry entry[ExpiryTable::kEntriesMax];
    uint64_t sampled = 0, cursor = g.layout.expiry_cursor(*database);
    for (uint64_t b = 0; b < kBucketsMax && b < table.buckets() && sampled < kSampledMax; ++b) {
      const unsigned n = table.bucket(lookup, cursor, entry);
      for (unsigned i = 0; i < n; ++i)
        if (entry[i].due_ms < by) return true;
      sampled += n;
      cursor = table.after(cursor);
    }
    if (lookup.misses != 0) return true;
  }
  return false;
}

// Whether the server's cycle would expire keys, and no fields of hashes.
bool may_expire() {
  const Server& server = g_expiry.server;
  if (server.is_master() == 0 || server.paused(kPauseOfExpiry) != 0) return false;
  if (server.importing != nullptr && *server.importing != 0) return false;
  for (int i = 0; const DatabaseView* database = gate().layout.database(i); ++i)
    if (gate().layout.fields_expire(*database)) return false;
  return true;
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
      if (window.used || window.fetch.under_way || sys::now_ns() >= e.until || !next_window(window))
        continue;
      do_window(window);
      buckets += kWindow;
      more = true;
    }
  }
}

bool left_to_server() {
  Expiry& e = g_expiry;
  if (!e.off_by_client) return false;
  const bool on = *e.server.enabled == 1;
  e.seen_off |= !on;
  e.off_by_client = !on || !e.seen_off;
  return e.off_by_client;
}

// Gives up all windows: their keys are left to the server.
void stop() {
  Expiry& e = g_expiry;
  for (Window& window : e.window) window.used = false;
  e.state = State::kIdle;
}

}  // namespace

bool expiry_start() {
  Gate& g = gate();
  Server& server = g_expiry.server;
  const Keyspace keyspace = g.layout.keyspace();
  const bool dict = keyspace == Keyspace::kDict;
  if (!dict && g.layout.has_slots()) return false;  // a table of expiries for each slot
  if (!find_export("activeExpireCycleTryExpire", &server.try_expire) ||
      !find_export(dict ? "propagatePendingCommands" : "postExecutionUnitOperations",
                   &server.propagate) ||
      !find_export(dict ? "checkClientPauseTimeoutAndReturnIfPaused" : "isPausedActionsWithUpdate",
                   &server.paused) ||
      !find_export(keyspace == Keyspace::kTables ? "iAmPrimary" : "iAmMaster", &server.is_master))
    return false;
  auto* effort = static_cast<int*>(server_setting("active-expire-effort"));
  if (effort == nullptr || *effort < 1 || *effort > 10 || (effort[-1] != 0 && effort[-1] != 1))
    return false;
  if (keyspace == Keyspace::kTables) {
    server.importing = static_cast<const int*>(server_setting("import-mode"));
    if (server.importing == nullptr) return false;
  }
  server.debug = static_cast<const int*>(server_setting("enable-debug-command"));
  server.enabled = effort - 1;
  return true;
}

void expiry_open() {
  Expiry& e = g_expiry;
  if (!e.off_by_gate) return;
  *e.server.enabled = 1;
  e.off_by_gate = false;
}

bool expiry_shut() {
  Expiry& e = g_expiry;
  if (e.state == State::kIdle) return false;
  if (*e.server.enabled != 1) {  // switched off by a client
    if (!e.off_by_gate) stop();
    return e.off_by_gate;
  }
  *e.server.enabled = 0;
  return e.off_by_gate = true;
}

void expiry_wished(bool on) {
  Expiry& e = g_expiry;
  if (on) {
    e.seen_off = true;
    return;
  }
  stop();
  expiry_open();
  e.off_by_client = true;
  e.seen_off = false;
}

bool expiry_takes_wishes() {
  const Server& server = g_expiry.server;
  return server.enabled != nullptr && (server.debug == nullptr || *server.debug != 0);
}

bool expiry_is_shut() { return g_expiry.off_by_gate; }

bool expiry_works() { return g_expiry.state != State::kIdle; }

bool expiry_turn(uint64_t now) {
  Expiry& e = g_expiry;
  if (e.server.enabled == nullptr || left_to_server()) return false;
  if (!gate().watching() || !may_expire()) {
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
