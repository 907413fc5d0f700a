// SPDX-License-Identifier: Apache-2.0
// What happens when the LUN has no room for an allocation, which would abort the server.
// memory_limit makes that rare; what remains are allocations that no limit of the server precedes:
// many clients that announce a value at once, one command with a reply of many values, a script
// that builds its own.
//
// First, plain memory outside of the DRAM budget, as long as the process stays below the budget +
// kResortBytes: the difference to what SIZING.md tells users to give a unit or a container. A value
// that is announced but not sent takes nothing of it. memory_limit and the server's own limits act
// before the next command, and end these clients. Then, if a forked child lives, it is ended as the
// server itself would (SIGUSR1; SIGKILL 200 ms later): what it was promised becomes free, and the
// server repeats its save. A save that was given up loses less than a server that stops.
//
// Threading: any thread of the server.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace lunar::redis {

constexpr uint64_t kResortBytes = 96ull << 20;

// To be called when the heap has refused. nullptr: nothing is left.
void* last_resort_alloc(size_t bytes, bool zero);
void* last_resort_resize(void* pointer, size_t bytes);

// For a moment after a refused allocation, the next ones do not try the heap: each would wait for a
// sweep of dead processes.
bool last_resort_open();
void last_resort_close();  // by the main thread, when it looks at the LUN

void last_resort_forked(pid_t child);  // 0: in the child

struct LastResort {
  uint64_t allocations, bytes, children;  // since the load; bytes of all allocations, freed or not
};
LastResort last_resort_counters();

}  // namespace lunar::redis
