// SPDX-License-Identifier: Apache-2.0
// Looks up the memory that a walk through a whole table reads for one bucket: one step for
// everything in the bucket, not for one key (save_ahead.h). The tables are those of databases and
// of collections.
//
//   holds              servers         a bucket leads to
//   kObjects           7.0, 8.0        entries: key, object
//   kKeyedObjects      Valkey          objects with their keys inside
//   kTexts, kPairs     7.0, 8.0        entries: member; member and value (hashes of 7.0). Sets of
//                                      8.0 have marked pointers in place of entries
//   kFieldPairs        8.0             entries of hashes: name of a field, value
//   kScores            7.0, 8.0        entries of sorted sets: member, and the skip list's node
//   kTableTexts, kTableFields, kNodes  Valkey: members; fields with their values; nodes of skip
//                                      lists
//   kListNodes         all             not a table: a list's nodes, one after the other
//
// Threading: as lookup_steps.h. Allocates nothing.
#pragma once
#include "lookup_steps.h"

namespace lunar::redis {

enum class Holds : uint8_t {
  kObjects,
  kKeyedObjects,
  kTexts,
  kPairs,
  kFieldPairs,
  kScores,
  kTableTexts,
  kTableFields,
  kNodes,
  kListNodes,
};

constexpr bool in_tables(Holds holds) {
  return holds == Holds::kKeyedObjects || holds == Holds::kTableTexts ||
         holds == Holds::kTableFields || holds == Holds::kNodes;
}
constexpr size_t bucket_bytes(Holds holds) {
  return in_tables(holds) ? sizeof(BucketView) : sizeof(EntryView*);
}

// True: the bucket at `slot` lacks nothing that must be fetched; else *lookup.missing has the
// missing pieces. *at_value: the last of these is a value, or a member, which the walk reads when
// it comes to this bucket and not earlier. database: for kObjects and kKeyedObjects.
bool bucket_there(KeyLookup& lookup, const char* slot, Holds holds, const DatabaseView* database,
                  bool* at_value);

// A collection that has a table or many nodes of its own.
struct Collection {
  const void* at;
  Holds holds;
};
// Adds the collections in the bucket at `slot` of a database to out[count..max), if their objects
// are in DRAM. Returns the new count.
unsigned collections_of(const ServerLayout& layout, const char* slot, Holds holds, Collection* out,
                        unsigned count, unsigned max);

}  // namespace lunar::redis
