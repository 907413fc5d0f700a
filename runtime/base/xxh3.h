// SPDX-License-Identifier: Apache-2.0
// XXH3 of xxhash, compiled into the file that includes this. Include it nowhere else: by default
// xxhash reads memory as integers that may not alias (XXH_FORCE_MEMORY_ACCESS 1), and GCC 14 then
// hashes what a struct held before its last stores.
#pragma once
#define XXH_INLINE_ALL
#define XXH_FORCE_MEMORY_ACCESS 0
#include <xxhash.h>
