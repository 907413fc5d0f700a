// SPDX-License-Identifier: Apache-2.0
// Where the allocation calls of the program meet: one pair of functions for malloc's family and for operator
// new/delete.
// Threading: any thread. errno: ENOMEM is set where nullptr is returned; release keeps errno.
#pragma once
#include <cstddef>

namespace lunar::preload {

// More than the dynamic linker wants under its locks: memory for thread-local variables of large libraries.
constexpr size_t kLinkerBytesMax = 64 << 10;

// alignment 0: malloc's default; otherwise a power of two.
void* allocate(size_t alignment, size_t bytes, bool zero);
void release(void* pointer);

}  // namespace lunar::preload
