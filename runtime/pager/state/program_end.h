// SPDX-License-Identifier: Apache-2.0
// Detects that no thread of the program is left. The kernel ends a process with its last thread,
// and service threads are threads too: a process whose threads have ended past libc (the exit
// system call, a seccomp filter that kills the thread) would stay.
//
// It uses a pipe whose writing end is only in the program's descriptor table: the table, and with
// it the pipe, is closed when its last thread has ended. A handler waits for that among its
// messages; nothing polls. The program can close the descriptor past libc: then the end is reported
// too early, so the threads are checked, and a later end is not noticed.
//
// Threading: prepare and forget when threads are started, the others by service threads.
#pragma once

namespace lunar {

// Before the service threads are started, by a thread of the program. 0 or -errno.
[[nodiscard]] int program_end_prepare();
void program_end_prepared();     // called when they have the reading end in their table
int program_end_descriptor();    // the reading end, in the service threads' table
bool program_end_keeps(int fd);  // whether it is the writing end, in the program's table
void program_end_forget();       // closes the writing end: in a forked child, or if no thread was
                                 // started
bool program_has_threads();      // checks /proc; called by a service thread

}  // namespace lunar
