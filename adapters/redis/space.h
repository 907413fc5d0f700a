// SPDX-License-Identifier: Apache-2.0
// How full the LUN is, and where its limits are. The bytes that the allocator has *committed*
// count: each such page is promised a slot, whether it holds values or holes between values.
//
//   0 ........ limit ...... edge ...... end          committed bytes
//              data may     half way    forks yes: from here on a fork is refused (half of the LUN:
//              grow to      to the      a child is promised as much as its parent holds)
//              here         end         forks no: an allocation fails
//
// The limit is 7/8 of the end. The eighth above it is for allocations between two checks, and for
// buffers that no limit of the server counts: those of replicas and of the append-only file. While
// a child lives, its share is taken; limit and edge then keep their distance from the end of the
// rest.
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

namespace lunar::redis {

struct Space {
  uint64_t capacity = 0;  // the part of the LUN that this process can have
  uint64_t committed = 0;
  uint64_t free = 0;    // can still be promised
  uint64_t forked = 0;  // promised to children that live
  uint64_t end = 0, edge = 0, limit = 0;
  uint64_t used = 0;     // by the server's own count
  uint64_t counted = 0;  // the part of `used` that it compares with maxmemory
  uint64_t clients = 0;  // the part of `counted` in buffers of ordinary clients
  uint64_t connections = 0;
  uint64_t streams = 0;  // not received by replicas, beyond the backlog; not in `counted`

  uint64_t margin() const { return end - limit; }
  uint64_t forks_refused_at() const { return capacity / 2; }  // when no child lives
  // kept free for a child
  uint64_t fork_reserve() const { return capacity > end + forked ? capacity - end - forked : 0; }
  uint64_t holes() const { return committed > used ? committed - used : 0; }
};
// `server` fills in used, counted, clients and streams: some ten microseconds. capacity 0: no tier.
Space space_now(bool server);
// Committed bytes, roughly: one load where the tier is the module's own.
uint64_t space_committed_now();
// Makes the allocator give back its free pages.
void space_purge();

}  // namespace lunar::redis
