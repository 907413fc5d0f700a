// SPDX-License-Identifier: Apache-2.0
// See freed_lookup.h.
#include "freed_lookup.h"

#include <time.h>

#include <cstring>
#include <initializer_list>

#include "collection_probe.h"
#include "gate_inside.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kFreedElementsMax = 1024;  // larger collections are not looked up
// collections with more elements are freed by another thread (the server's own bound)
constexpr uint64_t kFreedLaterFrom = 64;
constexpr size_t kCountedBytes = 8;     // of a listpack or integers, with the number of elements
constexpr unsigned kListNodesMax = 16;  // a chain: each may cost a round

// Whether the time of an EXPIRE, PEXPIRE, EXPIREAT or PEXPIREAT is in the past.
bool in_the_past(Slice name, Slice time) {
  const bool milliseconds = name.data[0] == 'P' || name.data[0] == 'p';
  const char last = name.data[name.bytes - 1];
  int64_t at = -1;
  (void)signed_number(time, &at);
  if (last != 't' && last != 'T') return at <= 0;
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return (milliseconds ? at / 1000 : at) <= now.tv_sec;
}

Wants depending(const Command& command) {
  const Slice name = command.argument[0];
  if (same_word(name, "SET")) {
    if (command.kept <= 3) return Wants::kFreed;
    return has_word(command, 3, command.kept, "GET")  ? Wants::kValue
           : has_word(command, 3, command.kept, "NX") ? Wants::kObject
                                                      : Wants::kFreed;
  }
  if (same_word(name, "RESTORE") || same_word(name, "RESTORE-ASKING"))
    return has_word(command, 4, command.kept, "REPLACE") ? Wants::kFreed : Wants::kObject;
  return command.kept > 2 && in_the_past(name, command.argument[2]) ? Wants::kFreed
                                                                    : Wants::kObject;
}

// Like KeyLookup::have(), for small pieces: a page with many of them is requested once.
bool have_part(KeyLookup& lookup, const void* address, size_t bytes) {
  if (lookup.resident(address, bytes)) return true;
  ++lookup.misses;
  lookup.missing->add_new(address, bytes, kRangesMax);
  return false;
}

auto part_haver(KeyLookup& lookup) {
  return [&](const void* address, size_t bytes) { return have_part(lookup, address, bytes); };
}

// The memory of a string that is freed: the byte before its text.
void freed_text(KeyLookup& lookup, const void* text) {
  if (text != nullptr) (void)have_part(lookup, static_cast<const char*>(text) - 1, 1);
}

// kFields: values are texts; kScores: values are in the nodes of a skip list.
enum class Parts { kMembers, kFields, kScores };

void freed_entries(KeyLookup& lookup, EntryView* entry, Parts parts) {
  (void)for_each_entry(entry, part_haver(lookup), [&](const ChainEntry& one) {
    freed_text(lookup, one.key);
    if (parts == Parts::kFields) freed_text(lookup, one.value);
    if (parts == Parts::kScores && one.value != nullptr)
      (void)have_part(lookup,
                      static_cast<const char*>(one.value) - offsetof(SkiplistNodeView, score),
                      kNodeBytes);
    return true;
  });
}

// Valkey: a node, or a text; if its header says so, a pointer to the value precedes the text.
void freed_entry(KeyLookup& lookup, const void* entry, Parts parts) {
  const auto* name = static_cast<const char*>(entry);
  if (parts == Parts::kScores) {
    const auto* node = static_cast<const SkiplistNodeView*>(entry);
    if (have_part(lookup, node, sizeof *node)) freed_text(lookup, node->member);
    return;
  }
  if (!have_part(lookup, name - 1, 1) || parts != Parts::kFields ||
      !KeyLookup::value_is_apart(name))
    return;
  const char* at = name - sds_header(static_cast<uint8_t>(name[-1])) - sizeof(void*);
  const void* value;
  if (!have_part(lookup, at, sizeof value)) return;
  memcpy(&value, at, sizeof value);
  freed_text(lookup, value);
}

void freed_table(KeyLookup& lookup, const TableView* table, Parts parts, bool later) {
  if (!lookup.have(table, sizeof *table)) return;
  if (table->used[0] + table->used[1] > (later ? kFreedLaterFrom : kFreedElementsMax)) return;
  for (int t = 0; t < 2; ++t) {
    if (table->table[t] == nullptr) continue;
    const uint64_t slots = uint64_t{1} << table->exponent[t];
    if (slots > 2 * kFreedElementsMax) return;  // a large table with few elements
    lookup.missing->work(static_cast<unsigned>(slots + 2 * table->used[t]));
    if (!lookup.have(table->table[t], slots * sizeof(BucketView))) continue;
    for (uint64_t s = 0; s < slots && !lookup.missing->full(); ++s) {
      (void)for_each_place(table->table[t] + s, part_haver(lookup),
                           [&](const BucketView& bucket, unsigned place) {
                             freed_entry(lookup, bucket.entries[place], parts);
                             return true;
                           });
    }
  }
}

void freed_dict(KeyLookup& lookup, const DictView* dict, Parts parts, bool later) {
  if (!lookup.have(dict, sizeof *dict)) return;
  const uint64_t used = dict->used[0] + dict->used[1];
  if (used > (later ? kFreedLaterFrom : kFreedElementsMax)) return;
  for (int t = 0; t < 2 && dict->table[t] != nullptr; ++t) {
    const uint64_t slots = uint64_t{1} << dict->exponent[t];
    if (slots > 16 * kFreedElementsMax) return;  // a large table with few elements
    lookup.missing->work(static_cast<unsigned>(slots / 16 + 2 * dict->used[t]));
    if (!lookup.have(dict->table[t], slots * sizeof(void*))) continue;
    for (uint64_t s = 0; s < slots && !lookup.missing->full(); ++s)
      if (dict->table[t][s] != nullptr) freed_entries(lookup, dict->table[t][s], parts);
  }
}

void freed_members(KeyLookup& lookup, const void* members, Parts parts, bool later) {
  if (lookup.layout.keyspace() == Keyspace::kTables)
    freed_table(lookup, static_cast<const TableView*>(members), parts, later);
  else
    freed_dict(lookup, static_cast<const DictView*>(members), parts, later);
}

void freed_list(KeyLookup& lookup, const QuicklistView* list) {
  if (!lookup.have(list, 40)) return;
  const QuicklistNodeView* node = list->head;
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && lookup.have(node, sizeof *node); ++n)
    node = node->next;
}

}  // namespace

Wants wants_of_key(const CommandKeys& keys, const Command& command, unsigned nth) {
  switch (keys.wants) {
    case Wants::kDepends:
      return depending(command);
    case Wants::kStores:
      return nth == 0 ? Wants::kFreed : Wants::kValue;
    case Wants::kMoves:
      // Redis 8 counts keys by the size of their value, and reads the size when it moves one.
      if (nth == 0)
        return gate().layout.keyspace() == Keyspace::kDicts ? Wants::kValue : Wants::kObject;
      return Wants::kFreed;
    default:
      return keys.wants;
  }
}

bool takes_out(const CommandKeys& keys, Wants wants) {
  for (const char* name : {"DEL", "UNLINK", "GETDEL", "RENAME", "RENAMENX", "MOVE", "HDEL",
                           "HGETDEL", "SREM", "SMOVE", "ZREM"})
    if (strcmp(keys.name, name) == 0) return true;
  return wants == Wants::kFreed &&
         (strstr(keys.name, "EXPIRE") != nullptr || strstr(keys.name, "RESTORE") != nullptr);
}

void look_up_freed(KeyLookup& lookup, const ObjectView& object, bool later) {
  const char* at = object.pointer;
  if (at == nullptr || !collection_known(lookup.layout.keyspace(), object)) return;
  switch (object.encoding()) {
    case kRaw:
      if (object.type() == kString) freed_text(lookup, at);
      break;
    case kHashTable:
      freed_members(lookup, at, object.type() == kHash ? Parts::kFields : Parts::kMembers, later);
      break;
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!lookup.have(zset, sizeof *zset) || !lookup.have(zset->skiplist, sizeof(SkiplistView)))
        return;
      if (const SkiplistNodeView* header = zset->skiplist->header; header != nullptr)
        (void)lookup.have(header, sizeof *header);
      freed_members(lookup, zset->members, Parts::kScores, later);
      break;
    }
    case kQuicklist:
      freed_list(lookup, reinterpret_cast<const QuicklistView*>(at));
      break;
    case kStream:
      (void)lookup.have(at, kStreamBytes);
      break;
    case kListpack:
    case kIntset:  // Redis 8 counts keys by their elements
      if (lookup.layout.keyspace() == Keyspace::kDicts) (void)lookup.have(at, kCountedBytes);
      break;
    default:
      break;  // inside the object, or one block that is not read
  }
}

}  // namespace lunar::redis
