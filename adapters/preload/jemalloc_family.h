// SPDX-License-Identifier: Apache-2.0
// jemalloc's extended calls (jemalloc_family.cpp).
#pragma once

namespace lunar::preload {

// Finds jemalloc's functions in its library, for these calls and for the heap, because the program
// may have functions with the same names (jemalloc linked into it). Called before the first of
// these calls, with one thread. Returns an address inside the library.
const void* jemalloc_prepare();

}  // namespace lunar::preload
