// SPDX-License-Identifier: Apache-2.0
// Which copy of the program's memory a process runs in. Process ids do not tell: a child in a new
// pid namespace may have its parent's id (both 1), and a child of vfork has another id in the same
// memory.
// Threading: any thread, signal handlers, and forked children. No allocation but one page, at the
// first call.
#pragma once
#include <cstdint>

namespace lunar::sys {

// A forked child, however it was forked, gets a number that none of its ancestors had. A child of
// vfork, or of clone with CLONE_VM, has its parent's. Never 0.
uint32_t memory_copy();

// The calling process is the one that this memory lives and ends with: at start, and in a forked
// child.
void note_memory_owner();
// The calling process only runs in its parent's memory (vfork, clone with CLONE_VM). What it starts
// there ends with it, and the memory lives on. Not for processes that make such a child and end
// before it.
bool memory_is_parents();

}  // namespace lunar::sys
