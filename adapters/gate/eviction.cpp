// SPDX-License-Identifier: Apache-2.0
// See eviction.h.
#include "eviction.h"

#include <cstring>
#include <utility>

#include "ahead.h"
#include "base/host_guard.h"
#include "freed_lookup.h"
#include "gate_inside.h"
#include "key_slot.h"
#include "server_fields.h"
#include "server_tables.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

// These are the server's own.
constexpr unsigned kPool = 16;
constexpr size_t kCachedBytes = 255;
struct PoolEntry {
  uint64_t idle;  // or another measure: the largest is evicted first
  char* key;      // text in `cached`, or of its own
  char* cached;
  int32_t database;
  int32_t slot;  // of 8.0 and Valkey, in a cluster; unused by 7.0
};
static_assert(sizeof(PoolEntry) == 32);
constexpr int kLru = 1, kLfu = 2, kAllKeys = 4;  // bits of a policy
constexpr int kVolatileTtl = 2 << 8, kVolatileRandom = 3 << 8,
              kAllKeysLru = 4 << 8 | kLru | kAllKeys, kAllKeysRandom = 6 << 8 | kAllKeys;

constexpr unsigned kBatches = 8, kBatch = 32;
constexpr unsigned kRoundsOfBatch = 8, kFilledInTurn = 3;
// from so many bytes below maxmemory on, victims are made ready, and commands need them
constexpr uint64_t kNearBytes = 4 << 20, kOverBytes = 256 << 10;
constexpr size_t kGrowsBytes = 128;  // shorter commands hardly evict
constexpr uint64_t kFreshNs = 1'000'000'000;
constexpr uint64_t kOffered = UINT64_MAX;  // the measure of a candidate that is ready

struct Candidate {
  int database = 0;
  uint8_t bytes = 0;
  char key[kCachedBytes] = {};
  Slice slice() const { return {key, bytes}; }
};

struct Batch {
  enum class State : uint8_t { kEmpty, kFetching, kReady } state = State::kEmpty;
  unsigned count = 0, rounds = 0;
  uint64_t chosen_ns = 0;
  Candidate candidate[kBatch];
  AheadFetch fetch;
};

struct Server {
  int (*memory_state)(size_t*, size_t*, size_t*, float*) = nullptr;
  void (*populate_dict)(int, void*, void*, PoolEntry*) = nullptr;           // 7.0
  int (*populate_store)(const DatabaseView*, void*, PoolEntry*) = nullptr;  // others
  void (*free_text)(char*) = nullptr;
  int (*evict)() = nullptr;
  uint64_t* most = nullptr;
  int *samples = nullptr, *policy = nullptr;  // policy: set last; nullptr: the server evicts alone
  PoolEntry** pool = nullptr;
};

struct Eviction {
  Server server;
  PoolEntry own[kPool] = {};
  Batch batch[kBatches];
  bool near = false, over = false, usable = false;
  int next_database = 0;  // from which a random policy takes the next key
  unsigned next = 0;      // batch from which victims are offered
  unsigned promised = 0;  // victims for commands that were passed on since the last turn
  bool asked = false;     // commands that may evict came since the last turn
  uint64_t asked_ns = 0, offered_ns = 0;
};

constinit Eviction g_eviction;

// Whether this is the text of an entry of the pool: a string with room for kCachedBytes. Its header
// has length, room and kind: in Redis of one byte each, in Valkey of two bytes for the first two.
bool is_cached(const char* text) {
  uint8_t header[5];
  if (text == nullptr || sys::peek(text - 5, header, sizeof header) != 0) return false;
  const unsigned kind = header[4] & 7, wide_room = header[2] | header[3] << 8;
  return kind == 1 ? header[3] == kCachedBytes
                   : kind == 2 && wide_room >= kCachedBytes && wide_room < 2 * kCachedBytes;
}

void set_length(char* cached, uint8_t bytes) {
  const bool wide = (cached[-1] & 7) == 2;
  cached[wide ? -5 : -3] = static_cast<char>(bytes);
  if (wide) cached[-4] = 0;
}

bool is_pool(const void* pointer) {
  PoolEntry entry[kPool];
  // The first entry is checked before the rest, because most words point elsewhere.
  if (sys::peek(pointer, entry, sizeof *entry) != 0 || !is_cached(entry->cached) ||
      sys::peek(pointer, entry, sizeof entry) != 0)
    return false;
  for (const PoolEntry& one : entry)
    if (!is_cached(one.cached) || one.database < 0 ||
        gate().layout.database(one.database) == nullptr)
      return false;
  return true;
}

bool chooses_from_pool(int policy) {
  return (policy & (kLru | kLfu)) != 0 || policy == kVolatileTtl;
}
bool chooses_at_random(int policy) { return policy == kVolatileRandom || policy == kAllKeysRandom; }

// Bytes below maxmemory; negative above it.
double bytes_left() {
  const Server& server = g_eviction.server;
  float level = 0;
  (void)server.memory_state(nullptr, nullptr, nullptr, &level);
  return (1 - static_cast<double>(level)) * static_cast<double>(*server.most);
}

// Finds out whether the next commands may evict (near), or will (over).
void look_at_memory() {
  Eviction& e = g_eviction;
  e.near = e.over = false;
  if (*e.server.most == 0 ||
      !(chooses_from_pool(*e.server.policy) || chooses_at_random(*e.server.policy)))
    return;
  const double left = bytes_left();
  e.near = left < static_cast<double>(kNearBytes);
  e.over = left < static_cast<double>(kOverBytes);
}

bool chosen_before(int database, Slice key) {
  auto same = [&](int its_database, const char* text, size_t bytes) {
    return its_database == database && bytes == key.bytes && memcmp(text, key.data, bytes) == 0;
  };
  for (const Batch& batch : g_eviction.batch)
    for (unsigned i = 0; i < batch.count; ++i)
      if (same(batch.candidate[i].database, batch.candidate[i].key, batch.candidate[i].bytes))
        return true;
  const PoolEntry* pool = *g_eviction.server.pool;
  for (unsigned i = 0; i < kPool; ++i)
    if (pool[i].key != nullptr && pool[i].idle == kOffered &&
        same(pool[i].database, pool[i].key, sds_length(pool[i].key)))
      return true;
  return false;
}

void forget(PoolEntry& entry) {
  if (entry.key != entry.cached) g_eviction.server.free_text(entry.key);
  entry.key = nullptr;
  entry.idle = 0;
}

// Copies a key that can be a candidate. False: it is too long, or was chosen before.
bool make_candidate(int database, Slice key, Candidate* out) {
  if (key.bytes > kCachedBytes || chosen_before(database, key)) return false;
  out->database = database;
  out->bytes = static_cast<uint8_t>(key.bytes);
  memcpy(out->key, key.data, key.bytes);
  return true;
}

// Chooses a key of one database after the other, as the server does. False: there is none, or it
// was chosen before.
bool choose_at_random(Candidate* out) {
  Eviction& e = g_eviction;
  int databases = 0;
  while (gate().layout.database(databases) != nullptr) ++databases;
  for (int tries = 0; tries < databases; ++tries) {
    const int at = e.next_database = (e.next_database + 1) % databases;
    const DatabaseView* database = gate().layout.database(at);
    const char* key =
        random_key((*e.server.policy & kAllKeys) != 0 ? database->keys : database->expires);
    if (key != nullptr) return make_candidate(at, {key, sds_length(key)}, out);
  }
  return false;
}

// Chooses the best of a sample, like the server. False: there is none.
bool choose(Candidate* out) {
  Eviction& e = g_eviction;
  if (chooses_at_random(*e.server.policy)) return choose_at_random(out);
  const bool all_keys = (*e.server.policy & kAllKeys) != 0;
  for (int i = 0; const DatabaseView* database = gate().layout.database(i); ++i) {
    void* from = all_keys ? database->keys : database->expires;
    if (entries_in(from) == 0) continue;
    if (e.server.populate_dict != nullptr)
      e.server.populate_dict(i, from, database->keys, e.own);
    else
      (void)e.server.populate_store(database, from, e.own);
  }
  for (unsigned k = kPool; k-- > 0;) {
    PoolEntry& entry = e.own[k];
    if (entry.key == nullptr) continue;
    const bool good = make_candidate(entry.database, {entry.key, sds_length(entry.key)}, out);
    forget(entry);
    if (good) return true;
  }
  return false;
}

// Requests the missing pages of a batch, or makes it ready.
void fetch_missing(Batch& batch) {
  Gate& g = gate();
  NonresidentRanges& missing = batch.fetch.missing;
  missing.clear();
  for (unsigned i = 0; i < batch.count && !missing.full(); ++i) {
    const Candidate& one = batch.candidate[i];
    const DatabaseView* database = g.layout.database(one.database);
    KeyLookup lookup{g.layout, &missing};
    lookup.removes = true;
    (void)lookup.look_up(database->expires, one.slice());
    const auto* object =
        static_cast<const ObjectView*>(lookup.look_up(database->keys, one.slice()));
    if (object != nullptr && lookup.have(object, sizeof *object))
      look_up_freed(lookup, *object, false);
    if (object == nullptr && lookup.misses == 0)
      batch.candidate[i--] = batch.candidate[--batch.count];  // gone
  }
  batch.state = Batch::State::kReady;
  if (missing.count == 0 || batch.rounds++ >= kRoundsOfBatch || !ahead_fetch(&batch.fetch)) return;
  batch.state = Batch::State::kFetching;
}

void fill(Batch& batch, uint64_t now) {
  batch.count = batch.rounds = 0;
  batch.chosen_ns = now;
  for (unsigned tries = 0; tries < kBatch && batch.count < kBatch; ++tries)
    if (choose(&batch.candidate[batch.count])) ++batch.count;
  ahead_counters().evictable += batch.count;
  if (batch.count != 0) fetch_missing(batch);
}

// Removes candidates that the server has not taken from its pool, because they may be in use again.
void withdraw() {
  if (!g_eviction.usable) return;
  PoolEntry* pool = *g_eviction.server.pool;
  for (unsigned k = kPool; k-- > 0;)
    if (pool[k].key != nullptr && pool[k].idle == kOffered) forget(pool[k]);
}

bool find_pool() {
  Eviction& e = g_eviction;
  if (e.usable) return true;
  static bool looked = false;
  if (std::exchange(looked, true)) return false;
  HostGuard guard;
  char* (*make)(const void*, size_t);
  e.server.pool = reinterpret_cast<PoolEntry**>(program_pointer(is_pool));
  if (!find_export("sdsnewlen", &make) || e.server.pool == nullptr) return false;
  for (PoolEntry& entry : e.own)
    if (entry.cached = make(nullptr, kCachedBytes); entry.cached == nullptr) return false;
  return e.usable = true;
}

void take_fetched() {
  for (Batch& batch : g_eviction.batch)
    if (batch.state == Batch::State::kFetching && !batch.fetch.under_way) fetch_missing(batch);
}

unsigned offered() {
  const PoolEntry* pool = *g_eviction.server.pool;
  unsigned n = 0;
  for (unsigned i = 0; i < kPool; ++i) n += pool[i].key != nullptr && pool[i].idle == kOffered;
  return n;
}

// Puts a candidate at the end of the server's pool: into the last free place, or in place of the
// worst entry.
void offer(const Candidate& candidate) {
  PoolEntry* pool = *g_eviction.server.pool;
  unsigned at = 0;
  while (at < kPool && pool[at].key != nullptr) ++at;
  if (at == kPool) {
    forget(pool[0]);
    char* cached = pool[0].cached;
    memmove(pool, pool + 1, (kPool - 1) * sizeof *pool);
    pool[--at].cached = cached;
  }
  PoolEntry& entry = pool[at];
  memcpy(entry.cached, candidate.key, candidate.bytes);
  entry.cached[candidate.bytes] = 0;
  set_length(entry.cached, candidate.bytes);
  entry.key = entry.cached;
  entry.idle = kOffered;
  entry.database = candidate.database;
  entry.slot = gate().layout.has_slots() ? static_cast<int32_t>(key_slot(candidate.slice())) : 0;
}

void offer_ready() {
  Eviction& e = g_eviction;
  unsigned there = offered();
  for (unsigned n = 0; n < kBatches && there < kPool; ++n, e.next = (e.next + 1) % kBatches) {
    Batch& batch = e.batch[e.next];
    for (; batch.state == Batch::State::kReady && batch.count != 0 && there < kPool; ++there)
      offer(batch.candidate[--batch.count]);
    if (there == kPool) return;
  }
}

// Evicts the last key of the pool under any policy. False: the server does not evict now.
bool evict_one() {
  Server& server = g_eviction.server;
  const uint64_t most = *server.most;
  const int policy = *server.policy, samples = *server.samples;
  const uint64_t evicted = offered();
  size_t used = 0;
  *server.most = 1;
  (void)server.memory_state(nullptr, &used, nullptr, nullptr);
  *server.most = used - 1;
  *server.policy = (policy & kAllKeys) != 0 ? kAllKeysLru : kVolatileTtl;
  *server.samples = 1;
  if (used > 1) (void)server.evict();
  *server.most = most;
  *server.policy = policy;
  *server.samples = samples;
  return offered() < evicted;
}

// For a random policy, evicts ahead of the commands, because the server would choose other keys in
// them.
void evict_ahead() {
  const uint64_t most = *g_eviction.server.most;
  const auto kept = static_cast<double>(most / 64 < kOverBytes ? most / 64 : kOverBytes);
  while (bytes_left() < kept) {
    if (offered() == 0) offer_ready();
    if (offered() == 0 || !evict_one()) return;
  }
}

}  // namespace

bool eviction_start() {
  const Keyspace keyspace = gate().layout.keyspace();
  const bool dict = keyspace == Keyspace::kDict;
  Server& server = g_eviction.server;
  if (!find_export("getMaxmemoryState", &server.memory_state) ||
      !find_export("sdsfree", &server.free_text) ||
      !find_export("performEvictions", &server.evict) || !find_table_functions(keyspace) ||
      !(dict ? find_export("evictionPoolPopulate", &server.populate_dict)
             : find_export("evictionPoolPopulate", &server.populate_store)) ||
      server_export(dict ? "propagatePendingCommands" : "postExecutionUnitOperations") == nullptr)
    return false;
  server.most = static_cast<uint64_t*>(server_setting("maxmemory"));
  server.samples = static_cast<int*>(server_setting("maxmemory-samples"));
  if (server.most == nullptr || server.samples == nullptr) return false;
  server.policy = static_cast<int*>(server_setting("maxmemory-policy"));
  return server.policy != nullptr;
}

bool eviction_near() { return g_eviction.near; }

bool eviction_turn(uint64_t now) {
  Eviction& e = g_eviction;
  if (e.server.policy == nullptr) return false;
  e.promised = 0;
  if (std::exchange(e.asked, false)) e.asked_ns = now;
  const bool was_near = e.near;
  look_at_memory();
  e.near = e.near && gate().watching() && find_pool();
  e.over = e.over && e.near;
  if (was_near && !e.near) withdraw();
  if (!e.near) return false;
  if (now > e.offered_ns + kFreshNs) {
    withdraw();
    e.offered_ns = now;
  }
  take_fetched();
  unsigned filled = 0;
  for (Batch& batch : e.batch) {
    if (batch.fetch.under_way) continue;
    if (batch.state == Batch::State::kReady &&
        (batch.count == 0 || now > batch.chosen_ns + kFreshNs))
      batch.state = Batch::State::kEmpty;
    if (batch.state != Batch::State::kEmpty || now > e.asked_ns + kFreshNs) continue;
    if (filled++ < kFilledInTurn) fill(batch, now);
  }
  eviction_offer();
  return filled > kFilledInTurn;
}

void eviction_offer() {
  Eviction& e = g_eviction;
  if (!e.near) return;
  take_fetched();
  if (chooses_at_random(*e.server.policy))
    evict_ahead();
  else
    offer_ready();
}

bool eviction_has_victim(size_t bytes, NonresidentRanges* missing) {
  Eviction& e = g_eviction;
  if (!e.near || bytes < kGrowsBytes) return true;
  e.asked = true;
  if (!e.over) return true;
  unsigned ready = offered();
  for (const Batch& batch : e.batch)
    if (batch.state == Batch::State::kReady) ready += batch.count;
  if (e.promised < ready) return ++e.promised, true;
  const Batch* oldest = nullptr;
  for (const Batch& batch : e.batch)
    if (batch.state == Batch::State::kFetching && batch.fetch.under_way &&
        (oldest == nullptr || batch.chosen_ns < oldest->chosen_ns))
      oldest = &batch;
  if (oldest == nullptr || missing->full()) return true;
  const lunar_range& last = oldest->fetch.missing.range[oldest->fetch.missing.count - 1];
  missing->add(last.address, last.bytes);
  return false;
}

}  // namespace lunar::redis
