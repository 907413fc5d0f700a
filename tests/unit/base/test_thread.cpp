// SPDX-License-Identifier: Apache-2.0
// sys/thread: reports rightly whether SCHED_IDLE can be left again, for every caller.
#include "sys/thread.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/proc.h"
#include "tests/catch.h"

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

TEST_CASE("descriptors of drivers that pin buffers are told by their names") {
  char directory[] = "/tmp/lunar-fd-XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string link = std::string(directory) + "/64000";
  for (const char* node :
       {"/dev/sg0", "/dev/bsg/0:0:0:0", "/dev/nvme0", "/dev/ng0n1", "/dev/video0", "/dev/infiniband/uverbs0"}) {
    REQUIRE(symlink(node, link.c_str()) == 0);
    int which = -1;
    CHECK(lunar::sys::descriptors_may_pin(directory, &which) == lunar::sys::Pinning::kYes);
    CHECK(which == 64000);
    unlink(link.c_str());
  }
  int which = -1;
  REQUIRE(symlink("/dev/null", link.c_str()) == 0);
  CHECK(lunar::sys::descriptors_may_pin(directory, &which) == lunar::sys::Pinning::kNo);
  unlink(link.c_str());
  rmdir(directory);
}
