// SPDX-License-Identifier: Apache-2.0
// Finds symbols that the server exports, and variables without a symbol by the pointers to them:
//   - a field of `server` that is one of its settings: the program's table of settings has its
//     name, and close after that a pointer into `server`. There must be exactly one such entry
//   - a static variable: by the shape of the memory that it points to
//
// Threading: the server's main thread. Allocates nothing. Candidates are read by a system call that
// fails on a wild pointer.
#pragma once
#include <errno.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar::redis {

// The address of an exported symbol; nullptr: there is none.
void* server_export(const char* name);
// The same into *out, of any type. False: there is none.
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

// Calls fits(pointer) for each word of the program's variables that may point to memory outside of
// the program. Returns the address of the only word for which it was true; nullptr: there is none,
// or more than one.
void** program_pointer(bool (*fits)(const void* pointer));

}  // namespace lunar::redis
