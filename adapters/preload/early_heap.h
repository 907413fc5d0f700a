// SPDX-License-Identifier: Apache-2.0
// The early heap serves requests when no allocator can be used: before our constructor, during
// thread creation between the allocator's fork handlers, and at any time for the dynamic linker,
// which holds its own locks. It grows as it is used. Freed memory is reused, and never returned to
// the kernel.
// Threading: lock-free. Async-signal-safe. A forked child continues with its copy. Calls only mmap,
// mprotect, and the calls that find /dev/zero (sys/arena.h). Preserves errno.
#pragma once
#include <cstddef>

namespace lunar::preload {

// Zeroed memory. nullptr: the kernel gives no more, or the heap's address space is used up.
void* early_alloc(size_t alignment, size_t bytes);
void early_free(void* pointer);  // pre: early_owns(pointer)
bool early_owns(const void* pointer);
size_t early_size(const void* pointer);

}  // namespace lunar::preload
