// SPDX-License-Identifier: Apache-2.0
// A process ends with its last thread, whichever that is, and runs its exit handlers: also with
// service threads that live on. Where that thread ends past libc (by the exit system call, or
// killed alone by seccomp), it ends as the kernel would have it: by how its first thread ended. One
// that closes the descriptors by which this is seen goes on.
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>

#include "preload_test.h"
#include "raw_call.h"
#include "tests/support/refused_calls.h"

namespace {

constexpr size_t kBytes = 64 << 20;  // four times the budget
char* g_map = nullptr;

// How a child that runs `body`, and is active as we are, has ended.
int status_after(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(holds(g_map, kBytes, 7));
    body();
    _exit(99);
  }
  return status_of(child);
}

void expect_code(int code, void (*body)()) {
  const int status = status_after(body);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == code, "%x, not code %d", status, code);
}

void expect_signal(int signal, void (*body)()) {
  const int status = status_after(body);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == signal, "%x, not by %d", status, signal);
}

void strict() { REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0); }

bool first_thread_has_ended() {
  char path[64], text[512] = {};
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
  close(fd);
  return strstr(text, ") Z ") != nullptr;
}

void* outlive_first(void*) {
  while (!first_thread_has_ended()) usleep(1000);
  for (int turn = 0; turn < 2; ++turn) REQUIRE(holds(g_map, kBytes, 7));
  raw(SYS_exit, 6);
  return nullptr;
}

// ---- by libc ----

void* wait_for_main(void* main_thread) {
  pthread_join(*static_cast<pthread_t*>(main_thread), nullptr);
  pthread_exit(nullptr);
}

void leave_main_first() {
  static pthread_t main_thread = pthread_self();
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, wait_for_main, &main_thread) == 0);
  pthread_exit(nullptr);
}

void leave_main_last() {
  pthread_t thread;
  const auto sleep_then_end = [](void*) -> void* { return usleep(50000), nullptr; };
  REQUIRE(pthread_create(&thread, nullptr, sleep_then_end, nullptr) == 0);
  pthread_detach(thread);
  usleep(100000);
  pthread_exit(nullptr);
}

void* fork_from_thread(void*) {
  const pid_t child = fork();
  if (child == 0) return nullptr;  // the only thread of the child
  _exit(status_of(child) == 42 << 8 ? 42 : 1);
}

void leave_in_forked_child() {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, fork_from_thread, nullptr) == 0);
  pause();
}

template <void (*kLeave)()>
void with_exit_handler() {
  atexit([] { _exit(42); });
  kLeave();
}

int body() {
  g_map = map_tiered(kBytes);
  fill(g_map, kBytes, 7);
  expect_code(42, with_exit_handler<leave_main_first>);
  expect_code(42, with_exit_handler<leave_main_last>);
  expect_code(42, with_exit_handler<leave_in_forked_child>);
  expect_code(7, [] { raw(SYS_exit, 7); });
  expect_code(3, [] {
    strict();
    raw(SYS_exit, 3);
  });
  expect_signal(SIGKILL, [] {
    strict();
    raw(SYS_getppid);
  });
  expect_signal(SIGSYS, [] {
    REQUIRE(refuse_calls({SYS_getppid}, false, SECCOMP_RET_KILL_THREAD));
    raw(SYS_getppid);
  });
  expect_code(5, [] {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, nullptr, outlive_first, nullptr) == 0);
    raw(SYS_exit, 5);
  });
  expect_code(9, [] {
    REQUIRE(raw(SYS_close_range, 3, ~0U, 0) == 0);
    usleep(1500000);  // longer than it is looked at for threads
    REQUIRE(holds(g_map, kBytes, 7));
    _exit(9);
  });
  raw(SYS_exit, 0);  // and the process that was activated itself
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}, {{"all", body}});
}
