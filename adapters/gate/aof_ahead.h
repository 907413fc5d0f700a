// SPDX-License-Identifier: Apache-2.0
// Looks ahead of a server that loads an append-only file. Its commands run one after the other, each with the faults of
// its keys; the gate looks their keys up as those of a client, and the file tells them in advance.
//
//   file   ... │ window that the server is in │ the next one │ ...
//              its pages are in               read by pread, looked up and fetched meanwhile
//
// fgets(buffer, file) that gives "*3\r\n" says that the server begins a command. Every few commands the main thread
// sees whether what the next window lacked is in, and asks for the next missing pages of all its commands: one step of
// all lookups at a time, by the gate's fetchers. With the first command of that window it waits for what is still under
// way, fetches itself what no thread has begun, and reads the window behind. All of it happens between two commands:
// nothing changes meanwhile. A lookup that a command has overtaken asks for a page too many or too few, and no more.
//
// The server's own reading of the file is not touched. The DRAM budget bounds the windows: pages that wait for their
// command must not push each other out.
//
// Dumps need nothing: they store keys that are not there yet (or, DEBUG RELOAD NOFLUSH, look each up once).
//
// Threading: the main thread, and the fetcher's; others go straight to libc. Allocates one buffer, of sys/arena's.
#pragma once
namespace lunar::redis {

// Redirects fgets, once; the gate's other calls are redirected already. `known`: whether keys may be looked at. A
// server that does not call it loads as it can.
void aof_ahead_watch(bool (*known)());

}  // namespace lunar::redis
