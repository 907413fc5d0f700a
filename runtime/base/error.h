// SPDX-License-Identifier: Apache-2.0
// Errors of the runtime.
//
// Convention: a function that can fail returns `int`: 0 (or a count >= 0) on success, -errno on failure, and is
// [[nodiscard]]. Nothing throws. What a *person* must be told travels in an ErrorText: one line that names what failed,
// where, and what to do about it.
//
// Threading: no shared state. May be used on the fault path: nothing here allocates.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>

namespace lunar {

// One line for a person. Filled by the function that fails; its reader prints it verbatim.
struct ErrorText {
  char text[512] = {};
  // Formats (see base/format.h, format_line_to) and returns `err`, so that a failing path is one statement:
  //   return why->set(-ENOTSUP, "...: %s; do this", name);
  // Truncates silently at the end of the buffer.
  int set(int err, const char* format, ...) __attribute__((format(printf, 3, 4)));
};

// Name of an errno value ("ENOMEM"); accepts positive or negative. Static storage.
const char* errno_name(int err);
// Short sentence for an errno value ("no space left on device"). Static storage; never allocates (strerror may).
const char* errno_text(int err);

// Whether a system call was refused as such (a seccomp filter, a security module), and not for what it was asked: waiting does not help.
bool is_refusal(int64_t result);
// Ends the process for a refusal that leaves the pager unable to go on; returns for any other result. `what`: the call.
void fatal_if_refused(int64_t result, const char* what);

// Corruption-class or cannot-go-on failure: writes `lunar: FATAL: <line>` to standard error in one write(2) and
// abort()s. Never fails open. Usable on the fault path and in a forked child.
[[noreturn]] void fatal(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Called by fatal() before it aborts (the pager prints page states here). At most one; nullptr removes it.
void set_fatal_hook(void (*hook)());

}  // namespace lunar

// Always-on check of a fact whose violation means corrupted state. Never use it on the result of a syscall or an I/O.
#define LUNAR_CHECK(condition, ...) \
  do {                              \
    if (__builtin_expect(!(condition), 0)) ::lunar::fatal("check failed: " #condition " (" __FILE__ "): " __VA_ARGS__); \
  } while (0)

// Debug-build check (meson -Ddebug_checks=true).
#ifdef LUNAR_DEBUG_CHECKS
#define LUNAR_DCHECK(condition) LUNAR_CHECK(condition, "debug check")
#else
#define LUNAR_DCHECK(condition) ((void)0)
#endif
