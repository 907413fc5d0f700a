// SPDX-License-Identifier: Apache-2.0
// Chunks across fork.
//
// prepare takes the registry's lock and every chunk's; the parent gives them back. The child has only the forking
// thread, and a ring belongs to the parent: each chunk forgets its ring (closing the inherited descriptor), its
// commands and its waiters, and attaches a ring of its own at its first asynchronous command. The device's descriptors
// are shared with the parent. Virtual chunks refuse everything until cblk_clone_after_fork.
// Threading: handlers of pthread_atfork, run by the forking thread.
#pragma once

namespace lunar::cblk {

[[nodiscard]] int fork_handlers_install();  // once a process; 0 or -errno

}  // namespace lunar::cblk
