// SPDX-License-Identifier: Apache-2.0
// Repacks values when holes take up the LUN (memory_limit.h). The server's active defragmentation
// cannot do that: it works only with the server's own build of jemalloc.
//
// A slice continues through the keyspace where the last one ended. For each value that is one block
// (strings in a block of their own, listpacks, sets of integers) it asks the allocator whether the
// block's slab is emptier than others, which touches no value. Then it fetches the blocks in
// emptier slabs in one batch, and moves them. Commands see no difference: there is no event and no
// propagation, and the value keeps its age.
//
// A slice takes 2 to 4 ms of the main thread for 128 values. It runs only while space is short and
// no child lives, because a move would copy a page that is shared with the child. Large hashes,
// lists, sets, sorted sets and streams, and strings of up to 44 bytes stay where they are.
// Compaction works only where the layout of objects is known and the module made the tier itself.
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
