// SPDX-License-Identifier: Apache-2.0
// See server_tables.h.
#include "server_tables.h"

#include "gate_inside.h"
#include "server_fields.h"

namespace lunar::redis {
namespace {

struct Functions {
  const EntryView* (*of_dict)(void*) = nullptr;
  const EntryView* (*of_dicts)(void*, int) = nullptr;
  int (*of_tables)(void*, int, const void**) = nullptr;
  int (*random_index)(void*) = nullptr;
  unsigned long long (*size)(const void*) = nullptr;
};

constinit Functions g_functions;

uint64_t mask_of(int8_t exponent) { return (uint64_t{1} << exponent) - 1; }

unsigned chain_of(KeyLookup& lookup, const DictView& dict, int table, uint64_t cursor,
                  ExpiryTable::Entry* out) {
  if (dict.table[table] == nullptr) return 0;
  EntryView* const* slot = dict.table[table] + (cursor & mask_of(dict.exponent[table]));
  if (!lookup.have(slot, sizeof *slot)) return 0;
  unsigned n = 0;
  (void)for_each_entry(*slot, lookup.haver(), [&](const ChainEntry& one) {
    out[n++] = {one.at, static_cast<int64_t>(reinterpret_cast<intptr_t>(one.value))};
    return true;
  });
  return n;
}

// An object's expiry directly follows the object.
unsigned chain_of(KeyLookup& lookup, const TableView& table, int t, uint64_t cursor,
                  ExpiryTable::Entry* out) {
  if (table.table[t] == nullptr || table.used[t] == 0) return 0;
  const BucketView* first = table.table[t] + (cursor & mask_of(table.exponent[t]));
  unsigned n = 0;
  (void)for_each_place(first, lookup.haver(), [&](const BucketView& bucket, unsigned place) {
    const auto* object = static_cast<const ObjectView*>(bucket.entries[place]);
    if (lookup.have(object, sizeof *object + sizeof(int64_t)) && object->has_expiry())
      out[n++] = {object, *reinterpret_cast<const int64_t*>(object + 1)};
    return n < kChainMax;
  });
  return n;
}

}  // namespace

bool find_table_functions(Keyspace keyspace) {
  Functions& f = g_functions;
  switch (keyspace) {
    case Keyspace::kDict:
      return find_export("dictGetRandomKey", &f.of_dict);
    case Keyspace::kDicts:
      return find_export("kvstoreDictGetRandomKey", &f.of_dicts) &&
             find_export("kvstoreGetFairRandomDictIndex", &f.random_index) &&
             find_export("kvstoreSize", &f.size);
    default:
      return find_export("kvstoreHashtableRandomEntry", &f.of_tables) &&
             find_export("kvstoreGetFairRandomHashtableIndex", &f.random_index) &&
             find_export("kvstoreSize", &f.size);
  }
}

uint64_t entries_in(const void* store) {
  if (gate().layout.keyspace() != Keyspace::kDict) return g_functions.size(store);
  const auto* dict = static_cast<const DictView*>(store);
  return dict->used[0] + dict->used[1];
}

const char* random_key(void* store) {
  if (entries_in(store) == 0) return nullptr;
  const Functions& f = g_functions;
  if (gate().layout.keyspace() == Keyspace::kTables) {
    const void* found = nullptr;
    if (f.of_tables(store, f.random_index(store), &found) == 0) return nullptr;
    const auto* object = static_cast<const ObjectView*>(found);
    if (!object->has_key()) return nullptr;
    const uint8_t* header = key_header(object);
    return reinterpret_cast<const char*>(header) + 1 + *header;
  }
  const EntryView* entry =
      f.of_dict != nullptr ? f.of_dict(store) : f.of_dicts(store, f.random_index(store));
  return entry == nullptr ? nullptr : entry->key;
}

ExpiryTable::ExpiryTable(const DatabaseView& database) {
  const void* store = database.expires;
  const Keyspace keyspace = gate().layout.keyspace();
  if (keyspace == Keyspace::kDict)
    dict_ = static_cast<const DictView*>(store);
  else if (keyspace == Keyspace::kDicts &&
           static_cast<const DictStoreView*>(store)->dicts != nullptr)
    dict_ = static_cast<const DictStoreView*>(store)->dicts[0];
  else if (keyspace == Keyspace::kTables)
    table_ = static_cast<const TableStoreView*>(store)->tables[0];
  uint64_t used = 0;
  auto measure = [&](const auto& tables) {
    for (int t = 0; t < 2; ++t) {
      if (tables.table[t] == nullptr) continue;
      used += tables.used[t];
      if (mask_of(tables.exponent[t]) >= buckets_) buckets_ = mask_of(tables.exponent[t]) + 1;
    }
  };
  if (dict_ != nullptr) measure(*dict_);
  if (table_ != nullptr) measure(*table_);
  if (used == 0 || (buckets_ > 4 && used * 100 / buckets_ < 1)) buckets_ = 0;
}

uint64_t ExpiryTable::after(uint64_t cursor) const {
  if (gate().layout.keyspace() == Keyspace::kDict) return cursor + 1;
  return next_scanned(cursor, buckets_ - 1);
}

unsigned ExpiryTable::bucket(KeyLookup& lookup, uint64_t cursor, Entry* out) const {
  unsigned n = 0;
  for (int t = 0; t < 2; ++t) {
    if (dict_ != nullptr) n += chain_of(lookup, *dict_, t, cursor, out + n);
    if (table_ != nullptr) n += chain_of(lookup, *table_, t, cursor, out + n);
  }
  return n;
}

const char* ExpiryTable::key_of(KeyLookup& lookup, const Entry& entry) {
  if (gate().layout.keyspace() == Keyspace::kTables)
    return lookup.key_inside(static_cast<const ObjectView*>(entry.at));
  const char* key = static_cast<const EntryView*>(entry.at)->key;
  return lookup.have_text(key) ? key : nullptr;
}

}  // namespace lunar::redis
