// SPDX-License-Identifier: Apache-2.0
// The one pair of functions behind all allocation calls of the program: malloc's family and
// operator new/delete. Threading: any thread. errno: set to ENOMEM if nullptr is returned; release
// does not change errno.
#pragma once
#include <cstddef>

namespace lunar::preload {

// More than the dynamic linker requests under its locks, which is memory for thread-local variables
// of large libraries.
constexpr size_t kLinkerBytesMax = 64 << 10;

// alignment 0: malloc's default; otherwise a power of two.
void* allocate(size_t alignment, size_t bytes, bool zero);
void release(void* pointer);

}  // namespace lunar::preload
