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

namespace lunar::preload {
namespace {

using Words = char* const*;

// Calls `call` with the words of a variadic call, from `first` to the null pointer, as an array. `rest` is behind that.
template <class Call>
int with_words(const char* first, va_list* rest, Call call) {
  va_list again;
  va_copy(again, *rest);
  size_t count = 0;
  for (const char* word = first; word != nullptr; word = va_arg(again, const char*)) ++count;
  va_end(again);
  auto** words = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*)));
  words[0] = const_cast<char*>(first);
  for (size_t i = 0; i < count; ++i) words[i + 1] = va_arg(*rest, char*);
  return call(words);
}

}  // namespace
}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT int execve(const char* path, Words words, Words environment) noexcept {
  return with_mutexes_kept([=] { return g_real.execve(path, words, environment); });
}

LUNAR_EXPORT int execv(const char* path, Words words) noexcept { return execve(path, words, environ); }

LUNAR_EXPORT int execvpe(const char* file, Words words, Words environment) noexcept {
  return with_mutexes_kept([=] { return g_real.execvpe(file, words, environment); });
}

LUNAR_EXPORT int execvp(const char* file, Words words) noexcept { return execvpe(file, words, environ); }

LUNAR_EXPORT int fexecve(int fd, Words words, Words environment) noexcept {
  return with_mutexes_kept([=] { return g_real.fexecve(fd, words, environment); });
}

LUNAR_EXPORT int execveat(int fd, const char* path, Words words, Words environment, int flags) noexcept {
  return with_mutexes_kept([=] { return g_real.execveat(fd, path, words, environment, flags); });
}

LUNAR_EXPORT int execl(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc = with_words(first, &rest, [&](Words words) { return execve(path, words, environ); });
  va_end(rest);
  return rc;
}

LUNAR_EXPORT int execlp(const char* file, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc = with_words(first, &rest, [&](Words words) { return execvpe(file, words, environ); });
  va_end(rest);
  return rc;
}

LUNAR_EXPORT int execle(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc = with_words(first, &rest, [&](Words words) { return execve(path, words, va_arg(rest, Words)); });
  va_end(rest);
  return rc;
}
