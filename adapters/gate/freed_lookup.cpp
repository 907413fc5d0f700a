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

constexpr uint64_t kFreedElementsMax = 1024;  // of a collection that is gone through
// elements from which on another thread frees it (the server's own bound)
constexpr uint64_t kFreedLaterFrom = 64;
constexpr size_t kCountedBytes = 8;     // of a listpack or integers: up to the number of elements
constexpr unsigned kListNodesMax = 16;  // a chain: each may cost a round

// EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT: whether the time has been.
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

// As have(), for small pieces of which many lie in one page: that is asked for once.
bool have_part(KeyLookup& lookup, const void* address, size_t bytes) {
  if (lookup.resident(address, bytes)) return true;
  ++lookup.misses;
  lookup.missing->add_new(address, bytes, kRangesMax);
  return false;
}

// The memory of a string that is freed: the byte before its text.
void freed_text(KeyLookup& lookup, const void* text) {
  if (text != nullptr) (void)have_part(lookup, static_cast<const char*>(text) - 1, 1);
}

// fields: values are texts; scores: values are inside a skip list's nodes.
enum class Parts { kMembers, kFields, kScores };

void freed_entries(KeyLookup& lookup, const EntryView* entry, Parts parts) {
  for (unsigned n = 0; entry != nullptr && n < kChainMax; ++n) {
    const Marked marked{reinterpret_cast<uintptr_t>(entry)};
    const bool no_value = marked.is_without_value();
    const auto* at = reinterpret_cast<const EntryView*>(marked.address());
    if (marked.is_key()) return freed_text(lookup, at);
    if (!have_part(lookup, at, no_value ? 16 : sizeof *at)) return;
    freed_text(lookup, at->key);
    if (parts == Parts::kFields) freed_text(lookup, at->value);
    // member, score, links
    if (parts == Parts::kScores && at->value != nullptr)
      (void)have_part(lookup, static_cast<const char*>(at->value) - 8, 40);
    entry = no_value ? static_cast<const EntryView*>(at->value) : at->next;
  }
}

// Valkey: a node, or a text, with a pointer to the value before it if the header says so.
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
    if (slots > 2 * kFreedElementsMax) return;  // few left of many
    lookup.missing->work(static_cast<unsigned>(slots + 2 * table->used[t]));
    if (!lookup.have(table->table[t], slots * sizeof(BucketView))) continue;
    for (uint64_t s = 0; s < slots && !lookup.missing->full(); ++s) {
      const BucketView* bucket = table->table[t] + s;
      for (unsigned n = 0;
           bucket != nullptr && n < kChainMax && have_part(lookup, bucket, sizeof *bucket); ++n) {
        for (unsigned i = 0; i < bucket->places(); ++i)
          if (bucket->holds(i)) freed_entry(lookup, bucket->entries[i], parts);
        bucket = bucket->next();
      }
    }
  }
}

void freed_dict(KeyLookup& lookup, const DictView* dict, Parts parts, bool later) {
  if (!lookup.have(dict, sizeof *dict)) return;
  const uint64_t used = dict->used[0] + dict->used[1];
  if (used > (later ? kFreedLaterFrom : kFreedElementsMax)) return;
  for (int t = 0; t < 2 && dict->table[t] != nullptr; ++t) {
    const uint64_t slots = uint64_t{1} << dict->exponent[t];
    if (slots > 16 * kFreedElementsMax) return;  // few left of many
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
      // Redis 8 counts keys by the size of their value, and reads that of what it moves.
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
      if (!lookup.have(zset, sizeof *zset) || !lookup.have(zset->skiplist, kSkiplistBytes)) return;
      const void* head = *static_cast<const void* const*>(zset->skiplist);
      if (head != nullptr) (void)lookup.have(head, 40);
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
      break;  // in the object, or one piece whose inside is not read
  }
}

}  // namespace lunar::redis
