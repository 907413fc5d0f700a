// SPDX-License-Identifier: Apache-2.0
// Makes the server's allocations tiered. The server keeps calling malloc; its slots for malloc,
// calloc and realloc lead to thin functions that bind the calling thread to the tiered arenas once,
// then call jemalloc's own, and use the last resort (last_resort.h) before they let an allocation
// fail. free stays as it is: jemalloc knows the arena of each allocation. Allocations from before
// the load stay where they were.
//
// All allocations of the server's threads from the load on are tiered, also those of libraries.
// Allocations from before (command table, shared objects, configuration), thread stacks and the
// runtime's own memory are not.
//
// Dictionary tables, entries, keys and objects are tiered like values, and stay resident by
// themselves: jemalloc keeps sizes apart, so one page holds 100 to 500 of them and is hot long
// before a value is. With 260,000 values of 1000 bytes in 64 MiB, a uniform GET takes 0.91 reads
// from the LUN; it would take 0.86 if no such page were ever evicted. A DRAM arena for calloc
// (tables) could win only a part of these 5%, and would hold 8 to 16 bytes per key outside of the
// budget.
//
// The server's fork is also redirected here, and fails with ENOMEM when the LUN cannot promise the
// space that the child may need.
//
// Threading: at load, on the server's main thread. The redirections stay for good, and the library
// stays mapped (-z nodelete).
#pragma once

#include "base/error.h"

namespace lunar::redis {

// Checks that the server's malloc is a jemalloc that can be tiered. 0, or -ENOTSUP: *why says what
// to do. Changes nothing.
[[nodiscard]] int server_heap_check(ErrorText* why);
// pre: server_heap_check, pager active. Makes the heap, redirects the calls, binds the calling
// thread. On failure nothing is redirected.
[[nodiscard]] int server_heap_start(ErrorText* why);

}  // namespace lunar::redis
