// SPDX-License-Identifier: Apache-2.0
// maxmemory, kept below what the LUN can hold: when malloc fails the server aborts, so its own OOM reply or eviction must
// come first.
//
// The ceiling is 7/8 of the LUN space that data may take. The eighth is for what maxmemory does not count: fragmentation, pages
// that the allocator holds spare, buffers of replicas and of the append-only file. With `forks` on (the default) data may take half of the
// LUN: a forked child is promised as much as its parent holds, or the fork is refused (runtime/README.md, Fork). With it off,
// all of it, and BGSAVE, AOF rewrite and full sync fail when the LUN is more than half full.
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

uint64_t memory_limit_ceiling();
// At load: sets maxmemory when it is 0, lowers it with a warning when it is above the ceiling. Watches it from now on.
void memory_limit_start(Context* context);
// Soon (from a timer, outside of the command at hand).
void memory_limit_recheck(Context* context);

}  // namespace lunar::redis
