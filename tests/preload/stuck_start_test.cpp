// SPDX-License-Identifier: Apache-2.0
// A program in which the pager's threads cannot begin: it replaces a function of libc that they call, by one that waits
// for a lock which the activating thread holds. It ends with a line.
//
//   stuck_start_test LIBRARY THREAD   the name of the thread that waits
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdarg>
#include <string>

#include "preload_test.h"

namespace {

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
const char* g_thread = nullptr;

int grow() {
  g_thread = getenv("STUCK_START_THREAD");
  CHECK(g_thread != nullptr && pthread_mutex_lock(&g_lock) == 0);
  constexpr size_t kBytes = 64 << 20;
  void* map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(map != MAP_FAILED);
  pthread_mutex_unlock(&g_lock);
  return 0;
}

}  // namespace

extern "C" int prctl(int option, ...) {
  va_list rest;
  va_start(rest, option);
  const auto argument = va_arg(rest, unsigned long);
  va_end(rest);
  constexpr int kSetName = 15;
  if (option == kSetName && g_thread != nullptr && strcmp(reinterpret_cast<const char*>(argument), g_thread) == 0) {
    pthread_mutex_lock(&g_lock);
    pthread_mutex_unlock(&g_lock);
  }
  return static_cast<int>(syscall(SYS_prctl, option, argument, 0, 0, 0));
}

int main(int argc, char** argv) {
  if (getenv("PRELOAD_TEST_INSIDE") != nullptr) return grow();
  CHECK(argc == 3 && setenv("STUCK_START_THREAD", argv[2], 1) == 0);
  FILE* said = tmpfile();
  CHECK(said != nullptr);
  fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(fileno(said), 2);
    setenv("LD_PRELOAD", argv[1], 1);
    setenv("PRELOAD_TEST_INSIDE", "1", 1);
    setenv("LUNAR_DRAM", "16m", 1);
    setenv("LUNAR_SIZE", "256m", 1);
    execv("/proc/self/exe", argv);
    _exit(126);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 125) {
    printf("skip: userfaultfd: the tier cannot start here (see standard error)\n");
    return 77;
  }
  CHECK(fseek(said, 0, SEEK_SET) == 0);
  std::string text(4096, '\0');
  text.resize(fread(text.data(), 1, text.size(), said));
  fprintf(stderr, "%s", text.c_str());
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  CHECK(text.find("FATAL") != std::string::npos && text.find("has not begun") != std::string::npos);
  return 0;
}
