// SPDX-License-Identifier: Apache-2.0
// Early heap: a bump buffer for requests while no allocator may be used: by the dynamic loader before our
// constructor, and by thread creation between the allocator's fork handlers. What it hands out is never given back.
// Threading: lock-free. Async-signal-safe. Calls nothing.
#pragma once
#include <cstddef>

namespace lunar::preload {

void* early_alloc(size_t alignment, size_t bytes);  // zeroed; nullptr when used up
bool early_owns(const void* pointer);
size_t early_size(const void* pointer);

}  // namespace lunar::preload
