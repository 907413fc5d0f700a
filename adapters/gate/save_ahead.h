// SPDX-License-Identifier: Apache-2.0
// Reads ahead of the saver: a forked child (BGSAVE, AOF rewrite, full sync), or the server itself (foreground_save.h).
// The saver goes through all databases in the order of their tables, which is no order of pages: a fault a key, one
// after the other. A thread reads ahead:
//
//   group of buckets:  table ─► entries ─► keys, objects ─► values
//                      │  what a round misses is fetched in batches at queue depth
//                      └─ one page of a value is left out: the *marker*. Once it is resident, the saver has come to
//                         this group.
//
// Not more than a part of the DRAM is brought in beyond the last marker that was reached. Members of large hashes, sets
// and sorted sets are gone through in the same way where they are known (key_lookup.cpp); long lists as far as their
// nodes are known, streams not at all: those fault.
//
// Nothing may change what this thread reads. The saver keeps the tables that it goes through stable (a paused rehash),
// but looks expiries up on the way, and each such lookup moves entries of a table that is being rehashed and may free
// it: a table of expiries is read only when it is not being rehashed, which nothing begins during a save.
//
// Threading: save_ahead_start in a forked child, by an atfork handler that runs after the pager's; or on the server's
// main thread, which then calls save_ahead_stop before it changes anything. Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Does nothing when there is no tier, or nothing of it is cold. Without a thread the saver faults as it goes: no error.
void save_ahead_start(const ServerLayout& layout);
// Called by the saver now and then: waits while it is not behind the reader (a moment; a second at the most, once). The
// reader does not catch up with a saver that got ahead: reading behind it pushes out what it needs.
void save_ahead_keep_behind();
// Waits until nothing is read any more: for the batch that is being fetched. Does nothing when nothing was started.
void save_ahead_stop();

}  // namespace lunar::redis
