// SPDX-License-Identifier: Apache-2.0
// Errors of the runtime.
//
// Convention: a function that can fail returns `int`: 0 (or a count >= 0) on success, -errno on
// failure, and is [[nodiscard]]. Nothing throws. An ErrorText carries the message for the user: one
// line that names what failed, where, and what to do about it.
//
// Threading: no shared state. May be used on the fault path: nothing here allocates.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>

namespace lunar {

// One line for the user. The function that fails fills it; the caller prints it verbatim.
struct ErrorText {
  char text[512] = {};
  // Formats (see base/format.h, format_line_to) and returns `err`, so that a failing path is one
  // statement:
  //   return why->set(-ENOTSUP, "...: %s; do this", name);
  // Truncates silently at the end of the buffer.
#ifdef __clang_analyzer__  // cannot see that a variadic function returns `err`
  template <class... Arguments>
  int set(int err, const char*, const Arguments&...) {
    return err;
  }
#else
  int set(int err, const char* format, ...) __attribute__((format(printf, 3, 4)));
#endif
};

// Name of an errno value ("ENOMEM"); accepts positive or negative. Static storage.
const char* errno_name(int err);
// Short sentence for an errno value ("no space left on device"). Static storage; never allocates
// (strerror may).
const char* errno_text(int err);

}  // namespace lunar
