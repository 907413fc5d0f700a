// SPDX-License-Identifier: Apache-2.0
// Chunks across fork.
//
// The prepare handler takes the registry's lock and every chunk's; the parent releases them. The
// child has only the forking thread, and the rings belong to the parent. So each chunk in the child
// forgets its ring (closing the inherited descriptor), its commands and its waiters, and attaches
// its own ring at its first asynchronous command. The devices' descriptors are shared with the
// parent. Virtual chunks refuse all calls until cblk_clone_after_fork. Threading: handlers of
// pthread_atfork, run by the forking thread.
#pragma once

namespace lunar::cblk {

[[nodiscard]] int fork_handlers_install();  // once per process; 0 or -errno

}  // namespace lunar::cblk
