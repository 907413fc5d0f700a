// SPDX-License-Identifier: Apache-2.0
// jemalloc's extended calls (jemalloc_family.cpp).
#pragma once

namespace lunar::preload {

// Finds jemalloc's own in its library, for these calls and for the heap: the program may have functions of the same
// names (jemalloc linked into it). Before the first of these calls, with one thread. An address inside the library.
const void* jemalloc_prepare();

}  // namespace lunar::preload
