// SPDX-License-Identifier: Apache-2.0
// One dict (Redis 7.0 and 8.0) or table (Valkey 8.1) of a database, which may be moving to another
// size.
//
// Threading: the main thread, where the server's tables are not being changed. Allocates nothing
// itself.
#pragma once
#include <cstdint>

#include "layout.h"
#include "lookup_steps.h"

namespace lunar::redis {

// The server's functions that move buckets: dictRehash, or hashtableRehashMicroseconds.
struct Mover {
  int (*dict)(DictView*, int) = nullptr;
  int (*table)(TableView*, uint64_t) = nullptr;
};

class MovingTable {
 public:
  MovingTable() = default;
  explicit MovingTable(DictView* dict) : dict_(dict) {}
  explicit MovingTable(TableView* table) : table_(table) {}
  // The table of `store`, the keys or expiries of a database; empty if there is none, or if a page
  // on the way is missing. Without `lookup` the store is read with faults. pre: the server does not
  // have one dictionary per slot.
  static MovingTable of(const ServerLayout& layout, void* store, KeyLookup* lookup = nullptr);

  explicit operator bool() const { return dict_ != nullptr || table_ != nullptr; }
  bool operator==(const MovingTable& other) const = default;
  // Whether the structure itself can be read.
  bool have(KeyLookup& lookup) const;
  int16_t& paused() const { return table_ != nullptr ? table_->paused : dict_->paused; }
  int64_t index() const {  // -1: not moving
    return table_ != nullptr ? table_->rehash_index : dict_->rehash_index;
  }
  int exponent(int t) const { return table_ != nullptr ? table_->exponent[t] : dict_->exponent[t]; }
  uint64_t used() const {
    const uint64_t* used = table_ != nullptr ? table_->used : dict_->used;
    return used[0] + used[1];
  }
  // True for a dict: the gate pauses it, so that no step of the server meets missing pages. A pause
  // of a table would also keep holes in its chains; there each command moves one bucket, and the
  // gate stays ahead of the commands.
  bool pausable() const { return dict_ != nullptr; }
  bool small() const {
    return exponent(0) < (table_ != nullptr ? kTableExponentMin : kExponentMin);
  }
  bool large() const { return exponent(0) >= kExponentStays; }

  // Whether bucket b of the old table and its places in the new one are in DRAM; missing pages are
  // recorded. *empty: the bucket is empty (dicts only).
  bool bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const;
  // Of a dict, moves n buckets that are not empty, and skips at most ten times as many. Of a table,
  // moves kTableStep buckets, or the rest.
  void move(const Mover& mover, unsigned n) const {
    if (table_ != nullptr)
      (void)mover.table(table_, 0);
    else
      (void)mover.dict(dict_, static_cast<int>(n));
  }
  static constexpr uint64_t kTableStep = 128;  // the server checks the time after so many

 private:
  // Small tables are left to the server, which moves them soon.
  static constexpr int kExponentMin = 12, kTableExponentMin = 9;
  // stays paused for all commands, because even the longest need seconds to add so many keys
  static constexpr int kExponentStays = 20;
  bool dict_bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const;
  bool table_bucket_ready(KeyLookup& lookup, uint64_t b) const;
  DictView* dict_ = nullptr;    // one of these
  TableView* table_ = nullptr;  // or none
};

}  // namespace lunar::redis
