// SPDX-License-Identifier: Apache-2.0
// See moving_table.h.
#include "moving_table.h"

namespace lunar::redis {

MovingTable MovingTable::of(const ServerLayout& layout, void* store, KeyLookup* lookup) {
  auto have = [&](const void* at, size_t bytes) {
    return lookup == nullptr || lookup->have(at, bytes);
  };
  if (layout.keyspace() == Keyspace::kDict) return MovingTable(static_cast<DictView*>(store));
  if (layout.keyspace() == Keyspace::kTables) {
    const auto* view = static_cast<const TableStoreView*>(store);
    if (!have(view, sizeof *view) || view->tables == nullptr || !have(view->tables, sizeof(void*)))
      return {};
    return view->tables[0] == nullptr ? MovingTable() : MovingTable(view->tables[0]);
  }
  const auto* view = static_cast<const DictStoreView*>(store);
  if (!have(view, sizeof *view) || view->dicts == nullptr || !have(view->dicts, sizeof(void*)))
    return {};
  return MovingTable(view->dicts[0]);
}

bool MovingTable::have(KeyLookup& lookup) const {
  return table_ != nullptr ? lookup.have(table_, sizeof *table_)
                           : lookup.have(dict_, sizeof *dict_);
}

bool MovingTable::bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const {
  *empty = false;
  return table_ != nullptr ? table_bucket_ready(lookup, b) : dict_bucket_ready(lookup, b, empty);
}

bool MovingTable::dict_bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const {
  *empty = true;
  const uint64_t size = uint64_t{1} << exponent(0), mask = (uint64_t{1} << exponent(1)) - 1;
  if (!lookup.have(dict_->table[0] + b, sizeof(void*))) return *empty = false;
  EntryView* entry = dict_->table[0][b];
  if (entry == nullptr) return lookup.misses == 0;
  *empty = false;
  (void)lookup.have(dict_->table[1] + (b & mask), sizeof(void*));
  (void)lookup.have(dict_->table[1] + ((b + size) & mask), sizeof(void*));
  (void)for_each_entry(entry, lookup.haver(), [&](const ChainEntry& one) {
    return (void)lookup.have_text(one.key), true;
  });
  return lookup.misses == 0;
}

bool MovingTable::table_bucket_ready(KeyLookup& lookup, uint64_t b) const {
  lookup.moved_bucket(*table_, b, Entries::kObjects);
  return lookup.misses == 0;
}

}  // namespace lunar::redis
