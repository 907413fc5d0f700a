// SPDX-License-Identifier: Apache-2.0
// For programs that run under the preload library. Each has cases by name, and its main() is
//   return run_cases(argc, argv, {"LUNAR_DRAM=32m", ...}, {{"name", body}, ...});
// `PROGRAM LIBRARY CASE` starts itself again with LD_PRELOAD=LIBRARY and the settings, and runs the
// case's body there. A body returns nothing, or the exit code. A process that ends by 125 could not
// start the tier: the test is skipped, naming userfaultfd.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/meanwhile.h"

using lunar_test::Meanwhile;

extern "C" int lunar_is_tiered(const void*) noexcept __attribute__((weak));

inline constexpr size_t kMiB = 1 << 20, kGiB = size_t{1} << 30;
inline constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS, kRw = PROT_READ | PROT_WRITE;
inline const auto g_page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// ---- memory ----

inline bool tiered(const void* address) {
  return lunar_is_tiered != nullptr && lunar_is_tiered(address) == 1;
}

// nullptr: refused.
inline char* map_if_possible(size_t bytes, int protection = kRw, int flags = kPrivate) {
  void* p = mmap(nullptr, bytes, protection, flags, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

// Private memory, whatever it becomes.
inline char* map_any(size_t bytes, int protection = kRw, int flags = kPrivate) {
  char* p = map_if_possible(bytes, protection, flags);
  REQUIRE(p != nullptr);
  return p;
}

inline char* map_tiered(size_t bytes, int protection = kRw, int flags = kPrivate) {
  char* p = map_any(bytes, protection, flags);
  REQUIRE(tiered(p));
  return p;
}

// The word a test expects at `index` of a shadowed block.
inline unsigned long stamp(unsigned long seed, unsigned long index) {
  unsigned long x = seed * 0x9E3779B97F4A7C15ul + index * 0xBF58476D1CE4E5B9ul + 1;
  return x ^ (x >> 29);
}

inline void fill(void* memory, size_t bytes, unsigned long seed) {
  auto* words = static_cast<unsigned long*>(memory);
  for (size_t i = 0; i < bytes / sizeof(long); ++i) words[i] = stamp(seed, i);
}

inline bool holds(const void* memory, size_t bytes, unsigned long seed, size_t first = 0) {
  auto* words = static_cast<const unsigned long*>(memory);
  for (size_t i = 0; i < bytes / sizeof(long); ++i)
    if (words[i] != stamp(seed, first + i)) return false;
  return true;
}

inline bool all_zero(const void* memory, size_t bytes) {
  auto* p = static_cast<const unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i)
    if (p[i] != 0) return false;
  return true;
}

inline size_t present_pages(char* p, size_t bytes) {
  std::vector<unsigned char> present(bytes / g_page);
  REQUIRE(mincore(p, bytes, present.data()) == 0);
  size_t pages = 0;
  for (const unsigned char one : present) pages += one & 1;
  return pages;
}

// ---- processes ----

inline int status_of(pid_t child) {
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  return status;
}

inline bool ends_well(pid_t child) { return child > 0 && status_of(child) == 0; }

// Whether the condition holds in a forked child.
template <class Condition>
bool in_child(Condition condition) {
  const pid_t child = fork();
  if (child == 0) _exit(condition() ? 0 : 1);
  return ends_well(child);
}

// Then a child that has given root up cannot see what is swapped out (runtime/LIMITS.md).
inline bool host_has_swap() {
  struct sysinfo host;
  return sysinfo(&host) == 0 && host.totalswap != 0;
}

// ---- this program again, under the library ----

// of the environment: "NAME=value"; of two, the later one counts
using Settings = std::vector<const char*>;

inline bool inside() { return getenv("PRELOAD_TEST_INSIDE") != nullptr; }

[[noreturn]] inline void become_preloaded(char** argv, const Settings& settings) {
  setenv("LD_PRELOAD", argv[1], 1);
  setenv("PRELOAD_TEST_INSIDE", "1", 1);
  for (const char* setting : settings) putenv(const_cast<char*>(setting));
  execv("/proc/self/exe", argv);
  _exit(126);
}

inline int code_of(int status) {
  if (WIFSIGNALED(status)) {
    fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
    return 1;
  }
  if (WEXITSTATUS(status) == 125)
    SKIP("userfaultfd", "the tier cannot start here (see standard error)");
  return WEXITSTATUS(status);
}

// The exit code of a run of its own.
inline int run_preloaded(char** argv, const Settings& settings) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) become_preloaded(argv, settings);
  return code_of(status_of(child));
}

enum class Errors { kPipe, kSocket };  // what standard error is

struct Ended {
  int status;
  std::string errors;  // also passed on
};

// A run with what it writes to standard error until it has ended, though others may still hold
// that.
inline Ended run_and_listen(char** argv, const Settings& settings, Errors kind = Errors::kPipe) {
  Ended ended{};
  int ends[2];
  REQUIRE((kind == Errors::kSocket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)
                                   : pipe2(ends, O_CLOEXEC)) == 0);
  fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], 2);
    become_preloaded(argv, settings);
  }
  close(ends[1]);
  const auto take = [&] {
    char part[4096];
    const ssize_t n = read(ends[0], part, sizeof part);
    if (n > 0) ended.errors.append(part, static_cast<size_t>(n));
    if (n > 0) (void)!write(2, part, static_cast<size_t>(n));
    return n > 0;
  };
  for (bool over = false; !over; over = waitpid(child, &ended.status, WNOHANG) == child) {
    pollfd one{ends[0], POLLIN, 0};
    if (poll(&one, 1, 50) > 0 && !take()) usleep(50000);
  }
  for (pollfd one{ends[0], POLLIN, 0}; poll(&one, 1, 0) > 0 && take();) {}
  close(ends[0]);
  return ended;
}

// ---- cases ----

class Body {
 public:
  template <class Function>
  Body(Function function)  // implicit, so that a table takes functions and lambdas
      : run_([function] {
          if constexpr (std::is_void_v<decltype(function())>)
            return function(), 0;
          else
            return function();
        }) {}
  int operator()() const { return run_(); }

 private:
  std::function<int()> run_;
};

// kAbort: no thread is left to write a line. kRefused: at the start, by code 125.
enum class Ends { kWell, kFatal, kAbort, kRefused };

struct Case {
  const char* name;
  Body body;
  Settings settings = {};      // after those of the program
  const char* says = nullptr;  // part of what standard error must hold
  Ends ends = Ends::kWell;
  Errors errors = Errors::kPipe;
};

inline Case fatal(const char* name, Body body, const char* says) {
  return {name, std::move(body), {}, says, Ends::kFatal};
}

// the case's name began with "early-": the process is not active when its body starts
inline bool g_early = false;
inline std::string g_case;  // its name, without that

// Compares a run with its expected end, and prints the difference.
inline int judge(const Case& one, const Ended& ended) {
  const int status = ended.status;
  const bool exited = WIFEXITED(status);
  if (exited && WEXITSTATUS(status) == 125 && one.ends != Ends::kRefused) return code_of(status);
  if (exited && WEXITSTATUS(status) == 77) return 77;
  if (ended.errors.find("may not read /proc/self/pagemap (EACCES), and the host has swap") !=
      std::string::npos)
    SKIP("no-swap",
         "the host has swap, and nothing tells a child without /proc what is swapped out");
  const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  bool good = one.ends == Ends::kWell      ? status == 0
              : one.ends == Ends::kRefused ? exited && WEXITSTATUS(status) == 125
                                           : aborted;
  if (one.ends == Ends::kFatal)
    good = good && ended.errors.find("lunar: FATAL: ") != std::string::npos;
  if (one.says != nullptr) good = good && ended.errors.find(one.says) != std::string::npos;
  if (good) return 0;
  constexpr const char* kEnds[] = {"a good end", "a FATAL line and an abort", "an abort",
                                   "exit code 125"};
  fprintf(stderr, "%s: status 0x%x, expected %s, saying \"%s\"\n", one.name,
          static_cast<unsigned>(status), kEnds[static_cast<int>(one.ends)],
          one.says != nullptr ? one.says : "");
  return 1;
}

// Runs the case that argv[2] names; where there is one only, it needs no name. `early`: the
// settings (after the others) of a case with "early-" before its name.
inline int run_cases(int argc, char** argv, Settings settings, const std::vector<Case>& cases,
                     const Settings& early = {}) {
  g_case = argc > 2 && cases.size() > 1 ? argv[2] : cases[0].name;
  if (!early.empty() && g_case.starts_with("early-")) {
    g_early = true;
    g_case.erase(0, strlen("early-"));
  }
  for (const Case& one : cases) {
    if (g_case != one.name) continue;
    if (inside()) return one.body();
    if (argc < 2) break;
    settings.insert(settings.end(), one.settings.begin(), one.settings.end());
    if (g_early) settings.insert(settings.end(), early.begin(), early.end());
    if (one.says == nullptr && one.ends == Ends::kWell) return run_preloaded(argv, settings);
    return judge(one, run_and_listen(argv, settings, one.errors));
  }
  fprintf(stderr, "usage: %s LIBRARY CASE\n", argv[0]);
  return 2;
}
