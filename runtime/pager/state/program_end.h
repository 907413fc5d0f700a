// SPDX-License-Identifier: Apache-2.0
// Detects that no thread of the program is left. The kernel ends a process with its last thread,
// and service threads count: a process whose own threads have ended without libc (the exit system
// call, a seccomp filter that kills the thread) would stay.
//
// A pipe's writing end is only in the program's descriptor table. The kernel closes this table, and
// the end with it, when its last thread has ended. A handler waits for that together with its
// messages; nothing polls. If the program closes the descriptor by a raw call, the end is reported
// too early, so the threads are checked; a later end is then not noticed.
//
// Threading: prepare and forget when threads are started, the other functions by service threads.
#pragma once

namespace lunar {

// Before the service threads are started, by a thread of the program. 0 or -errno.
[[nodiscard]] int program_end_prepare();
// Closes the reading end in the program's table: the service threads have it in theirs, or were not
// started.
void program_end_close_reading();
int program_end_descriptor();    // the reading end, in the service threads' table
bool program_end_keeps(int fd);  // whether it is the writing end, in the program's table
bool program_has_threads();      // checks /proc; called by a service thread
// Closes the writing end: in a forked child, or if no thread was started.
void program_end_forget();

}  // namespace lunar
