// SPDX-License-Identifier: Apache-2.0
// See lookup_steps.h.
#include "lookup_steps.h"

#include <algorithm>
#include <cstring>

#include "collection_probe.h"
#include "key_slot.h"
#include "pager/pager.h"
#include "sys/mem.h"

namespace lunar::redis {

uint64_t next_scanned(uint64_t cursor, uint64_t mask) {
  const auto reversed = [](uint64_t bits) {
    uint64_t out = 0;
    for (unsigned i = 0; i < 64; ++i, bits >>= 1) out = out << 1 | (bits & 1);
    return out;
  };
  return reversed(reversed(cursor | ~mask) + 1);
}

constexpr unsigned kLastRanges = 8;  // one of these may have a piece already

void KeyLookup::note_use(PageView page) {
  for (unsigned i = 0; i < used_count; ++i)
    if (used[i] == page) return;
  if (used_count < kUsedMax) used[used_count++] = page;
  page.note_use();
}

void KeyLookup::count_uses() {
  for (unsigned i = 0; i < used_count; ++i) used[i].note_another_use();
}

// Whether the bytes can be touched without I/O. Pages outside regions, and pages never written,
// count as resident.
bool KeyLookup::resident(const void* address, size_t bytes) {
  const PageSpan pages = PageSpan::of(address, bytes);
  for (uint64_t i = 0; i < pages.count; ++i) {
    const PageView page = pages.at(i);
    if (page.cold()) return false;
    if (page.resident()) note_use(page);
  }
  return true;
}

bool KeyLookup::miss(const void* address, size_t bytes) {
  if (skipped == nullptr) {
    missing->add(address, bytes);
  } else {
    if (skipped->has(page_view(address))) return false;
    missing->add_new(address, bytes, kLastRanges);
  }
  ++misses;
  return false;
}

bool KeyLookup::have(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address), page = begin / sys::page_bytes();
  if (seen == nullptr || page != (begin + bytes - 1) / sys::page_bytes())
    return resident(address, bytes) || miss(address, bytes);
  uintptr_t& slot = seen->slot(page);
  if (slot >> 1 == page) {
    if ((slot & 1) == 0) ++misses;
    return (slot & 1) != 0;
  }
  const bool there = resident(address, bytes);
  slot = page << 1 | (there ? 1 : 0);
  return there || miss(address, bytes);
}

bool KeyLookup::have_most(const char* at, uint64_t bytes) {
  return have(at, std::clamp<uint64_t>(bytes, 1, kValueBytesMax));
}

bool KeyLookup::have_text(const char* text) {
  if (!have(text - 1, 1)) return false;
  const unsigned header = sds_header(static_cast<uint8_t>(text[-1]));
  if (header == 0 || !have(text - header, header)) return false;
  return have(text - header, header + std::min<uint64_t>(sds_length(text), kValueBytesMax) + 1);
}

namespace {

// Redis 8.0's strings for names of fields have two bits of type, a bit for an expiry before the
// string, and a length.
constexpr uint8_t kFieldHeader[4] = {1, 3, 3, 9};
constexpr unsigned kFieldExpires = 4, kFieldExpiryBytes = 18;

// pre: its header can be read.
uint64_t field_length(const char* field) {
  const auto info = static_cast<uint8_t>(field[-1]);
  uint64_t length = 0;
  switch (info & 3) {
    case 0:
      return info >> 3;
    case 1:
      return static_cast<uint8_t>(field[-2]);
    case 2:
      memcpy(&length, field - 3, 2);
      return length;
    default:
      memcpy(&length, field - 9, 8);
      return length;
  }
}

const char* key_of_entry(KeyLookup& lookup, const void* entry, Entries entries) {
  if (entries == Entries::kObjects) return lookup.key_inside(static_cast<const ObjectView*>(entry));
  const char* key = static_cast<const char*>(entry);
  if (entries == Entries::kNodes) {
    const auto* node = static_cast<const SkiplistNodeView*>(entry);
    if (!lookup.have(node, sizeof *node)) return nullptr;
    key = node->member;
  }
  return lookup.have_text(key) ? key : nullptr;
}

}  // namespace

bool KeyLookup::have_field(const char* field) {
  if (!have(field - 1, 1)) return false;
  const auto info = static_cast<uint8_t>(field[-1]);
  const unsigned header = kFieldHeader[info & 3],
                 before = (info & kFieldExpires) != 0 ? kFieldExpiryBytes : 0;
  return have(field - header - before, header + before) &&
         have(field, std::min<uint64_t>(field_length(field), kValueBytesMax) + 1);
}

bool KeyLookup::value_is_apart(const char* field) {
  const auto flag = static_cast<uint8_t>(field[-1]);
  return (flag & 7) != 0 && (flag & 8) != 0;
}

bool KeyLookup::have_field_value(const char* field) {
  constexpr unsigned kHeader = 3;  // of a value that follows its field
  if (!value_is_apart(field)) {
    const char* value = field + sds_length(field) + 1 + kHeader;
    return have(value - kHeader, kHeader) && have_text(value);
  }
  const char* at = field - sds_header(static_cast<uint8_t>(field[-1])) - sizeof(char*);
  if (!have(at, sizeof(char*))) return false;
  const char* value;
  memcpy(&value, at, sizeof value);
  return value == nullptr || have_text(value);
}

bool KeyLookup::find_in_chain(EntryView* entry, Slice key, bool fields, EntryView** found) {
  bool keys_there = true;
  const bool entries_there = for_each_entry(entry, haver(), [&](const ChainEntry& one) {
    if (!(fields ? have_field(one.key) : have_text(one.key))) return keys_there = false;
    if ((fields ? field_length(one.key) : sds_length(one.key)) != key.bytes ||
        memcmp(one.key, key.data, key.bytes) != 0)
      return true;
    *found = one.at;
    return false;
  });
  return keys_there && entries_there;
}

EntryView* KeyLookup::find(DictView* dict, Slice key, bool fields) {
  if (dict == nullptr || !have(dict, sizeof *dict) || unsettled(dict->rehash_index) ||
      dict->used[0] + dict->used[1] == 0)
    return nullptr;
  const uint64_t hash = layout.hash(key);
  EntryView* found = nullptr;
  for (int t = 0; t < 2 && found == nullptr && dict->table[t] != nullptr; ++t) {
    EntryView** slot = dict->table[t] + (hash & ((uint64_t{1} << dict->exponent[t]) - 1));
    if (!have(slot, sizeof *slot) || !find_in_chain(*slot, key, fields, &found)) return nullptr;
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

void KeyLookup::chain_end(const BucketView* bucket) {
  (void)for_each_place(bucket, haver(), [](const BucketView&, unsigned) { return true; });
}

bool KeyLookup::find_in_chain(const BucketView* bucket, Slice key, uint8_t hash, Entries entries,
                              const void** found) {
  bool keys_there = true;
  const bool buckets_there =
      for_each_place(bucket, haver(), [&](const BucketView& in, unsigned place) {
        if (in.hashes[place] != hash) return true;
        const char* its_key = key_of_entry(*this, in.entries[place], entries);
        if (its_key == nullptr) return keys_there = false;
        if (sds_length(its_key) != key.bytes || memcmp(its_key, key.data, key.bytes) != 0)
          return true;
        *found = in.entries[place];
        if (removes) chain_end(&in);
        return false;
      });
  return keys_there && buckets_there;
}

const void* KeyLookup::find(TableView* table, Slice key, Entries entries) {
  if (!have(table, sizeof *table) || unsettled(table->rehash_index)) return nullptr;
  const uint64_t hash = layout.hash(key);
  const void* found = nullptr;
  for (int t = 0; t < 2 && found == nullptr; ++t) {
    if (table->used[t] == 0) continue;
    const uint64_t index = hash & ((uint64_t{1} << table->exponent[t]) - 1);
    if (t == 0 && table->rehash_index >= 0 && index < static_cast<uint64_t>(table->rehash_index))
      continue;  // this bucket was moved to the other table
    if (!find_in_chain(table->table[t] + index, key, static_cast<uint8_t>(hash >> 56), entries,
                       &found))
      return nullptr;
  }
  return found;
}

const void* KeyLookup::look_up(const void* store, Slice key) {
  const unsigned slot = layout.has_slots() ? key_slot(key) : 0;
  if (layout.keyspace() == Keyspace::kTables) {
    const auto* tables = static_cast<const TableStoreView*>(store);
    if (!have(tables, sizeof *tables) || !have(tables->tables + slot, sizeof(void*)) ||
        tables->tables[slot] == nullptr)
      return nullptr;
    return find(tables->tables[slot], key, Entries::kObjects);
  }
  auto* dict = static_cast<DictView*>(const_cast<void*>(store));
  if (layout.keyspace() == Keyspace::kDicts) {
    const auto* dicts = static_cast<const DictStoreView*>(store);
    if (!have(dicts, sizeof *dicts) || dicts->dicts == nullptr ||
        !have(dicts->dicts + slot, sizeof(void*)))
      return nullptr;
    dict = dicts->dicts[slot];
  }
  const EntryView* entry = find(dict, key);
  return entry == nullptr ? nullptr : entry->value;
}

// Each search in a dictionary that is being rehashed first moves a bucket, and reads the keys in
// it.
void KeyLookup::moved_by(DictView* dict, unsigned searches, bool fields) {
  if (dict->rehash_index < 0 || dict->paused != 0 || dict->table[0] == nullptr ||
      dict->table[1] == nullptr)
    return;
  const uint64_t size = uint64_t{1} << dict->exponent[0],
                 mask = (uint64_t{1} << dict->exponent[1]) - 1;
  auto at = static_cast<uint64_t>(dict->rehash_index);
  for (; searches != 0 && at < size && !missing->full(); --searches, ++at) {
    for (unsigned empty = 0; empty < kEmptyBucketsMax && at < size; ++empty, ++at)
      if (!have(dict->table[0] + at, sizeof(void*)) || dict->table[0][at] != nullptr) break;
    if (at >= size || !have(dict->table[0] + at, sizeof(void*))) return;
    EntryView* found = nullptr;
    (void)find_in_chain(dict->table[0][at], Slice{"", 0}, fields, &found);
    (void)have(dict->table[1] + (at & mask), sizeof(void*));
    (void)have(dict->table[1] + ((at + size) & mask), sizeof(void*));
  }
}

// A growing table is moved by the hashes of its keys; a shrinking one by the numbers of its
// buckets.
void KeyLookup::moved_bucket(const TableView& table, uint64_t b, Entries entries) {
  const uint64_t size = uint64_t{1} << table.exponent[0], room = uint64_t{1} << table.exponent[1];
  bool empty = true;
  (void)for_each_place(table.table[0] + b, haver(), [&](const BucketView& bucket, unsigned place) {
    empty = false;
    if (room > size) (void)key_of_entry(*this, bucket.entries[place], entries);
    return true;
  });
  for (uint64_t to = b & (room - 1); to < room && !empty; to += size)
    chain_end(table.table[1] + to);
}

void KeyLookup::moved_by(const TableView& table, unsigned searches, Entries entries) {
  if (table.rehash_index < 0 || table.paused != 0) return;
  const auto first = static_cast<uint64_t>(table.rehash_index);
  const uint64_t size = uint64_t{1} << table.exponent[0];
  for (uint64_t b = first; b < first + searches && b < size && !missing->full(); ++b)
    moved_bucket(table, b, entries);
}

void KeyLookup::member(TableView* members, Slice name, unsigned type, Entries entries) {
  const void* entry = find(members, name, entries);
  if (entry != nullptr && type == kHash) (void)have_field_value(static_cast<const char*>(entry));
}

void KeyLookup::member(DictView* members, Slice name, unsigned type, bool fields) {
  const EntryView* entry = find(members, name, fields);
  if (entry == nullptr || entry->value == nullptr) return;
  if (type == kHash) (void)have_text(static_cast<const char*>(entry->value));
  if (type == kSortedSet) (void)have(entry->value, sizeof(double));  // in the skip list's node
}

void KeyLookup::members_of(void* members, const Command& command, const CommandKeys& keys,
                           unsigned type) {
  auto* table = layout.keyspace() == Keyspace::kTables ? static_cast<TableView*>(members) : nullptr;
  auto* dict = static_cast<DictView*>(members);
  if (keys.member == 0 || (table == nullptr && !have(dict, sizeof *dict))) return;
  const bool fields = type == kHash && has_fields();
  const Entries entries = type == kSortedSet ? Entries::kNodes : Entries::kTexts;
  unsigned searches = 0;
  for (unsigned i = first_member(keys, command); i < command.kept && !missing->full();
       i += static_cast<unsigned>(keys.member_step), ++searches) {
    if (table != nullptr)
      member(table, command.argument[i], type, entries);
    else
      member(dict, command.argument[i], type, fields);
  }
  if (table == nullptr)
    moved_by(dict, searches, fields);
  else if (have(table, sizeof *table))
    moved_by(*table, searches, entries);
}

void KeyLookup::list_end(QuicklistNodeView* node) {
  if (node != nullptr && have(node, sizeof *node)) (void)have_most(node->entry, node->bytes);
}

bool KeyLookup::packed_bytes(const ObjectView& object, uint64_t* out) {
  uint32_t header[2] = {};
  const bool integers = object.encoding() == kIntset;
  const size_t bytes = integers ? sizeof header : sizeof *header;
  if (!have(object.pointer, bytes)) return false;
  memcpy(header, object.pointer, bytes);
  *out = integers ? sizeof header + uint64_t{header[0]} * header[1] : header[0];
  return true;
}

bool KeyLookup::compact(const ObjectView& object) {
  const char* at = object.pointer;
  switch (object.encoding()) {
    case kRaw:  // also values of modules, whose layout is not known
    case kEmbedded:
      if (object.type() == kString) (void)have_text(at);
      return true;
    case kListpack:
    case kZiplist:
    case kIntset: {
      uint64_t bytes;
      if (packed_bytes(object, &bytes)) (void)have_most(at, bytes);
      return true;
    }
    default:
      return false;
  }
}

void KeyLookup::value_of(const ObjectView& object, const Command& command,
                         const CommandKeys& keys) {
  const char* at = object.pointer;
  if (at == nullptr || compact(object) || !collection_known(layout.keyspace(), object)) return;
  switch (object.encoding()) {
    case kHashTable: {
      if (have(at, sizeof(DictView)))
        members_of(const_cast<char*>(at), command, keys, object.type());
      break;
    }
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!have(zset, sizeof *zset) || !have(zset->skiplist, sizeof(SkiplistView))) return;
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

}  // namespace lunar::redis
