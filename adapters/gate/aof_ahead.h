// SPDX-License-Identifier: Apache-2.0
// Reads ahead for a server that loads an append-only file. The server runs its commands one after
// the other, with faults for the keys of each. The file shows the commands in advance, so the gate
// looks their keys up like those of a client.
//
//   file   ... │ window that the server is in │ the next one │ ...
//              its pages are in DRAM          read by pread, looked up and fetched meanwhile
//
// An fgets(buffer, file) that returns "*3\r\n" means that the server begins a command. Every few
// commands the main thread checks whether the pages that the next window lacked are in DRAM. If so,
// it begins the next wave for that window (command_window.h). At the first command of that window
// it waits for the pages still in progress, fetches those that no thread has begun, and reads the
// window after it. All of this happens between two commands, so nothing changes in the meantime. A
// lookup that a command has overtaken requests a page too many or too few, which does no harm.
//
// The server's own reading of the file stays as it is.
//
// Dumps need no read-ahead: they store new keys (or, with DEBUG RELOAD NOFLUSH, look each up once).
//
// Threading: the main thread, and the fetcher's; calls of other threads go straight to libc.
// Allocates one buffer, from sys/arena.
#pragma once
namespace lunar::redis {

// Redirects fgets, once. `known`: whether keys may be looked at now. If a server does not call
// fgets, it loads without read-ahead.
void aof_ahead_watch(bool (*known)());

}  // namespace lunar::redis
