// SPDX-License-Identifier: Apache-2.0
// Tells when no thread of the program is left. The kernel ends a process with its last thread, and ours are threads
// too: one whose threads have ended past libc (the exit system call, a seccomp filter that kills the thread) would
// stay.
//
// A pipe whose writing end is in the program's descriptor table alone: the table, and with it the pipe, is closed when
// its last thread has ended. A handler waits for that among its messages; nothing polls. The program can close the
// descriptor past libc: then the end is reported too early, so the threads are looked at, and a later end is not seen.
//
// Threading: prepare and forget where threads are started, the others by service threads.
#pragma once

namespace lunar {

// Before the service threads are started, by a thread of the program. 0 or -errno.
[[nodiscard]] int program_end_prepare();
void program_end_prepared();     // when they have the reading end in their table
int program_end_descriptor();    // the reading end, in the service threads' table
bool program_end_keeps(int fd);  // whether it is the writing end, in the program's table
void program_end_forget();       // closes the writing end: in a forked child, or where no thread was started
bool program_has_threads();      // looks at /proc; by a service thread

}  // namespace lunar
