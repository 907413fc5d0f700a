// SPDX-License-Identifier: Apache-2.0
// Identifies the copy of the program's memory in which a process runs. A process id is not enough:
// a child in a new pid namespace may have its parent's id (both 1), and a child of vfork has
// another id in the same memory.
// Threading: any thread, signal handlers, and forked children. No allocation but one page, at the
// first call.
#pragma once
#include <cstdint>

namespace lunar::sys {

// A forked child gets a number that none of its ancestors had, however it was forked. A child of
// vfork, or of clone with CLONE_VM, has its parent's number. Never 0.
uint32_t memory_copy();

// Records the calling process as the owner: the memory ends with it. Call at start, and in a forked
// child.
void note_memory_owner();
// Whether the calling process runs in its parent's memory (vfork, clone with CLONE_VM). Threads
// that it starts there end with it, and the memory lives on. The result is wrong if the parent
// ended before such a child.
bool memory_is_parents();

}  // namespace lunar::sys
