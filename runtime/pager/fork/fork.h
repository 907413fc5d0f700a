// SPDX-License-Identifier: Apache-2.0
// A part of pager.h: a forked child keeps its memory (README.md).
#pragma once

namespace lunar {

// Called before a fork, by adapters that wrap fork(). 0: what the child may need is reserved for
// this thread's next fork; signals must be blocked from before this call. -ENOMEM: the tree has no
// room for another process, or the LUN cannot reserve the space. If the fork makes no child, call
// pager_fork_failed, which gives the reservations back.
[[nodiscard]] int pager_fork_check();
void pager_fork_failed();
// The work of the fork handlers, for calls that make a child without running them (_Fork; clone
// without CLONE_VM): called around them, on the calling thread, pager_fork_parent also after a
// failed call. child_stack: the end of the stack on which the child begins; nullptr: the caller's.
void pager_fork_prepare(const void* child_stack);
void pager_fork_parent();
void pager_fork_child();
// The handlers of libc's fork(). libc touches open FILEs in the child, and removes the parent's
// threads from its lists, so that their stacks can be unmapped.
void pager_fork_prepare_of_libc();
void pager_fork_child_of_libc();
// In a child, after fork(): ends the child if libc did not run the handlers.
void pager_fork_child_ran();
// Whether a raw fork of an active process made this one: it has none of the tiered memory and of
// the service threads, and must not change the account, which is its parent's.
bool pager_forked_past_us();

// Called once, before the program's libraries install their handlers (adapters/preload).
[[nodiscard]] int fork_handlers_install();

}  // namespace lunar
