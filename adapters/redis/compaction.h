// SPDX-License-Identifier: Apache-2.0
// Repacks values when holes take up the LUN (memory_limit.h). The server's active defragmentation
// cannot do that: it works only with the server's own build of jemalloc.
//
// A slice goes on through the keyspace where the last one ended. Of each value that is one block
// (strings in a block of their own, listpacks, sets of integers) it asks the allocator whether its
// slab is emptier than others, which touches no value; then it fetches those that are in one batch,
// and moves them. To all commands the value is the same: no event, no propagation, and its age
// stays the same.
//
// A slice takes 2 to 4 ms of the main thread for 128 values. It runs only while space is short and
// no child lives (a move would be a copy of a shared page). Large hashes, lists, sets, sorted sets
// and streams, and strings of up to 44 bytes stay where they are. Runs only where the layout of
// objects is known and the module made the tier itself.
//
// Threading: the server's main thread, between commands.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

// Tries to free `holes` bytes of holes, in at most `slices` slices. True: something was moved, so
// slabs may be free.
bool compaction_run(Context* context, uint64_t holes, unsigned slices);

struct CompactionCounters {
  uint64_t values, bytes, passes;  // values and bytes moved; passes through the whole keyspace
};
CompactionCounters compaction_counters();

}  // namespace lunar::redis
