// SPDX-License-Identifier: Apache-2.0
// Early heap: a buffer for requests while no allocator may be used: before our constructor, by thread creation between
// the allocator's fork handlers, and by the dynamic linker at any time, which holds locks of its own. What comes back
// is used again.
// Threading: lock-free. Async-signal-safe. A forked child goes on with its copy. Calls nothing.
#pragma once
#include <cstddef>

namespace lunar::preload {

void* early_alloc(size_t alignment, size_t bytes);  // zeroed; nullptr when used up
void early_free(void* pointer);                     // pre: early_owns(pointer)
bool early_owns(const void* pointer);
size_t early_size(const void* pointer);

}  // namespace lunar::preload
