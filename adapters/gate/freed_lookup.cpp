// SPDX-License-Identifier: Apache-2.0
// See freed_lookup.h.
#include "freed_lookup.h"

#include <time.h>

#include "collection_probe.h"
#include "gate_inside.h"
#include "pager/pager.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kFreedElementsMax = 1024;  // of a collection that is gone through
// elements from which on another thread frees it (the server's own bound)
constexpr uint64_t kFreedLaterFrom = 64;
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
  return command.kept > 2 && in_the_past(name, command.argument[2]) ? Wants::kFreed : Wants::kObject;
}

// As have(), for small pieces of which many lie in one page: that is asked for once.
bool have_part(KeyLookup& lookup, const void* address, size_t bytes) {
  if (lookup.resident(address, bytes)) return true;
  lookup.complete = false;
  const uint64_t page = page_bytes(), first = reinterpret_cast<uintptr_t>(address) / page,
                 last = (reinterpret_cast<uintptr_t>(address) + bytes - 1) / page;
  for (unsigned i = lookup.missing->count; i > 0; --i) {
    const lunar_range& range = lookup.missing->range[i - 1];
    const auto at = reinterpret_cast<uintptr_t>(range.address);
    if (at / page <= first && last <= (at + range.bytes - 1) / page) return false;
  }
  lookup.missing->add(address, bytes);
  return false;
}

// The memory of a string that is freed: the byte before its text.
void freed_text(KeyLookup& lookup, const void* text) {
  if (text != nullptr) (void)have_part(lookup, static_cast<const char*>(text) - 1, 1);
}

// fields: values are texts; scores: values are inside of a skip list's nodes.
enum class Parts { kMembers, kFields, kScores };

void freed_entries(KeyLookup& lookup, const EntryView* entry, Parts parts) {
  for (unsigned n = 0; entry != nullptr && n < kChainMax && have_part(lookup, entry, sizeof *entry);
       ++n, entry = entry->next) {
    freed_text(lookup, entry->key);
    if (parts == Parts::kFields) freed_text(lookup, entry->value);
    // member, score, links
    if (parts == Parts::kScores && entry->value != nullptr)
      (void)have_part(lookup, static_cast<const char*>(entry->value) - 8, 40);
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

void freed_list(KeyLookup& lookup, const QuicklistView* list) {
  if (!lookup.have(list, 40)) return;
  const QuicklistNodeView* node = list->head;
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && lookup.have(node, sizeof *node); ++n) node = node->next;
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
      if (nth == 0) return gate().layout.keyspace() == Keyspace::kDicts ? Wants::kValue : Wants::kObject;
      return Wants::kFreed;
    default:
      return keys.wants;
  }
}

void look_up_freed(KeyLookup& lookup, const ObjectView& object, bool later) {
  const char* at = object.pointer;
  if (at == nullptr || !collection_known(lookup.layout.keyspace(), object)) return;
  const bool dicts = lookup.layout.keyspace() == Keyspace::kDict;  // what is in their collections is known
  switch (object.encoding()) {
    case kRaw:
      if (object.type() == kString) freed_text(lookup, at);
      break;
    case kHashTable:
      if (!dicts)
        (void)lookup.have(at, sizeof(DictView));
      else
        freed_dict(lookup, reinterpret_cast<const DictView*>(at),
                   object.type() == kHash ? Parts::kFields : Parts::kMembers, later);
      break;
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!lookup.have(zset, sizeof *zset) || !lookup.have(zset->skiplist, kSkiplistBytes)) return;
      if (!dicts) return (void)lookup.have(zset->members, sizeof(DictView));
      const void* head = *static_cast<const void* const*>(zset->skiplist);
      if (head != nullptr) (void)lookup.have(head, 40);
      freed_dict(lookup, static_cast<const DictView*>(zset->members), Parts::kScores, later);
      break;
    }
    case kQuicklist:
      freed_list(lookup, reinterpret_cast<const QuicklistView*>(at));
      break;
    case kStream:
      (void)lookup.have(at, kStreamBytes);
      break;
    default:
      break;  // in the object, or one piece whose inside is not read
  }
}

}  // namespace lunar::redis
