// SPDX-License-Identifier: Apache-2.0
// exec and its relatives. The kernel ends the service threads first, and then goes through the robust mutexes that the
// calling thread holds: one on an evicted page would make it wait for a page fault that no thread serves any more. So
// these mutexes are brought into DRAM before. (libc's own calls of these functions do not pass here: it spawns programs
// from a child that has no such list.)
//
// Threading: any thread, signal handlers and children of vfork included: allocates nothing.
#include <stdarg.h>
#include <unistd.h>

#include "preload.h"

namespace {

using Words = char* const*;

// The words of a call from `first` on, without the null pointer behind them.
size_t count_words(const char* first, va_list* rest) {
  size_t count = 0;
  for (const char* word = first; word != nullptr; word = va_arg(*rest, const char*)) ++count;
  return count;
}

void take_words(const char* first, va_list* rest, char** words) {
  *words = const_cast<char*>(first);
  while (*words != nullptr) *++words = va_arg(*rest, char*);
}

}  // namespace

using namespace lunar::preload;

LUNAR_EXPORT int execve(const char* path, Words words, Words environment) noexcept {
  threads_before_exec();
  return g_real.execve(path, words, environment);
}

LUNAR_EXPORT int execv(const char* path, Words words) noexcept { return execve(path, words, environ); }

LUNAR_EXPORT int execvpe(const char* file, Words words, Words environment) noexcept {
  threads_before_exec();
  return g_real.execvpe(file, words, environment);
}

LUNAR_EXPORT int execvp(const char* file, Words words) noexcept { return execvpe(file, words, environ); }

LUNAR_EXPORT int fexecve(int fd, Words words, Words environment) noexcept {
  threads_before_exec();
  return g_real.fexecve(fd, words, environment);
}

LUNAR_EXPORT int execveat(int fd, const char* path, Words words, Words environment, int flags) noexcept {
  threads_before_exec();
  return g_real.execveat(fd, path, words, environment, flags);
}

LUNAR_EXPORT int execl(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(__builtin_alloca((count_words(first, &rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  take_words(first, &rest, words);
  va_end(rest);
  return execve(path, words, environ);
}

LUNAR_EXPORT int execlp(const char* file, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(__builtin_alloca((count_words(first, &rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  take_words(first, &rest, words);
  va_end(rest);
  return execvpe(file, words, environ);
}

LUNAR_EXPORT int execle(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(__builtin_alloca((count_words(first, &rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  take_words(first, &rest, words);
  auto environment = va_arg(rest, Words);
  va_end(rest);
  return execve(path, words, environment);
}
