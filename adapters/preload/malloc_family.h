// SPDX-License-Identifier: Apache-2.0
// This pair of functions serves all allocation calls of the program: malloc's family, and operator
// new and delete. Threading: any thread. errno: ENOMEM if nullptr is returned; release does not
// change errno.
#pragma once
#include <cstddef>

namespace lunar::preload {

// The dynamic linker requests less than this under its locks (for thread-local variables of large
// libraries).
constexpr size_t kLinkerBytesMax = 64 << 10;

// alignment 0: malloc's default; otherwise a power of two.
void* allocate(size_t alignment, size_t bytes, bool zero);
void release(void* pointer);

}  // namespace lunar::preload
