// SPDX-License-Identifier: Apache-2.0
// See key_lookup.h.
#include "key_lookup.h"

#include <cstring>
#include <utility>

#include "collection_probe.h"
#include "freed_lookup.h"
#include "key_slot.h"
#include "lookup_steps.h"
#include "pager/page_view.h"
#include "pager/pager.h"
#include "value_lookup.h"

namespace lunar::redis {
void KeyLookup::note_use(PageView page) {
  for (unsigned i = 0; i < used_count; ++i)
    if (used[i] == page) return;
  if (used_count < kUsedMax) used[used_count++] = page;
  page.note_use();
}

void KeyLookup::count_uses() {
  for (unsigned i = 0; i < used_count; ++i) used[i].note_another_use();
}

// Whether touching the bytes needs no I/O. Pages outside regions count as resident, as do those never written.
bool KeyLookup::resident(const void* address, size_t bytes) {
  const PageSpan pages = PageSpan::of(address, bytes);
  for (uint64_t i = 0; i < pages.count; ++i) {
    const PageView page = pages.at(i);
    if (page.cold()) return false;
    if (page.resident()) note_use(page);
  }
  return true;
}

bool KeyLookup::have(const void* address, size_t bytes) {
  if (seen != nullptr) {
    const uintptr_t page = reinterpret_cast<uintptr_t>(address) / page_bytes();
    if (page == (reinterpret_cast<uintptr_t>(address) + bytes - 1) / page_bytes()) {
      uintptr_t& slot = seen->slot(page);
      if (slot >> 1 == page) {
        complete &= (slot & 1) != 0;
        return (slot & 1) != 0;
      }
      slot = page << 1 | (resident(address, bytes) ? 1 : 0);
      if ((slot & 1) != 0) return true;
      complete = false;
      missing->add(address, bytes);
      return false;
    }
  }
  if (resident(address, bytes)) return true;
  complete = false;
  if (skipped == nullptr || !skipped->has(page_view(address))) missing->add(address, bytes);
  return false;
}

bool KeyLookup::have_text(const char* text) {
  if (!have(text - 1, 1)) return false;
  const unsigned header = sds_header(static_cast<uint8_t>(text[-1]));
  if (header == 0 || !have(text - header, header)) return false;
  uint64_t length = sds_length(text);
  return have(text - header, header + (length < kValueBytesMax ? length : kValueBytesMax) + 1);
}

bool KeyLookup::chain(EntryView* entry, Slice key, EntryView** found) {
  for (unsigned n = 0; entry != nullptr && n < kChainMax; ++n) {
    const Marked marked{reinterpret_cast<uintptr_t>(entry)};
    const bool no_value = (marked.raw & 7) == 4;
    auto* at = reinterpret_cast<EntryView*>(marked.address());
    if (!marked.is_key() && !have(at, no_value ? 16 : sizeof *at)) return false;
    const char* its_key = marked.is_key() ? reinterpret_cast<const char*>(at) : at->key;
    if (!have_text(its_key)) return false;
    if (sds_length(its_key) == key.bytes && memcmp(its_key, key.data, key.bytes) == 0) {
      *found = marked.is_key() || no_value ? nullptr : at;
      return true;
    }
    entry = marked.is_key() ? nullptr : no_value ? static_cast<EntryView*>(at->value) : at->next;
  }
  return true;
}

EntryView* KeyLookup::find(DictView* dict, Slice key) {
  if (dict == nullptr || !have(dict, sizeof *dict) || unsettled(dict->rehash_index) ||
      dict->used[0] + dict->used[1] == 0)
    return nullptr;
  const uint64_t hash = layout.hash(key);
  EntryView* found = nullptr;
  for (int t = 0; t < 2 && found == nullptr && dict->table[t] != nullptr; ++t) {
    EntryView** slot = dict->table[t] + (hash & ((uint64_t{1} << dict->exponent[t]) - 1));
    if (!have(slot, sizeof *slot) || !chain(*slot, key, &found)) return nullptr;
  }
  return found;
}

const char* KeyLookup::key_inside(const ObjectView* object) {
  if (!have(object, sizeof *object) || !object->has_key()) return nullptr;
  const uint8_t* header = key_header(object);
  if (!have(header, 1)) return nullptr;
  const char* key = reinterpret_cast<const char*>(header) + 1 + *header;
  return have_text(key) ? key : nullptr;
}

const void* KeyLookup::find(TableView* table, Slice key, bool objects) {
  if (!have(table, sizeof *table) || unsettled(table->rehash_index)) return nullptr;
  const uint64_t hash = layout.hash(key);
  for (int t = 0; t < 2; ++t) {
    if (table->used[t] == 0) continue;
    const uint64_t index = hash & ((uint64_t{1} << table->exponent[t]) - 1);
    if (t == 0 && table->rehash_index >= 0 && index < static_cast<uint64_t>(table->rehash_index)) continue;
    const BucketView* bucket = table->table[t] + index;
    for (unsigned n = 0; bucket != nullptr && n < kChainMax; ++n) {
      if (!have(bucket, sizeof *bucket)) return nullptr;
      const bool more = (bucket->marks & 1) != 0;
      for (unsigned i = 0; i < (more ? 6u : 7u); ++i) {
        if ((bucket->marks >> (i + 1) & 1) == 0 || bucket->hashes[i] != hash >> 56) continue;
        const void* entry = bucket->entries[i];
        const char* its_key = static_cast<const char*>(entry);
        if (objects)
          its_key = key_inside(static_cast<const ObjectView*>(entry));
        else if (!have_text(its_key))
          its_key = nullptr;
        if (its_key == nullptr) return nullptr;
        if (sds_length(its_key) == key.bytes && memcmp(its_key, key.data, key.bytes) == 0) return entry;
      }
      bucket = more ? static_cast<const BucketView*>(bucket->entries[6]) : nullptr;
    }
  }
  return nullptr;
}

const void* KeyLookup::look_up(const void* store, Slice key) {
  const unsigned slot = layout.has_slots() ? key_slot(key) : 0;
  if (layout.keyspace() == Keyspace::kTables) {
    const auto* tables = static_cast<const TableStoreView*>(store);
    if (!have(tables, sizeof *tables) || !have(tables->tables + slot, sizeof(void*)) || tables->tables[slot] == nullptr)
      return nullptr;
    return find(tables->tables[slot], key, true);
  }
  auto* dict = static_cast<DictView*>(const_cast<void*>(store));
  if (layout.keyspace() == Keyspace::kDicts) {
    const auto* dicts = static_cast<const DictStoreView*>(store);
    if (!have(dicts, sizeof *dicts) || dicts->dicts == nullptr || !have(dicts->dicts + slot, sizeof(void*)))
      return nullptr;
    dict = dicts->dicts[slot];
  }
  const EntryView* entry = find(dict, key);
  return entry == nullptr ? nullptr : entry->value;
}

// Members that a command names. Fields of large hashes are known in 7.0 only, members of large sorted sets not in
// Valkey.
void KeyLookup::members_of(void* members, const Command& command, const CommandKeys& keys, unsigned type) {
  const bool tables = layout.keyspace() == Keyspace::kTables;
  if (keys.member == 0 || (type == kHash && layout.keyspace() != Keyspace::kDict) || (type == kSortedSet && tables))
    return;
  if (!tables && !have(members, sizeof(DictView))) return;
  for (unsigned i = static_cast<unsigned>(keys.member); i < command.kept && !missing->full();
       i += static_cast<unsigned>(keys.member_step)) {
    if (tables) {
      (void)find(static_cast<TableView*>(members), command.argument[i], false);
      continue;
    }
    const EntryView* entry = find(static_cast<DictView*>(members), command.argument[i]);
    if (entry != nullptr && type == kHash && entry->value != nullptr)
      (void)have_text(static_cast<const char*>(entry->value));
  }
}

void KeyLookup::list_end(QuicklistNodeView* node) {
  if (node == nullptr || !have(node, sizeof *node)) return;
  (void)have(node->entry, node->bytes == 0 ? 1 : node->bytes < kValueBytesMax ? node->bytes : kValueBytesMax);
}

bool KeyLookup::compact(const ObjectView& object) {
  const char* at = object.pointer;
  switch (object.encoding()) {
    case kRaw:  // of a module's types, too: what they point to is not known
    case kEmbedded:
      if (object.type() == kString) (void)have_text(at);
      return true;
    case kListpack:
    case kZiplist: {
      uint32_t bytes;
      if (!have(at, sizeof bytes)) return true;
      memcpy(&bytes, at, sizeof bytes);
      (void)have(at, bytes == 0 ? 1 : bytes < kValueBytesMax ? bytes : kValueBytesMax);
      return true;
    }
    case kIntset: {
      uint32_t header[2];
      if (!have(at, sizeof header)) return true;
      memcpy(header, at, sizeof header);
      const uint64_t bytes = sizeof header + uint64_t{header[0]} * header[1];
      (void)have(at, bytes < kValueBytesMax ? bytes : kValueBytesMax);
      return true;
    }
    default:
      return false;
  }
}

void KeyLookup::value_of(const ObjectView* object, const Command& command, const CommandKeys& keys, bool first_key) {
  const char* at = object->pointer;
  if (at == nullptr || compact(*object) || !collection_known(layout.keyspace(), *object)) return;
  switch (object->encoding()) {
    case kHashTable: {
      if (have(at, sizeof(DictView)) && first_key) members_of(const_cast<char*>(at), command, keys, object->type());
      break;
    }
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!have(zset, sizeof *zset) || !have(zset->skiplist, kSkiplistBytes) || !first_key) return;
      members_of(zset->members, command, keys, kSortedSet);
      break;
    }
    case kQuicklist: {
      const auto* list = reinterpret_cast<const QuicklistView*>(at);
      if (!have(list, 40)) return;
      list_end(list->head);
      if (list->tail != list->head) list_end(list->tail);
      break;
    }
    case kStream:
      (void)have(at, kStreamBytes);
      break;
    default:
      break;
  }
}

void NonresidentRanges::add(const void* address, size_t bytes) {
  if (full()) return;
  range[count++] = {address, bytes};
  const uint64_t page = page_bytes(), first = reinterpret_cast<uintptr_t>(address) / page;
  this->bytes += ((reinterpret_cast<uintptr_t>(address) + bytes - 1) / page - first + 1) * page;
}

namespace {

// What freeing the value of key `nth` reads is there. Keys that were found so are not gone through again; all of one at
// least each look.
bool freed_by(KeyLookup& lookup, const ObjectView& object, Wants wants, const LookupCursor* cursor, unsigned nth) {
  if (cursor != nullptr && nth < cursor->key) return true;
  const bool before = lookup.complete, enough = cursor != nullptr && lookup.missing->units == 0;
  lookup.complete = !enough;
  if (!enough) look_up_freed(lookup, object, wants == Wants::kFreedLater);
  const bool all = lookup.complete;
  lookup.complete &= before;
  return all;
}

// Elements that a value may have to be read as a whole: UINT64_MAX, unless others of the command's keys bound it.
// False: not known yet.
bool largest_whole(KeyLookup& lookup, ValueLookup& whole, const DatabaseView& database, const CommandKeys& keys,
                   const Command& command, uint64_t* out) {
  *out = UINT64_MAX;
  if (keys.reach != Reach::kSmallest && keys.reach != Reach::kLikeFirst) return true;
  unsigned nth = 0, sources = 0;
  bool known = true;
  for_each_key(keys, command, [&](unsigned argument) {
    if (wants_of_key(keys, command, nth++) != Wants::kValue || (sources++ != 0 && keys.reach == Reach::kLikeFirst) ||
        lookup.missing->full())
      return;
    const bool before = std::exchange(lookup.complete, true);
    const auto* object = static_cast<const ObjectView*>(lookup.look_up(database.keys, command.argument[argument]));
    uint64_t count = 0;
    if (object != nullptr && lookup.have(object, sizeof *object)) (void)whole.elements(*object, &count);
    known &= lookup.complete;
    lookup.complete &= before;
    if (count < *out) *out = count;
  });
  *out *= *out < UINT64_MAX / ValueLookup::kMuchLarger ? ValueLookup::kMuchLarger : 1;
  return known && !lookup.missing->full();
}

}  // namespace

bool look_up_command(const ServerLayout& layout, const DatabaseView& database, const CommandKeys& keys,
                     const Command& command, bool first_look, LookupCursor* cursor, NonresidentRanges* missing) {
  KeyLookup lookup{layout, missing};
  LookupCursor nowhere;
  PagesSeen seen;
  ValueLookup whole(lookup, cursor == nullptr ? &nowhere : cursor);
  const bool parts = cursor != nullptr && keys.reach != Reach::kTop;
  if (parts) lookup.seen = &seen;
  unsigned nth = 0;
  uint64_t largest = UINT64_MAX;
  const bool sized = !parts || largest_whole(lookup, whole, database, keys, command, &largest);
  for_each_key(keys, command, [&](unsigned argument) {
    const unsigned n = nth++;
    if (missing->full()) {
      lookup.complete = false;
      return;
    }
    const bool before = lookup.complete;
    lookup.complete = true;
    const Slice key = command.argument[argument];
    (void)lookup.look_up(database.expires, key);
    const auto* object = static_cast<const ObjectView*>(lookup.look_up(database.keys, key));
    const bool there = object != nullptr && lookup.have(object, sizeof *object), known = lookup.complete;
    lookup.complete &= before;
    const Wants wants = wants_of_key(keys, command, n);
    if (!there || wants != Wants::kValue) {
      const bool freed = !there || wants == Wants::kObject || freed_by(lookup, *object, wants, cursor, n);
      if (known && freed) whole.pass(n);
      return;
    }
    uint64_t count = 0;
    if (parts && sized && largest != UINT64_MAX && whole.turn_of(n) &&
        (!whole.elements(*object, &count) || count > largest)) {
      lookup.value_of(object, command, keys, n == 0);
      if (lookup.complete) whole.pass(n);
      return;
    }
    if (!sized || !parts || (n != 0 && keys.reach == Reach::kFirst) || !(whole.passed(n) || whole.turn_of(n)))
      lookup.value_of(object, command, keys, n == 0);
    else if (whole.turn_of(n))
      whole.value(*object, command, keys, argument, n);
  });
  if (lookup.complete && first_look) lookup.count_uses();
  return lookup.complete;
}

}  // namespace lunar::redis
