// SPDX-License-Identifier: Apache-2.0
// sys/thread: whether SCHED_IDLE can be left again is told right, for whoever asks.
#include "sys/thread.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/catch.hpp"

namespace {

// kRight also where this user may not even prepare it.
enum { kRight = 0, kPromisedTooMuch = 1, kPromisedTooLittle = 2 };
template <class F>
int child_with(F&& prepare) {
  pid_t child = fork();
  if (child == 0) {
    if (!prepare()) _exit(kRight);
    bool told = lunar::sys::idle_policy_can_be_left();
    if (lunar::sys::set_idle_policy(true) != 0) _exit(kRight);
    bool left = lunar::sys::set_idle_policy(false) == 0;
    _exit(told == left ? kRight : told ? kPromisedTooMuch : kPromisedTooLittle);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

TEST_CASE("leaving SCHED_IDLE is promised only to those who may") {
  CHECK(child_with([] { return true; }) == kRight);
  if (geteuid() != 0) return;
  CHECK(child_with([] { return setuid(65534) == 0; }) == kRight);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setuid(65534) == 0;
        }) == kRight);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setpriority(PRIO_PROCESS, 0, 5) == 0 && setuid(65534) == 0;
        }) == kRight);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setpriority(PRIO_PROCESS, 0, -3) == 0 && setuid(65534) == 0;
        }) == kRight);
}
