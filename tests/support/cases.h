// SPDX-License-Identifier: Apache-2.0
// Tests that each run in a process of their own. The macros have Catch2's names, but Catch2 is not
// used: it allocates, handles signals, and allows assertions in one thread only, while these tests
// replace malloc, fork, and run under seccomp filters and the preload library.
//
//   TEST_CASE("name") { REQUIRE(n == 3, "%d of 3", n); }    `PROGRAM name [OPTIONS]`; the name may
//                                                           be left out if there is one case.
//                                                           Link cases_dep, which has main().
// A failed check ends the process with code 1 and a line that names its place, in any thread and
// any child. A program with its own main() uses the checks alone. Threading: any. May not:
// allocate.
#pragma once
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace lunar_test {

inline void (*g_at_failure)() = nullptr;  // called before the end; may print more

[[noreturn, gnu::cold, gnu::format(printf, 4, 5)]] inline void failed(const char* file, int line,
                                                                      const char* what,
                                                                      const char* format, ...) {
  const int error = errno;
  fprintf(stderr, "%s:%d: check failed: %s (errno %d, %s) ", file, line, what, error,
          strerror(error));
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputs("\n", stderr);
  if (g_at_failure != nullptr) g_at_failure();
  _exit(1);
}

template <class Text>
const char* c_text(const Text& text) {
  if constexpr (requires { text.c_str(); })
    return text.c_str();
  else
    return text;
}

// `capability`: a word that tests/support/watch.py knows (EXPECTED).
[[noreturn, gnu::cold]] inline void skip(const char* capability, const char* reason) {
  printf("skip: %s: %s\n", capability, reason);
  fflush(stdout);
  _exit(77);
}

}  // namespace lunar_test

#define REQUIRE(condition, ...)                                                            \
  do {                                                                                     \
    if (!(condition)) lunar_test::failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__); \
  } while (0)
// A std::string or a const char*.
#define FAIL(text) lunar_test::failed(__FILE__, __LINE__, "reached", "%s", lunar_test::c_text(text))
#define SKIP(capability, reason) lunar_test::skip(capability, reason)

// ---- cases ----

namespace lunar_test {

struct Case {
  const char* name;
  void (*body)();
  const char* tags;  // for a main() that chooses by them
  Case* next;
  Case(void (*b)(), const char* n, const char* t = "");
};
inline Case* g_cases = nullptr;
inline Case::Case(void (*b)(), const char* n, const char* t)
    : name(n), body(b), tags(t), next(g_cases) {
  g_cases = this;
}

inline int g_argc = 0;
inline char** g_argv = nullptr;

// The argument behind NAME.
inline const char* text_option(const char* name, const char* otherwise = nullptr) {
  for (int i = 1; i + 1 < g_argc; ++i)
    if (strcmp(g_argv[i], name) == 0) return g_argv[i + 1];
  return otherwise;
}
inline unsigned long option(const char* name, unsigned long otherwise) {
  const char* text = text_option(name);
  return text != nullptr ? strtoul(text, nullptr, 0) : otherwise;
}
inline bool has_option(const char* name) {
  for (int i = 1; i < g_argc; ++i)
    if (strcmp(g_argv[i], name) == 0) return true;
  return false;
}

}  // namespace lunar_test

#define LUNAR_JOINED_(a, b) a##b
#define LUNAR_JOINED(a, b) LUNAR_JOINED_(a, b)
// A name, and optional tags.
#define TEST_CASE(...)                                                                       \
  static void LUNAR_JOINED(case_, __LINE__)();                                               \
  static lunar_test::Case LUNAR_JOINED(registered_, __LINE__)(LUNAR_JOINED(case_, __LINE__), \
                                                              __VA_ARGS__);                  \
  static void LUNAR_JOINED(case_, __LINE__)()
