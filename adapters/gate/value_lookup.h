// SPDX-License-Identifier: Apache-2.0
// Looks up whole values, for commands that read all of a value or name the part that they read
// (Reach in command_keys.h). Like key_lookup.h, it touches only resident pages, and records missing
// ones.
//
//   string, listpack, integers   its pages, from the first missing one on
//   hash, set, sorted set        the dictionary's buckets ─► entries ─► members, values, nodes of
//                                the skip list
//   list                         nodes by their counts from the nearer end, then those of the range
//   stream                       stream_lookup.h
//
// One look is bounded by kLookUnits for all its commands (a few hundred microseconds), and by the
// room of NonresidentRanges. The next one continues at the first missing piece of the last one.
// Between two looks a LookupCursor is kept: a number of buckets, nodes or pages, never an address.
// Each look starts from the key again, because other commands may have changed or freed anything in
// the meantime; a stale number costs faults. All of this works on Redis 7.0, 8.0 and Valkey 8.1.
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

  // Looks up the part of a value that the command reads. The key is at `argument`, and is the
  // command's key number `nth`. pre: the object is resident.
  void value(const ObjectView& object, const Command& command, const CommandKeys& keys,
             unsigned argument, unsigned nth);
  // The number of elements of a set or sorted set. False: the memory with the number is missing.
  bool elements(const ObjectView& object, uint64_t* out);
  // Whether the lookup is at this key; others come later, or are done.
  bool turn_of(unsigned nth) const {
    return nth == cursor_.key && cursor_.bytes < cursor_.bytes_max;
  }
  bool passed(unsigned nth) const { return nth < cursor_.key; }
  // Skips a key with nothing to look up.
  void pass(unsigned nth) {
    if (nth == cursor_.key) ++cursor_.key;
  }
  static constexpr uint64_t kMuchLarger = 8;
  bool work(unsigned units);  // counts; false: enough for one look
  bool enough() const { return missing_.units == 0 || missing_.full(); }
  bool bytes(const char* at, uint64_t bytes);  // true: all of them can be read

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
  bool nodes(const SkiplistView* list, uint64_t count, bool backward);

  KeyLookup& lookup_;
  NonresidentRanges& missing_;
  LookupCursor& cursor_;
  uint64_t bytes_before_;
};

}  // namespace lunar::redis
