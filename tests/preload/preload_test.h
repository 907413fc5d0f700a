// SPDX-License-Identifier: Apache-2.0
// For tests that run under the preload library: main() of each is
//   int main(int argc, char** argv) { return run_preloaded(argc, argv, {"LUNAR_DRAM=32m", ...}, body); }
// The program starts itself again with LD_PRELOAD (its first argument names the library) and the LUNAR_* given, and
// runs `body` there. A process that ends by 125 could not start the tier: the test is skipped, naming userfaultfd.
#pragma once
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

extern "C" int lunar_is_tiered(const void*) noexcept __attribute__((weak));

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      _exit(1);                                                                                 \
    }                                                                                           \
  } while (0)

inline bool tiered(const void* address) { return lunar_is_tiered != nullptr && lunar_is_tiered(address) == 1; }

// Then a child that has given root up cannot see what is swapped out (runtime/LIMITS.md).
inline bool host_has_swap() {
  struct sysinfo host;
  return sysinfo(&host) == 0 && host.totalswap != 0;
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

inline int run_preloaded(int argc, char** argv, std::initializer_list<const char*> settings, int (*body)()) {
  if (getenv("PRELOAD_TEST_INSIDE") != nullptr || argc < 2) return body();
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", argv[1], 1);
    setenv("PRELOAD_TEST_INSIDE", "1", 1);
    for (const char* setting : settings) putenv(const_cast<char*>(setting));
    execv("/proc/self/exe", argv);
    _exit(126);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  if (WIFSIGNALED(status)) {
    fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
    return 1;
  }
  if (WEXITSTATUS(status) == 125) {
    printf("skip: userfaultfd: the tier cannot start here (see standard error)\n");
    return 77;
  }
  return WEXITSTATUS(status);
}
