// SPDX-License-Identifier: Apache-2.0
// Eviction of cold keys at maxmemory. The server evicts inside a client's command: it samples a few
// keys into a pool of 16, ordered by how little they are used, and frees the last of the pool,
// which reads the value's memory. The gate samples candidates ahead with the server's own function
// and policy, fetches what freeing them reads, and puts them at the end of the server's pool, from
// where the server takes them:
//
//   evictionPoolPopulate ──► batches of candidates ──► fetcher ──► ready ──► the server's pool
//                                                         (as its best 16) ──► the server evicts
//
// A client's command that will evict needs its victims' memory like that of its keys: while no
// victim is ready, the command is held until one is fetched.
//
// The server still decides whether, when and how many keys to evict. A candidate is a few
// milliseconds old; one that no longer exists is skipped.
//
// Policies that choose at random (allkeys-random, volatile-random) have no pool. Their victims are
// chosen by the server's dictGetRandomKey, fetched likewise, and evicted a little before they must
// be: by the server's performEvictions, which for the duration of that call sees a pool policy and
// a limit one byte below what is used, and so takes one key from the end of the pool. Between the
// calls 256 KiB (less if maxmemory is small) stay free for coming commands.
//
// Threading: as ahead.h. The server's pool is found by its shape (server_fields.h); if it is not
// found, nothing is done.
#pragma once
#include <cstdint>

#include "key_lookup.h"

namespace lunar::redis {

bool eviction_start();
bool eviction_turn(uint64_t now);
// Whether used memory is close to maxmemory, so that turns are wanted as often as possible.
bool eviction_near();
// Offers victims. Pre: the server may run commands next, and runs none now.
void eviction_offer();
// Whether there is a victim for a command of that many bytes; if not, adds to *missing what one of
// them waits for.
bool eviction_has_victim(size_t bytes, NonresidentRanges* missing);

}  // namespace lunar::redis
