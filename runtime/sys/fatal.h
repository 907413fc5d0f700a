// SPDX-License-Identifier: Apache-2.0
// Ends a process that cannot continue, and contains the checks that lead to it.
// Threading: any thread, also on the fault path and in a forked child; allocates nothing.
#pragma once
#include <cstdint>

namespace lunar {

// Whether `result` (-errno) means that the kernel refuses the system call as such, whatever its
// arguments (a seccomp filter, a security module): a retry does not help.
bool is_refusal(int64_t result);
// Ends the process if `result` is a refusal, without which call the pager cannot continue. Returns
// for any other result. `what`: the call.
void fatal_if_refused(int64_t result, const char* what);

// For a failure that means corruption, or after which the process cannot continue: writes `lunar:
// FATAL: <line>` to standard error in one write(2) and abort()s. Never fails open. Usable on the
// fault path and in a forked child.
[[noreturn]] void fatal(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Called by fatal() before it aborts (the pager prints page states here). At most one; nullptr
// removes it.
void set_fatal_hook(void (*hook)());

}  // namespace lunar

// Always-on check of a fact whose violation means corrupted state. Never use it on the result of a
// syscall or an I/O.
#define LUNAR_CHECK(condition, ...)                                                \
  do {                                                                             \
    if (__builtin_expect(!(condition), 0))                                         \
      ::lunar::fatal("check failed: " #condition " (" __FILE__ "): " __VA_ARGS__); \
  } while (0)

// Debug-build check (meson -Ddebug_checks=true), which static analysis also learns from.
#if defined(LUNAR_DEBUG_CHECKS) || defined(__clang_analyzer__)
#define LUNAR_DCHECK(condition) LUNAR_CHECK(condition, "debug check")
#else
#define LUNAR_DCHECK(condition) ((void)0)
#endif
