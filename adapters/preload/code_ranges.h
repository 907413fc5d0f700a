// SPDX-License-Identifier: Apache-2.0
// Tells by its address who makes a call: the dynamic linker, jemalloc, this library, or others.
// Threading: any thread. Before code_ranges_prepare, no address is in any of them.
#pragma once
#include <cstdint>

namespace lunar::preload {

struct CodeRange {
  uintptr_t begin = 0, end = 0;
  bool holds(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - begin < end - begin;
  }
};
extern constinit CodeRange g_linker_code;

// At start, with one thread. in_allocator: an address inside jemalloc.
void code_ranges_prepare(const void* in_allocator);

inline bool linker_holds(const void* address) { return g_linker_code.holds(address); }
// Whether the address is in jemalloc or this library: their maps hold their own data, and stay
// plain.
bool is_runtime_code(const void* address);
bool is_own_code(const void* address);  // in this library

}  // namespace lunar::preload
