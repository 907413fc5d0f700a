// SPDX-License-Identifier: Apache-2.0
// What the server exports; and variables of it that have no symbol, found by what is known to point
// at them:
//   - a field of `server` that is one of its settings: through the program's table of settings, by
//     the name, and close after it a pointer into `server`. There must be exactly one such entry
//   - a static variable: by the shape of what it points to
//
// Threading: the server's main thread. Allocates nothing. Candidates are read by a system call that
// fails on a wild pointer.
#pragma once
#include <errno.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar::redis {

// nullptr: it exports no such symbol.
void* server_export(const char* name);
// Into *out, of whatever type. False: likewise.
template <class T>
[[nodiscard]] bool find_export(const char* name, T* out) {
  *out = reinterpret_cast<T>(server_export(name));
  return *out != nullptr;
}
template <class T>
[[nodiscard]] bool find_export(const char* name, T* out, ErrorText* why) {
  if (find_export(name, out)) return true;
  return why->set(-ENOENT, "the server does not export %s", name) == 0;
}

// The field that holds setting `name`; nullptr: not found, or more than one.
void* server_setting(const char* name);

// Calls fits(pointer) for each word of the program's variables that may be a pointer to memory
// outside of them. Returns the address of the one word for which it was true; nullptr: none, or
// more than one.
void** program_pointer(bool (*fits)(const void* pointer));

}  // namespace lunar::redis
