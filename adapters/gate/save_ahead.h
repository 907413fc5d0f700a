// SPDX-License-Identifier: Apache-2.0
// Reads ahead of the saver: a forked child (BGSAVE, AOF rewrite, full sync), or the server itself
// (foreground_save.h). The saver goes through all databases in the order of their tables, which is
// not the order of pages, so it takes one fault per key, one after the other. A thread reads ahead:
//
//   group of buckets:  table ─► entries ─► keys, objects ─► values
//                      │  pages that a round lacks are fetched in batches at queue depth
//                      └─ one page of a value is left out: the *marker*. When it is resident, the
//                         saver has reached this group.
//
// The thread brings in at most a part of the DRAM beyond the last marker that was reached. It goes
// through members of large hashes, sets and sorted sets, and nodes of lists, in the same way
// (bucket_walk.h), and through several small collections at a time, but not through streams. The
// saver reads the rest with faults.
//
// The memory that this thread reads must not change. The saver keeps the tables that it goes
// through stable (a paused rehash). But it also looks up expiries, and each such lookup moves
// entries of a table that is being rehashed, and may free that table. So the thread reads a table
// of expiries only if it is not being rehashed; no rehash begins during a save.
//
// Threading: save_ahead_start is called in a forked child, by an atfork handler that runs after the
// pager's; or on the server's main thread, which then calls save_ahead_stop before it changes
// anything. Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Starts the thread. Does nothing if there is no tier, or nothing in it is cold. If the thread
// cannot start, the saver takes faults, which is no error.
void save_ahead_start(const ServerLayout& layout);
// Called by the saver now and then: waits until the reader is ahead, once for at most a second. The
// reader does not try to catch up with a saver that is ahead, because its reads would evict pages
// that the saver needs.
void save_ahead_keep_behind();
// Stops the thread, and waits for its batch in progress. Does nothing if there is no thread.
void save_ahead_stop();

}  // namespace lunar::redis
