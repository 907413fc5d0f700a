// SPDX-License-Identifier: Apache-2.0
// A program in which the pager's threads cannot begin: it replaces a function of libc that they
// call, by one that waits for a lock which the activating thread holds. It ends with a line.
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cstdarg>
#include <string>

#include "preload_test.h"

namespace {

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
const char* g_thread = nullptr;

void grow() {
  g_thread = g_case.c_str();  // the name of the thread that waits
  REQUIRE(pthread_mutex_lock(&g_lock) == 0);
  constexpr size_t kBytes = 64 << 20;
  void* map = mmap(nullptr, kBytes, kRw, kPrivate, -1, 0);
  REQUIRE(map != MAP_FAILED);
  pthread_mutex_unlock(&g_lock);
}

}  // namespace

extern "C" int prctl(int option, ...) {
  va_list rest;
  va_start(rest, option);
  const auto argument = va_arg(rest, unsigned long);
  va_end(rest);
  constexpr int kSetName = 15;
  if (option == kSetName && g_thread != nullptr &&
      strcmp(reinterpret_cast<const char*>(argument), g_thread) == 0) {
    pthread_mutex_lock(&g_lock);
    pthread_mutex_unlock(&g_lock);
  }
  return static_cast<int>(syscall(SYS_prctl, option, argument, 0, 0, 0));
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* says = "has not begun";
  const std::vector<Case> cases{fatal("lunar-housekeep", grow, says),
                                fatal("lunar-fault0", grow, says)};
  const auto run = [&](const char* name) {
    char* words[] = {argv[0], argv[1], const_cast<char*>(name), nullptr};
    return run_cases(3, words, {"LUNAR_DRAM=16m", "LUNAR_SIZE=256m"}, cases);
  };
  if (inside()) return run(argv[2]);
  std::vector<pid_t> children;  // at the same time, as each takes the 20 s that the pager waits
  for (const Case& one : cases) {
    children.push_back(fork());
    if (children.back() == 0) exit(run(one.name));
  }
  int result = 0;
  for (const pid_t child : children)
    if (const int code = code_of(status_of(child)); result != 1 && code != 0) result = code;
  return result;
}
