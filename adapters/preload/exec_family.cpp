// SPDX-License-Identifier: Apache-2.0
// exec, posix_spawn and their relatives.
//
// The kernel ends the service threads first, and then goes through the robust mutexes that the
// calling thread holds: a mutex on an evicted page would make it wait for a page fault that no
// thread serves any more. So these mutexes are brought into DRAM first. (posix_spawn calls exec in
// a child that has no such list.)
//
// A program that this library cannot serve (sys/program_file.h) runs without it: a musl program
// would end with an error for each symbol that its libc does not have. The library's name is
// removed from its LD_PRELOAD, and the log says so at `info`. Static programs ignore the name, and
// keep it for their own children; the loader removes it for privileged programs. This file does not
// see libc's own calls (system and popen start /bin/sh), nor system calls in the program's own
// code.
//
// Threading: any thread, signal handlers and children of vfork included: allocates nothing.
#include "exec_family.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/format.h"
#include "preload.h"
#include "real_calls.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/program_file.h"
#include "thread_family.h"

namespace lunar::preload {
namespace {

using Words = char* const*;
constexpr char kVariable[] = "LD_PRELOAD=", kLibrary[] = "liblunar-preload.so";
constexpr size_t kVariableLength = sizeof kVariable - 1, kLibraryLength = sizeof kLibrary - 1;
constexpr unsigned kInterpretersMax = 5;                 // the kernel's limit
constexpr int kLook = O_RDONLY | O_NONBLOCK | O_NOCTTY;  // does not block on a FIFO

bool is_own_library(const char* name, size_t length) {
  return length >= kLibraryLength &&
         memcmp(name + length - kLibraryLength, kLibrary, kLibraryLength) == 0;
}

// The LD_PRELOAD variable, if it names this library; else nullptr.
const char* preload_in(Words environment) {
  for (; environment != nullptr && *environment != nullptr; ++environment)
    if (strncmp(*environment, kVariable, kVariableLength) == 0)
      return strstr(*environment, kLibrary) != nullptr ? *environment : nullptr;
  return nullptr;
}

// Copies the variable without this library. False: no library is left.
bool copy_without_own(const char* variable, char* out) {
  memcpy(out, kVariable, sizeof kVariable);
  char* to = out + kVariableLength;
  for (const char* at = variable + kVariableLength; *at != '\0';) {
    const size_t length = strcspn(at, " :");
    if (length != 0 && !is_own_library(at, length)) {
      if (to != out + kVariableLength) *to++ = ':';
      memcpy(to, at, length);
      to += length;
    }
    at += length + (at[length] != '\0');
  }
  *to = '\0';
  return to != out + kVariableLength;
}

// Follows #! lines to the program that runs in the end. path: "" if there is only a descriptor.
// False: the library must be removed from its environment.
bool may_preload(int fd, const char* path) {
  sys::ProgramFile file;
  sys::program_look(fd, &file);
  char name[sizeof file.detail];
  for (unsigned depth = 0; file.kind == sys::ProgramKind::kScript && depth < kInterpretersMax;
       ++depth) {
    const char* first = file.detail + 2 + strspn(file.detail + 2, " \t");
    format_to(name, sizeof name, "%.*s", static_cast<int>(strcspn(first, " \t")), first);
    path = name;
    const int interpreter = sys::open_file(name, kLook);
    if (interpreter < 0) return true;
    sys::program_look(interpreter, &file);
    sys::close_file(interpreter);
  }
  const char* why = sys::program_unserved(file);
  if (why == nullptr) return true;
  if (*path == '\0') path = sys::descriptor_path(fd, name, sizeof name) > 0 ? name : "a program";
  log_info("%s %s: it runs without Lunar", path, why);
  return file.kind == sys::ProgramKind::kStatic || file.kind == sys::ProgramKind::kPrivileged;
}

// Opens the file that execvp would execute; -1: there is none.
int open_in_path(const char* file) {
  if (strchr(file, '/') != nullptr || *file == '\0') return sys::open_file(file, kLook);
  const char* directories = getenv("PATH");
  for (const char* at = directories != nullptr ? directories : "/bin:/usr/bin";;) {
    const size_t length = strcspn(at, ":");
    char path[PATH_MAX];
    struct stat status;
    if (length + strlen(file) + 2 < sizeof path) {
      format_to(path, sizeof path, "%.*s%s%s", static_cast<int>(length), at, length != 0 ? "/" : "",
                file);
      const int fd = sys::open_file(path, kLook);
      if (fd >= 0 && sys::file_status(fd, &status) == 0 && S_ISREG(status.st_mode) &&
          (status.st_mode & 0111) != 0)
        return fd;
      if (fd >= 0) sys::close_file(fd);
    }
    if (at[length] == '\0') return -1;
    at += length + 1;
  }
}

// Calls `call` with the environment that suits the program which `opened` opens.
template <class Open, class Call>
auto with_environment(const char* path, Words environment, Open opened, Call call) {
  const char* preload = ready() ? preload_in(environment) : nullptr;
  if (preload == nullptr) return call(environment);
  const int saved = errno, fd = opened();
  const bool keep = fd < 0 || may_preload(fd, path);
  if (fd >= 0) sys::close_file(fd);
  errno = saved;
  if (keep) return call(environment);
  size_t count = 0;
  while (environment[count] != nullptr) ++count;
  auto* changed = static_cast<char*>(__builtin_alloca(strlen(preload) + 1));
  auto** words = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*)));
  const bool left = copy_without_own(preload, changed);
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (environment[i] != preload)
      words[kept++] = environment[i];
    else if (left)
      words[kept++] = changed;
  }
  words[kept] = nullptr;
  return call(words);
}

int execute(const char* path, Words words, Words environment) {
  return with_environment(
      path, environment, [=] { return sys::open_file(path, kLook); },
      [=](Words changed) {
        return with_mutexes_kept([=] { return g_real.execve(path, words, changed); });
      });
}

int execute_in_path(const char* file, Words words, Words environment) {
  return with_environment(
      file, environment, [=] { return open_in_path(file); },
      [=](Words changed) {
        return with_mutexes_kept([=] { return g_real.execvpe(file, words, changed); });
      });
}

// Opens the file of fexecve or execveat. An empty path means the descriptor (AT_EMPTY_PATH).
int open_of(int directory, const char* path) {
  if (path != nullptr && *path != '\0') return sys::open_at(directory, path, kLook | O_CLOEXEC, 0);
  char of_descriptor[32];
  format_to(of_descriptor, sizeof of_descriptor, "/proc/self/fd/%d", directory);
  return sys::open_file(of_descriptor, kLook);
}

template <class Call>
auto execute_of(int directory, const char* path, Words environment, Call call) {
  return with_environment(
      path != nullptr ? path : "", environment, [=] { return open_of(directory, path); },
      [=](Words changed) { return with_mutexes_kept([=] { return call(changed); }); });
}

// Calls `call` with the words of a variadic call as an array, from `first` to the null pointer.
// Then `rest` is at the argument after that.
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

using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                      const posix_spawnattr_t*, Words, Words);
// One of libc's functions that spawn, and how it finds the program.
struct Spawner {
  const char* name;
  int (*open)(const char* path);
  Spawn real = nullptr;
};

int open_path(const char* path) { return sys::open_file(path, kLook); }

constinit Spawner g_spawn{"posix_spawn", open_path}, g_spawn_in_path{"posix_spawnp", open_in_path};
// glibc has these from 2.39 on.
constinit Spawner g_pidfd_spawn{"pidfd_spawn", open_path},
    g_pidfd_spawn_in_path{"pidfd_spawnp", open_in_path};

// Spawns with the environment that suits the program. `call` calls libc's function with that.
template <class Call>
int spawn(Spawner& by, const char* path, Words environment, Call call) {
  look_up(by.real, by.name);
  if (by.real == nullptr) return ENOSYS;
  return with_environment(path, environment, [&] { return by.open(path); }, call);
}

}  // namespace

long exec_by_call(long number, const long (&a)[6]) {
  const bool at = number == SYS_execveat;
  const auto path = reinterpret_cast<const char*>(a[at ? 1 : 0]);
  const auto environment = reinterpret_cast<Words>(a[at ? 3 : 2]);
  return execute_of(at ? static_cast<int>(a[0]) : AT_FDCWD, path, environment, [&](Words changed) {
    long words[6] = {a[0], a[1], a[2], a[3], a[4], a[5]};
    words[at ? 3 : 2] = reinterpret_cast<long>(changed);
    return sys::kernel_call_errno(number, words);
  });
}

}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT int execve(const char* path, Words words, Words environment) noexcept {
  return execute(path, words, environment);
}

LUNAR_EXPORT int execv(const char* path, Words words) noexcept {
  return execute(path, words, environ);
}

LUNAR_EXPORT int execvpe(const char* file, Words words, Words environment) noexcept {
  return execute_in_path(file, words, environment);
}

LUNAR_EXPORT int execvp(const char* file, Words words) noexcept {
  return execute_in_path(file, words, environ);
}

LUNAR_EXPORT int fexecve(int fd, Words words, Words environment) noexcept {
  return execute_of(fd, "", environment,
                    [=](Words changed) { return g_real.fexecve(fd, words, changed); });
}

LUNAR_EXPORT int execveat(int fd, const char* path, Words words, Words environment,
                          int flags) noexcept {
  return execute_of(fd, path, environment, [=](Words changed) {
    return g_real.execveat(fd, path, words, changed, flags);
  });
}

LUNAR_EXPORT int execl(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc =
      with_words(first, &rest, [&](Words words) { return execute(path, words, environ); });
  va_end(rest);
  return rc;
}

LUNAR_EXPORT int execlp(const char* file, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc =
      with_words(first, &rest, [&](Words words) { return execute_in_path(file, words, environ); });
  va_end(rest);
  return rc;
}

LUNAR_EXPORT int execle(const char* path, const char* first, ...) noexcept {
  va_list rest;
  va_start(rest, first);
  const int rc = with_words(first, &rest,
                            [&](Words words) { return execute(path, words, va_arg(rest, Words)); });
  va_end(rest);
  return rc;
}

LUNAR_EXPORT int posix_spawn(pid_t* pid, const char* path,
                             const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attributes, Words words,
                             Words environment) noexcept {
  return spawn(g_spawn, path, environment, [&](Words changed) {
    return g_spawn.real(pid, path, actions, attributes, words, changed);
  });
}

LUNAR_EXPORT int posix_spawnp(pid_t* pid, const char* file,
                              const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, Words words,
                              Words environment) noexcept {
  return spawn(g_spawn_in_path, file, environment, [&](Words changed) {
    return g_spawn_in_path.real(pid, file, actions, attributes, words, changed);
  });
}

LUNAR_EXPORT int pidfd_spawn(int* fd, const char* path, const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attributes, Words words,
                             Words environment) noexcept {
  return spawn(g_pidfd_spawn, path, environment, [&](Words changed) {
    return g_pidfd_spawn.real(fd, path, actions, attributes, words, changed);
  });
}

LUNAR_EXPORT int pidfd_spawnp(int* fd, const char* file, const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, Words words,
                              Words environment) noexcept {
  return spawn(g_pidfd_spawn_in_path, file, environment, [&](Words changed) {
    return g_pidfd_spawn_in_path.real(fd, file, actions, attributes, words, changed);
  });
}
