// SPDX-License-Identifier: Apache-2.0
// Serves an allocation for which the LUN has no room, because its failure would abort the server.
// memory_limit makes that rare. Some allocations come before any limit of the server applies: many
// clients that announce a value at once, one command with a reply of many values, a script that
// builds large values.
//
// First it takes plain memory outside of the DRAM budget, as long as the process stays below the
// budget + kResortBytes (SIZING.md tells users to give a unit or a container that much). A value
// that is announced but not sent takes no DRAM. memory_limit and the server's own limits act before
// the next command, and disconnect these clients. If that is not enough and a forked child lives,
// the child is ended as the server itself would (SIGUSR1; SIGKILL 200 ms later): its promised space
// becomes free, and the server repeats its save. Users lose less by a save that is given up than by
// a server that stops.
//
// Threading: any thread of the server.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace lunar::redis {

constexpr uint64_t kResortBytes = 96ull << 20;

// Called when the heap has refused. nullptr: no memory is left.
void* last_resort_alloc(size_t bytes, bool zero);
void* last_resort_resize(void* pointer, size_t bytes);

// Whether an allocation was refused lately. If so, the next ones do not try the heap first, where
// each would wait for a sweep of dead processes.
bool last_resort_open();
void last_resort_close();  // called by the main thread when it checks the LUN's space

void last_resort_forked(pid_t child);  // 0: in the child

struct LastResort {
  uint64_t allocations, children;  // since the load; children: ended for their space
};
LastResort last_resort_counters();

}  // namespace lunar::redis
