// SPDX-License-Identifier: Apache-2.0
// Variables of the server that have no symbol, found by what is known to point at them:
//   - a field of `server` that is one of its settings: through the program's table of settings, by the name, and close
//     after it a pointer into `server`. There must be exactly one such entry
//   - a static variable: by the shape of what it points to
//
// Threading: the server's main thread. Allocates nothing. Candidates are read by a system call that fails on a wild
// pointer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::redis {

// The field that holds setting `name`; nullptr: not found, or more than one.
void* server_setting(const char* name);

// Calls fits(pointer) for each word of the program's variables that may be a pointer to memory outside of them. Returns
// the address of the one word for which it was true; nullptr: none, or more than one.
void** program_pointer(bool (*fits)(const void* pointer));

}  // namespace lunar::redis
