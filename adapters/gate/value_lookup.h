// SPDX-License-Identifier: Apache-2.0
// Looks up whole values, for commands that read them as a whole or name the part that they read
// (Reach in command_keys.h). Like key_lookup.h, it touches only resident pages, and records what is
// missing.
//
//   string, listpack, integers   its pages, from the first missing one on
//   hash, set, sorted set        the dictionary's buckets ─► entries ─► members, values, nodes of
//                                the skip list
//   list                         nodes by their counts from the nearer end, then those of the range
//   stream                       stream_lookup.h
//
// One look is bounded (kLookUnits for all its commands: a few hundred microseconds; and the room of
// NonresidentRanges). The next one continues where the last one found something missing. Between
// two looks a LookupCursor is kept: a number of buckets, nodes or pages, never an address. Each
// look starts from the key again, because other commands may have changed or freed anything
// meanwhile; a stale number costs faults. Works on Redis 7.0, 8.0 and Valkey 8.1, for all of these.
//
// Threading: as key_lookup.h. Allocates nothing.
#pragma once
#include "lookup_steps.h"

namespace lunar::redis {

class ValueLookup {
 public:
  // pre: the lookup's `seen` is set.
  ValueLookup(KeyLookup& lookup, LookupCursor* cursor)
      : lookup_(lookup),
        missing_(*lookup.missing),
        cursor_(*cursor),
        bytes_before_(lookup.missing->bytes) {}

  // Looks up what the command reads of the value of the key at `argument`, its `nth`. pre: the
  // object is resident.
  void value(const ObjectView& object, const Command& command, const CommandKeys& keys,
             unsigned argument, unsigned nth);
  // The number of elements of a set or sorted set. False: what holds it is missing.
  bool elements(const ObjectView& object, uint64_t* out);
  // Whether the lookup is for this one: others are looked at later, or have been.
  bool turn_of(unsigned nth) const {
    return nth == cursor_.key && cursor_.bytes < cursor_.bytes_max;
  }
  bool passed(unsigned nth) const { return nth < cursor_.key; }
  // Skips a key of which there is nothing to look up.
  void pass(unsigned nth) {
    if (nth == cursor_.key) ++cursor_.key;
  }
  static constexpr uint64_t kMuchLarger = 8;
  bool work(unsigned units);  // false: enough for one look
  bool enough() const { return missing_.units == 0 || missing_.full(); }
  bool bytes(const char* at, uint64_t bytes);  // whether all of them can be read

 private:
  bool part(const ObjectView& object, const Command& command, const CommandKeys& keys,
            unsigned argument);
  bool text(const char* text, uint64_t first = 0, uint64_t last = UINT64_MAX);
  bool string(const ObjectView& object, const Command& command, Reach reach, unsigned argument);
  bool chain(EntryView* entry, unsigned type);
  bool dict(DictView* dict, unsigned type);
  bool scanned(DictView* dict, const Command& command, unsigned argument, unsigned type);
  bool entry(const void* entry, unsigned type);
  bool table(TableView* table, unsigned type);
  bool list(const QuicklistView* list, int64_t first, int64_t last);
  bool sorted_set(const ZsetView* zset, const Command& command, Reach reach, unsigned argument);
  bool nodes(const char* skiplist, uint64_t count, bool backward);

  KeyLookup& lookup_;
  NonresidentRanges& missing_;
  LookupCursor& cursor_;
  uint64_t bytes_before_;
};

}  // namespace lunar::redis
