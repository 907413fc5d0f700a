// SPDX-License-Identifier: Apache-2.0
// Early heap: memory for requests at times when no allocator can be used: before our constructor,
// during thread creation between the allocator's fork handlers, and at any time for the dynamic
// linker, which holds its own locks. It grows as it is used. Freed memory is reused, and never
// returned to the kernel.
// Threading: lock-free. Async-signal-safe. A forked child continues with its copy. Calls only mmap
// and mprotect, and what finds /dev/zero (sys/arena.h). Preserves errno.
#pragma once
#include <cstddef>

namespace lunar::preload {

void* early_alloc(
    size_t alignment,
    size_t bytes);  // zeroed; nullptr: the kernel gives no more, or its space is used up
void early_free(void* pointer);  // pre: early_owns(pointer)
bool early_owns(const void* pointer);
size_t early_size(const void* pointer);

}  // namespace lunar::preload
