// SPDX-License-Identifier: Apache-2.0
// Keeps the server's limits below what the LUN can hold: when malloc fails the server aborts, and
// when a fork is refused it answers MISCONF to every write, so its own OOM reply or eviction must
// come first.
//
// maxmemory bounds what the server has allocated, the LUN is charged by what the allocator has
// committed (space.h). Between the two are holes, and deleted values of one size leave holes that
// values of another size do not fit. So maxmemory follows the committed bytes:
//
//   committed < limit          maxmemory = what is counted now + what is left up to the limit, at
//                              most the ceiling
//   limit .. edge              what is free is purged; maxmemory stays: values that fit holes may
//                              come
//   above the edge             maxmemory goes below what is counted: eviction, or OOM replies,
//                              until it is left
//
// Meanwhile values are moved together (compaction.h), which takes holes away. It is looked at
// before the command that comes after a few more committed bytes (a command filter), and ten times
// a second.
// maxmemory-clients leaves client buffers what data leaves, and proto-max-bulk-len one value a part
// of what is free: a client that goes beyond is refused by the server itself, before it allocates.
// If the server evicts, space is short, and the stream of replicas takes more than an eighth of the
// space for data, the slowest replica is disconnected (slow_replicas.h).
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

// The upper bound of maxmemory: 7/8 of the room for data (`forks yes`: of half of the LUN, so that
// a child fits too).
uint64_t memory_limit_ceiling();
const char* memory_limit_state();  // ok, low (maxmemory will soon be lowered), held (it is), full
                                   // (above the edge)

// At load: sets maxmemory when it is 0, lowers it with a warning when it is above the ceiling.
// Follows the LUN from now on.
void memory_limit_start(Context* context);
// Looks again soon (from a timer, outside of the current command).
void memory_limit_recheck(Context* context);

}  // namespace lunar::redis
