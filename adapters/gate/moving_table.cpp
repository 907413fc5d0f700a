// SPDX-License-Identifier: Apache-2.0
// See moving_table.h.
#include "moving_table.h"

namespace lunar::redis {

MovingTable MovingTable::of(const ServerLayout& layout, void* store, KeyLookup* lookup) {
  auto have = [&](const void* at, size_t bytes) { return lookup == nullptr || lookup->have(at, bytes); };
  if (layout.keyspace() == Keyspace::kDict) return MovingTable(static_cast<DictView*>(store));
  const auto* view = static_cast<const DictStoreView*>(store);
  if (!have(view, sizeof *view) || view->dicts == nullptr || !have(view->dicts, sizeof(void*))) return {};
  return MovingTable(view->dicts[0]);
}

bool MovingTable::have(KeyLookup& lookup) const { return lookup.have(dict_, sizeof *dict_); }

bool MovingTable::bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const {
  *empty = true;
  const uint64_t size = uint64_t{1} << exponent(0), mask = (uint64_t{1} << exponent(1)) - 1;
  if (!lookup.have(dict_->table[0] + b, sizeof(void*))) return *empty = false;
  const EntryView* entry = dict_->table[0][b];
  if (entry == nullptr) return lookup.complete;
  *empty = false;
  (void)lookup.have(dict_->table[1] + (b & mask), sizeof(void*));
  (void)lookup.have(dict_->table[1] + ((b + size) & mask), sizeof(void*));
  for (unsigned n = 0; entry != nullptr && n < kChainMax && lookup.have(entry, sizeof *entry); ++n) {
    (void)lookup.have_text(entry->key);
    entry = entry->next;
  }
  return lookup.complete;
}

}  // namespace lunar::redis
