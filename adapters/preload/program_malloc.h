// SPDX-License-Identifier: Apache-2.0
// Programs that bring a malloc of their own (statically linked jemalloc or tcmalloc, or a library
// preloaded before this one). Their malloc calls our mmap with its locks held, and that call may
// activate the pager, or be inside a fork. What the dynamic linker allocates for a new thread, and
// what libc and libblkid allocate for the runtime, would then wait for those locks. So these three
// get it from the early heap: the words by which they call malloc are replaced. Otherwise they, and
// all else, use the program's malloc as before.
//
// Threading: both at start, with one thread.
#pragma once

#include "base/error.h"

namespace lunar::preload {

// Nothing where malloc is ours. -errno: the words cannot be found, or not be changed; *why says so.
[[nodiscard]] int program_malloc_prepare(ErrorText* why);
// Whether the program has a malloc of its own. False before the call above.
bool program_has_malloc();
// Once more, for libblkid, which is loaded when the tier is made.
[[nodiscard]] int program_malloc_prepare_blkid(ErrorText* why);

}  // namespace lunar::preload
