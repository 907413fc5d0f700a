// SPDX-License-Identifier: Apache-2.0
// For programs with their own malloc (statically linked jemalloc or tcmalloc, or a library
// preloaded before this one). Their malloc calls our mmap with its locks held, and that call may
// activate the pager, or be inside a fork. Allocations of the dynamic linker for a new thread, and
// of libc and libblkid for the runtime, would then wait for those locks. So these three allocate
// from the early heap in that case: the words by which they call malloc are replaced. In all other
// cases they, and all other code, use the program's malloc.
//
// Threading: at start, with one thread.
#pragma once

#include "base/error.h"

namespace lunar::preload {

// Does nothing if the program uses our malloc. -errno: the words cannot be found or changed; *why
// says which.
[[nodiscard]] int program_malloc_prepare(ErrorText* why);
// Whether the program has a malloc of its own. False before the call above.
bool program_has_malloc();
// Does the same for libblkid, which is loaded when the tier is made.
[[nodiscard]] int program_malloc_prepare_blkid(ErrorText* why);

}  // namespace lunar::preload
