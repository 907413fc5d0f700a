// SPDX-License-Identifier: Apache-2.0
// What a walk through a whole table reads of one bucket: a step of the lookup for everything in it,
// not for one key (save_ahead.h). Tables are those of databases and those of collections.
//
//   holds              servers         a bucket leads to
//   kObjects           7.0, 8.0        entries: key, object
//   kKeyedObjects      Valkey          objects with their keys inside
//   kTexts, kPairs     7.0, 8.0        entries: member; member and value (hashes of 7.0). Sets of
//                                      8.0 have marked pointers in place of entries
//   kFieldPairs        8.0             entries of hashes: name of a field, value
//   kScores            7.0, 8.0        entries of sorted sets: member, and the score in the skip
//                                      list's node
//   kTableTexts, kTableFields, kNodes  Valkey: members; fields with their values; nodes of skip
//                                      lists
//   kListNodes         all             no table: a list's nodes, one after the other
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

// Whether nothing that is to be fetched is missing for the bucket at `slot`; if something is,
// *lookup.missing has it. *at_value: the last piece of it is a value, or a member, which the walk
// reads when it comes to this bucket and not before. database: of kObjects and kKeyedObjects.
bool bucket_there(KeyLookup& lookup, const char* slot, Holds holds, const DatabaseView* database,
                  bool* at_value);

// A collection that has a table or many nodes of its own.
struct Collection {
  const void* at;
  Holds holds;
};
// Adds those of the bucket at `slot` of a database to `out`, which has `count` of at most `max`; of
// objects in DRAM only. Returns how many it has then.
unsigned collections_of(const ServerLayout& layout, const char* slot, Holds holds, Collection* out,
                        unsigned count, unsigned max);

}  // namespace lunar::redis
