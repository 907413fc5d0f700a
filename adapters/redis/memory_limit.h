// SPDX-License-Identifier: Apache-2.0
// Keeps the server's limits below the LUN's capacity. If malloc fails, the server aborts; if a fork
// is refused, it answers MISCONF to every write. So its own OOM reply or eviction must come first.
//
// maxmemory bounds the bytes that the server has allocated, but the LUN is charged for the bytes
// that the allocator has committed (space.h). The difference is holes: deleted values of one size
// leave holes that values of another size do not fit. So maxmemory follows the committed bytes:
//
//   committed < limit          maxmemory = bytes counted now + bytes left up to the limit, at most
//                              the ceiling
//   limit .. edge              free pages are purged; maxmemory stays: values that fit holes can
//                              still come
//   above the edge             maxmemory goes below the bytes counted: the server evicts, or
//                              replies with OOM, until `committed` is below the edge
//
// In the meantime values are moved together (compaction.h), which removes holes. The limits are
// checked by a command filter whenever committed bytes have grown by a step, and ten times a
// second. maxmemory-clients gives client buffers the space that data leaves, and proto-max-bulk-len
// gives one value a part of the free space: the server itself refuses a client that needs more,
// before it allocates. If space is short, the server evicts, and the stream of replicas takes more
// than an eighth of the space for data, the slowest replica is disconnected (slow_replicas.h).
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

// The upper bound of maxmemory: 7/8 of the room for data (`forks yes`: of half of the LUN, so that
// a child fits too).
uint64_t memory_limit_ceiling();
// ok; low: maxmemory will soon be lowered; held: it is lowered; full: above the edge.
const char* memory_limit_state();

// At load: sets maxmemory if it is 0, lowers it with a warning if it is above the ceiling, and
// follows the LUN from then on.
void memory_limit_start(Context* context);
// Checks the limits again soon, from a timer, outside of the current command.
void memory_limit_recheck(Context* context);

}  // namespace lunar::redis
