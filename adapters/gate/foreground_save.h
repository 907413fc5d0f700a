// SPDX-License-Identifier: Apache-2.0
// Detects a save by the server itself (SAVE, SHUTDOWN, DEBUG RELOAD: no fork) and reads the tables
// ahead of it (save_ahead.h).
//
//   fopen("temp-PID.rdb", "w")   notes the file
//   fwrite: its first bytes      handlers of modules have run, and the iteration over the tables
//                                comes next: the reader starts
//   fwrite: further bytes        the server waits until it is behind the reader (so does a forked
//                                child that saves to a file)
//   fclose                       the reader is stopped and joined before anything else
//
// In between the server only saves: clients wait, threads of modules may not change keys, and
// values that bio threads free are in no table any more. save_ahead.h lists the changes that the
// server does make. The calls of the main program are redirected (program_got.h), because the
// module and `lunar run` need the same, and a module's event comes before the handlers of other
// modules have run. An AOF rewrite always happens in a child.
//
// Threading: hooks do their work on the main thread, also in a child; calls of other threads go
// straight to libc. Allocates nothing.
#pragma once

namespace lunar::redis {

// Redirects the calls, once. `known`: whether keys may be looked at now. If a server does not make
// these calls, it saves without read-ahead.
void foreground_save_watch(bool (*known)());

}  // namespace lunar::redis
