// SPDX-License-Identifier: Apache-2.0
// Detects a save by the server itself (SAVE, SHUTDOWN, DEBUG RELOAD: no fork) and reads the tables
// ahead of it (save_ahead.h).
//
//   fopen("temp-PID.rdb", "w")   this file is the one
//   fwrite: its first bytes      handlers of modules have run, the iteration over the tables is
//                                next ──► starts
//   fwrite: further ones         the server waits until it is behind the reader (so does a forked
//                                child that saves to a file)
//   fclose                       before anything else is done ──► stopped and joined
//
// In between the server only saves: clients wait, threads of modules have no right to change keys,
// and what bio threads free is in no table any more. save_ahead.h lists what the server does
// change. The calls of the main program are redirected (program_got.h), because the module and
// `lunar run` need the same, and a module's event comes before the handlers of other modules have
// run.
// An AOF rewrite is always a child's.
//
// Threading: hooks do their work on the main thread, also in a child; calls of other threads go
// straight to libc. Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// Redirects the calls, once. `known`: whether keys may be looked at, on the main thread, while
// nothing changes them. If a server does not make these calls, it saves without read-ahead.
void foreground_save_watch(const ServerLayout& layout, bool (*known)());

}  // namespace lunar::redis
