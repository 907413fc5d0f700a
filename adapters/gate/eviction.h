// SPDX-License-Identifier: Apache-2.0
// Eviction of cold keys at maxmemory. The server evicts inside a client's command: it samples a few keys into a pool of
// 16, ordered by how little they are used, and frees the last of the pool, which reads the value's memory. The gate
// samples candidates ahead with the server's own function and policy, fetches what freeing them reads, and puts them at
// the end of the server's pool, from where the server takes them:
//
//   evictionPoolPopulate ──► batches of candidates ──► fetcher ──► ready ──► the server's pool, as its best 16
//                                                                             └──► the server evicts
//
// A client's command that will evict depends on its victims' memory as on its keys': while none is ready, it is held
// for one that is fetched.
//
// The server still decides whether, when and how many. A candidate is a few milliseconds old; one that is gone
// meanwhile is skipped.
//
// Policies that choose at random (allkeys-random, volatile-random) have no pool. Their victims are chosen by the
// server's dictGetRandomKey, fetched likewise, and evicted a little before they must be: by the server's
// performEvictions, which for the length of that call sees a pool policy and a limit one byte below what is
// used, and so takes one key from the end of the pool. Between the calls 256 KiB (less of a small maxmemory) stay free
// for commands to come.
//
// Threading: as ahead.h. The server's pool is found by its shape (server_fields.h); where it is not, nothing is done.
#pragma once
#include <cstdint>

#include "key_lookup.h"

namespace lunar::redis {

bool eviction_start();
bool eviction_turn(uint64_t now);
// Used memory is close to maxmemory: turns are wanted as often as there may be.
bool eviction_near();
// Pre: the server may run commands next, and runs none now.
void eviction_offer();
// Whether there is a victim for a command of that many bytes; else adds to *missing what one waits for.
bool eviction_has_victim(size_t bytes, NonresidentRanges* missing);

}  // namespace lunar::redis
