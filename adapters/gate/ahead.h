// SPDX-License-Identifier: Apache-2.0
// The server's own work on cold keys, between clients' commands: active expiry (expiry.h) and
// eviction at maxmemory (eviction.h). The gate's threads fetch the pages for it first.
//
//   epoll_wait() returns ──► a file event of the gate among its events ──► the server calls turn():
//                        it may read and change data; missing pages ──► fetcher ──► the next turn
//
// The event's descriptor is never readable: the gate adds it to the result of epoll_wait, as it
// does for held clients. An idle server is not woken: a turn happens when the server wakes up
// anyway, at most once in kLookNs.
//
// Works on Redis 7.0, 8.0 and Valkey 8.1, whose functions are known (server_tables.h describes
// their tables). On other servers, and if a symbol is missing, expiry and eviction take faults. So
// does expiry in a cluster of Redis 8.0 or Valkey, which have a table of expiries for each slot.
//
// Threading: the server's main thread, while it has the server's lock: in reads and in turns.
// Around epoll_wait() a thread of a module may have the lock, so the code checks that there.
// Allocates nothing, except in the server's own functions.
#pragma once
#include <cstdint>

#include "key_lookup.h"

struct epoll_event;

namespace lunar::redis {

constexpr uint64_t kLookNs = 10'000'000;

struct AheadCounters {
  uint64_t expired = 0;       // keys that expired in a turn
  uint64_t expired_cold = 0;  // of these, not in DRAM yet when their time was up
  uint64_t evictable = 0;     // candidates of eviction that were fetched
};

// Called in a read, when the gate begins to watch.
void ahead_start();
// Whether turns are possible now. False also while the server handles events inside a command.
bool ahead_works();
// The timeout in milliseconds that the server may sleep.
int ahead_sleep(int timeout_ms, uint64_t now);
// Whether a turn is due now, even without an event of the server.
bool ahead_due(uint64_t now);
// Called before the server waits for events: restores the server's own settings, because other
// threads may have its lock in the meantime, and commands of clients come next. Does nothing if
// another thread has the lock already.
void ahead_before_wait();
// Adds the gate's event to the `n` events if a turn is due. Returns their number.
int ahead_add_event(epoll_event* events, int n, int max);
// Called when the server is about to read. If `fd` is a client's, its commands come next: restores
// the server's own settings, and offers victims that these commands may evict.
void ahead_of_commands(int fd);
AheadCounters& ahead_counters();

// Pieces that are fetched on the server's own behalf; a turn follows when they are in DRAM.
// ahead_fetch returns false if too many requests are in progress.
struct AheadFetch {
  NonresidentRanges missing{};
  bool under_way = false;
};
void ahead_fetched(AheadFetch* fetch);
[[nodiscard]] bool ahead_fetch(AheadFetch* fetch);

}  // namespace lunar::redis
