// SPDX-License-Identifier: Apache-2.0
// Reads ahead of a child that saves. BGSAVE, AOF rewrite and full sync go through all databases in the order of their tables,
// which is no order of pages: a fault a key, one after the other. A thread in the child goes the same way ahead of it:
//
//   group of buckets:  table ─► entries ─► keys, objects ─► values      what a round misses is fetched in batches at queue depth
//                      └─ one page of a value is left out: the *marker*. Once it is resident, the saver has come to this group.
//
// Not more than a part of the child's DRAM is brought in beyond the last marker that was reached. Members of large hashes, sets and
// sorted sets are gone through in the same way where they are known (walk.cpp); long lists as far as their nodes are known, streams not at all: those fault.
//
// Threading: save_ahead_start in a forked child, by an atfork handler that runs after the pager's. The child's other threads read
// the data, too; nothing changes it there. Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Does nothing when there is no tier. A thread that cannot be had is no error: the child faults as it goes.
void save_ahead_start(const ServerLayout& layout);

}  // namespace lunar::redis
