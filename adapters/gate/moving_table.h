// SPDX-License-Identifier: Apache-2.0
// One dict of a database of Redis 7.0 or 8.0 that may be moving to another size.
//
// Threading: the main thread, where the server's tables are not being changed. Allocates nothing itself.
#pragma once
#include <cstdint>

#include "layout.h"
#include "lookup_steps.h"

namespace lunar::redis {

using Rehash = int (*)(DictView*, int);  // dictRehash

class MovingTable {
 public:
  MovingTable() = default;
  explicit MovingTable(DictView* dict) : dict_(dict) {}
  // The table of `store`, the keys or expiries of a database; none if there is none, or if a page on the way is
  // missing. Without `lookup` the store is read as the server does, by a fault. pre: not one dictionary per slot.
  static MovingTable of(const ServerLayout& layout, void* store, KeyLookup* lookup = nullptr);

  explicit operator bool() const { return dict_ != nullptr; }
  bool operator==(const MovingTable& other) const { return dict_ == other.dict_; }
  // post: the structure itself can be read.
  bool have(KeyLookup& lookup) const;
  int16_t& paused() const { return dict_->paused; }
  int64_t index() const { return dict_->rehash_index; }  // -1: not moving
  int exponent(int t) const { return dict_->exponent[t]; }
  uint64_t used() const { return dict_->used[0] + dict_->used[1]; }
  bool small() const { return exponent(0) < kExponentMin; }
  bool large() const { return exponent(0) >= kExponentStays; }

  // Whether bucket b of the old table and what it moves to are in DRAM; missing pages are recorded. *empty: the bucket
  // is empty.
  bool bucket_ready(KeyLookup& lookup, uint64_t b, bool* empty) const;
  // Moves n buckets that are not empty, but at most ten times as many in all.
  void move(Rehash rehash, unsigned n) const { (void)rehash(dict_, static_cast<int>(n)); }

 private:
  static constexpr int kExponentMin = 12;    // smaller tables are left to the server, which moves them quickly
  static constexpr int kExponentStays = 20;  // paused for all commands: as many keys take the longest of them seconds
  DictView* dict_ = nullptr;
};

}  // namespace lunar::redis
