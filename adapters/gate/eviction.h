// SPDX-License-Identifier: Apache-2.0
// Eviction of cold keys at maxmemory. The server evicts inside a client's command: it samples a few
// keys into a pool of 16, the least used last, and frees the last one, which reads the value's
// memory. The gate samples candidates ahead with the server's own function and policy, fetches the
// memory that freeing them reads, and puts them at the end of the server's pool, from where the
// server takes them:
//
//   evictionPoolPopulate ──► batches of candidates ──► fetcher ──► ready ──► the server's pool
//                                                         (as its best 16) ──► the server evicts
//
// A command that will evict needs the memory of its victims like that of its keys: if no victim is
// ready, the command is held until one is fetched.
//
// The server still decides whether, when and how many keys to evict. A candidate is a few
// milliseconds old; one that no longer exists is skipped.
//
// Policies that choose at random (allkeys-random, volatile-random) have no pool. For these, the
// gate chooses victims by the server's dictGetRandomKey, fetches them in the same way, and evicts
// them a little before the server must: by the server's performEvictions, which during that call
// sees a pool policy and a limit one byte below the memory used, and so takes one key from the end
// of the pool. Between the calls 256 KiB (less if maxmemory is small) stay free for coming
// commands.
//
// Threading: as ahead.h. The server's pool is found by its shape (server_fields.h); without it the
// server evicts alone.
#pragma once
#include <cstdint>

#include "key_lookup.h"

namespace lunar::redis {

// False: not for this server.
bool eviction_start();
// pre: in a turn. True: more work is waiting for the next turn.
bool eviction_turn(uint64_t now);
// Whether used memory is close to maxmemory, so that turns are wanted as often as possible.
bool eviction_near();
// Offers victims. pre: the server may run commands next, and runs none now.
void eviction_offer();
// Whether there is a victim for a command of so many bytes. If not, adds a page that a victim waits
// for to *missing.
bool eviction_has_victim(size_t bytes, NonresidentRanges* missing);

}  // namespace lunar::redis
