// SPDX-License-Identifier: Apache-2.0
// Looks up a key in the server's dictionaries without touching a page that is not resident: it asks
// the pager before each step, and records missing pages instead of reading them. When these are in
// DRAM, the next lookup gets one step further: table slot, entry, key, object, value.
//
// A page may be evicted between the check and the use: then it is an ordinary fault. Only lookups
// tell the pager of hits: the clock hand skips, once, pages that a lookup relies on, and a command
// that lacks nothing at the first look makes its pages one degree hotter, so that heat counts the
// uses of a page since the hand passed.
//
// Threading: the server's main thread only, while it reads a client's input, so that nothing
// changes (while it waits in epoll_wait, threads of modules may change keys). Allocates nothing.
#pragma once
#include "command_keys.h"
#include "layout.h"
#include "lookup_cursor.h"
#include "lunar/lunar.h"

namespace lunar::redis {

constexpr unsigned kRangesMax = 64;  // missing pieces of one round
// units of work in one look at a client's input: a bucket, a page or a node is one, an entry four
constexpr unsigned kLookUnits = 3000;
// looked up of one value, unless it is looked up as a whole; the rest is left to faults
constexpr size_t kValueBytesMax = 256 * 1024;

struct NonresidentRanges {
  unsigned count = 0;
  uint64_t bytes = 0, bytes_max = UINT64_MAX;  // full when bytes_max is reached
  unsigned units = UINT32_MAX;  // of work that this look may still take; UINT32_MAX: no bound
  lunar_range range[kRangesMax];
  bool full() const { return count == kRangesMax || bytes >= bytes_max; }
  void add(const void* address, size_t bytes);
  // Adds the bytes unless they are in one of the last `among` ranges.
  void add_new(const void* address, size_t bytes, unsigned among);
  void forget() { count = 0, bytes = 0; }
  void clear() { forget(), units = UINT32_MAX; }  // for the next look
  void work(unsigned n) { units = units > n ? units - n : 0; }
};

// Adds the pages that `command` lacks for its keys in `database` to *missing. True: it lacks none.
// first_look: the command has not been held. cursor: if the command reads whole values
// (value_lookup.h), they are looked up from the cursor on; nullptr: only their top level is. False
// with nothing missing: the look has done enough work.
[[nodiscard]] bool look_up_command(const ServerLayout& layout, const DatabaseView& database,
                                   const CommandKeys& keys, const Command& command, bool first_look,
                                   LookupCursor* cursor, NonresidentRanges* missing);

}  // namespace lunar::redis
