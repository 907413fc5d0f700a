// SPDX-License-Identifier: Apache-2.0
// fork: a child keeps its memory (README.md). A part of pager.h.
#pragma once

namespace lunar {

// Called by pthread_atfork handlers that the pager installs at activation. Exposed for adapters
// that wrap fork(). -ENOMEM: the tree has no room for another process, or the LUN cannot reserve
// what the child may come to need. 0: the room is reserved for the next fork of this thread, which
// blocks signals from before the check on. If that makes no child, call pager_fork_failed, which
// returns the room.
[[nodiscard]] int pager_fork_check();
void pager_fork_failed();
// The work of these handlers, for calls that make a child without running them (_Fork; clone
// without CLONE_VM): around the call, on the calling thread. After a failed call use
// pager_fork_parent. child_stack: the end of the stack on which the child begins; nullptr: it
// continues on the caller's.
void pager_fork_prepare(const void* child_stack);
void pager_fork_parent();
void pager_fork_child();
// As handlers of libc's fork(). In the child it touches open FILEs first, and removes the parent's
// threads from its lists, so their stacks can be unmapped.
void pager_fork_prepare_of_libc();
void pager_fork_child_of_libc();
// In a child, after fork() itself: ends the child if libc has lost its list of handlers.
void pager_fork_child_ran();
// The process that this one was forked from without any of that, if the address was tiered memory;
// 0: it was not. For a signal handler, also in such a child: takes no lock.
int pager_parent_past_us(const void* address);
// Whether this process was forked so from an active one, by a raw system call: it has none of the
// tiered memory, none of the service threads, and its parent's account, which it must leave alone.
bool pager_forked_past_us();

// called once, before the program's libraries install theirs (see adapters/preload)
[[nodiscard]] int fork_handlers_install();

}  // namespace lunar
