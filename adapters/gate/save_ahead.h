// SPDX-License-Identifier: Apache-2.0
// Reads ahead of the saver: a forked child (BGSAVE, AOF rewrite, full sync), or the server itself
// (foreground_save.h). The saver goes through all databases in the order of their tables, which is
// not an order of pages: one fault per key, one after the other. A thread reads ahead:
//
//   group of buckets:  table ─► entries ─► keys, objects ─► values
//                      │  what a round misses is fetched in batches at queue depth
//                      └─ one page of a value is left out: the *marker*. Once it is resident, the
//                         saver has come to this group.
//
// No more than a part of the DRAM is brought in beyond the last marker that was reached. Members of
// large hashes, sets and sorted sets, and nodes of lists, are gone through in the same way
// (bucket_walk.h), small collections several at a time; streams not at all. The rest is read by
// faults.
//
// Nothing may change what this thread reads. The saver keeps the tables that it goes through stable
// (a paused rehash), but it looks up expiries on the way, and each such lookup moves entries of a
// table that is being rehashed, and may free that table. So a table of expiries is read only if it
// is not being rehashed; no rehash begins during a save.
//
// Threading: save_ahead_start in a forked child, by an atfork handler that runs after the pager's;
// or on the server's main thread, which then calls save_ahead_stop before it changes anything.
// Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Does nothing if there is no tier, or nothing in it is cold. Without a thread the saver takes
// faults, which is no error.
void save_ahead_start(const ServerLayout& layout);
// Called by the saver now and then: waits until it is behind the reader (a moment; at most a
// second, once). The reader does not try to catch up with a saver that got ahead, because reading
// behind it pushes out what it needs.
void save_ahead_keep_behind();
// Waits until nothing is being read any more, that is, for the batch in progress. Does nothing if
// nothing was started.
void save_ahead_stop();

}  // namespace lunar::redis
