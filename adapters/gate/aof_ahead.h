// SPDX-License-Identifier: Apache-2.0
// Looks ahead of a server that loads an append-only file. Its commands run one after the other, each with the faults of
// its keys; the gate looks their keys up as those of a client, and the file tells them in advance.
//
//   fgets(buffer, file): "*3\r\n"   the server begins a command ──► the next window of the file is read (pread), its commands are looked up,
//                                   and what is missing is fetched in batches, a step of all lookups at a time; then
//                                   the server goes on
//
// The main thread does this between two commands: nothing changes meanwhile, and nothing is shared. The server's own
// reading of the file is not touched. The DRAM budget bounds a window: pages that wait for their command must not push
// each other out.
//
// Dumps need nothing: they store keys that are not there yet (or, DEBUG RELOAD NOFLUSH, look each up once).
//
// Threading: the main thread; others go straight to libc. Allocates one buffer, of sys/arena's.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Redirects fgets, once. `known`: whether keys may be looked at. A server that does not call it loads as it can.
void aof_ahead_watch(const ServerLayout& layout, bool (*known)());

}  // namespace lunar::redis
