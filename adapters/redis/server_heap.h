// SPDX-License-Identifier: Apache-2.0
// The server's allocator, tiered. The server keeps calling malloc; its slots for malloc, calloc and
// realloc lead to thin functions that bind the calling thread to the tiered arenas once, then call
// jemalloc's own, and give back what jemalloc holds spare before they let an allocation fail. free
// stays as it is: jemalloc knows the arena of each allocation, and allocations from before the load
// stay where they were.
//
// What is tiered: whatever the server's threads allocate from the load on, also through libraries.
// What is not: what came before (command table, shared objects, configuration), thread stacks, the
// runtime's own.
//
// Dictionary tables, entries, keys and objects are tiered like values and stay resident by
// themselves: jemalloc keeps sizes apart, so that one page holds 100 to 500 of them and is hot long
// before a value is. 260,000 values of 1000 bytes in 64 MiB: 0.91 reads from the LUN a uniform GET,
// 0.86 if no such page were ever evicted. A DRAM arena for calloc (tables) could win a part of
// these 5% only, and would hold 8 to 16 bytes a key outside of the budget.
//
// The server's fork is redirected here too, and refused with ENOMEM when the LUN cannot promise
// what the child may need.
//
// Threading: at load, on the server's main thread. Nothing here is undone; the library stays mapped
// (-z nodelete).
#pragma once

#include "base/error.h"

namespace lunar::redis {

// Whether the server's malloc is a jemalloc that can be tiered. 0, or -ENOTSUP with what to do in
// *why. Changes nothing.
[[nodiscard]] int server_heap_check(ErrorText* why);
// pre: server_heap_check, pager active. Makes the heap, redirects the calls, binds the calling
// thread. On failure nothing is redirected.
[[nodiscard]] int server_heap_start(ErrorText* why);

}  // namespace lunar::redis
