// SPDX-License-Identifier: Apache-2.0
// What the constructor and syscall() need of fork_family.cpp.
#pragma once

namespace lunar::preload {

// At start, after the pager has installed its own fork handlers. 0 or -errno.
int forks_prepare();
// Registers the fork handlers of others, once the allocator has its own. 0 or -errno.
int forks_register_waiting();

// Whether a system call makes a process with a copy of our memory, whose child returns on this
// stack.
bool fork_call_copies(long number, const long (&arguments)[6]);
// Makes that call: as syscall() returns it.
int fork_by_call(long number, const long (&arguments)[6]);

}  // namespace lunar::preload
