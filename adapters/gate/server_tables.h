// SPDX-License-Identifier: Apache-2.0
// The keys and the expiries of a database, for each kind of server (layout.h): their number, a
// random key, and a walk over the expiries in the order of the server's own cursor.
//
//   Redis 7.0                cursor 0, 1, 2, 3 ...       buckets one after the other
//   Redis 8.0, Valkey 8.1    cursor 0, 4, 2, 6, 1 ...    the order of SCAN (next_scanned), which
//                                                      stays valid when a table changes its size
//
// Threading: as ahead.h. Allocates nothing.
#pragma once
#include <cstdint>

#include "layout.h"
#include "lookup_steps.h"

namespace lunar::redis {

// Finds the server's functions that the two functions below call. False: one is missing.
[[nodiscard]] bool find_table_functions(Keyspace keyspace);
// store: keys or expiries of a database.
uint64_t entries_in(const void* store);
// A key that the server's own function chooses; nullptr: there is none. Reads the store with
// faults, as the server does.
const char* random_key(void* store);

// pre: a database has one table of expiries (no cluster of Redis 8.0 or Valkey).
class ExpiryTable {
 public:
  static constexpr unsigned kEntriesMax = 2 * kChainMax;
  struct Entry {
    const void* at;  // as the server passes it to its own functions: an entry, or an object
    int64_t due_ms;
  };
  explicit ExpiryTable(const DatabaseView& database);
  // The number of buckets, of the larger table if there are two. 0: there is nothing to do, or the
  // table is less than a hundredth full: the server also ignores such a table, which will shrink.
  uint64_t buckets() const { return buckets_; }
  // The places for entries in a bucket.
  unsigned places() const { return table_ != nullptr ? 7 : 1; }
  // The cursor of the next bucket.
  uint64_t after(uint64_t cursor) const;
  // Copies the entries of a bucket, in both tables, up to the first missing page. Returns their
  // number.
  unsigned bucket(KeyLookup& lookup, uint64_t cursor, Entry* out) const;
  // The key of an entry, if all of it is resident; nullptr: it is missing.
  static const char* key_of(KeyLookup& lookup, const Entry& entry);

 private:
  const DictView* dict_ = nullptr;    // one of these two
  const TableView* table_ = nullptr;  // or none
  uint64_t buckets_ = 0;
};

}  // namespace lunar::redis
