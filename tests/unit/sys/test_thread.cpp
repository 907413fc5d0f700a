// SPDX-License-Identifier: Apache-2.0
// sys/thread: stacks and memory of threads, and whether SCHED_IDLE can be left again, for each kind
// of caller.
#include "sys/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "sys/arena.h"
#include "sys/proc.h"
#include "tests/catch.h"
#include "tests/support/refused_calls.h"

namespace {

enum { kRight = 0, kPromisedTooMuch = 1, kPromisedTooLittle = 2, kNotPrepared = 3 };
template <class F>
int child_with(F&& prepare) {
  pid_t child = fork();
  if (child == 0) {
    if (!prepare()) _exit(kNotPrepared);
    bool told = lunar::sys::idle_policy_can_be_left();
    if (lunar::sys::set_idle_policy(true) != 0) _exit(kNotPrepared);
    bool left = lunar::sys::set_idle_policy(false) == 0;
    _exit(told == left ? kRight : told ? kPromisedTooMuch : kPromisedTooLittle);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

// error: the kernel's answer when a thread of thread_start() passes it the byte below its stack.
// The thread waits for `go`.
struct StackEnd {
  std::atomic<uint32_t> go{0};
  int error = 0;
};

void look_at_stack_end(void* argument) {
  auto* end = static_cast<StackEnd*>(argument);
  while (end->go.load() == 0) lunar::sys::yield_cpu();
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t bytes = 0;
  int pipe_fds[2];
  if (pthread_getattr_np(pthread_self(), &attributes) != 0 || pipe(pipe_fds) != 0) return;
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  end->error = write(pipe_fds[1], static_cast<char*>(lowest) - 1, 1) < 0 ? errno : 0;
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

}  // namespace

TEST_CASE("a sleep lasts where a filter refuses the calls that sleep") {
  constexpr uint64_t kSleepNs = 20'000'000;
  const pid_t child = fork();
  if (child == 0) {
    if (!refuse_calls({SYS_nanosleep, SYS_clock_nanosleep})) _exit(77);
    const uint64_t before = lunar::sys::now_ns();
    lunar::sys::sleep_ns(kSleepNs);
    _exit(lunar::sys::now_ns() - before >= kSleepNs ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    LUNAR_SKIP("seccomp", "there are no filters here");
  CHECK(status == 0);
}

TEST_CASE("threads that end, or cannot be started, leave no memory behind") {
  lunar::sys::ThreadSpec spec;
  spec.run = [](void*) {};
  spec.program_files = true;
  pthread_t thread;
  REQUIRE(lunar::sys::thread_start(spec, &thread) == 0);
  lunar::sys::thread_end(thread);
  const size_t before = lunar::arena_bytes();
  for (int i = 0; i < 5000; ++i) {
    REQUIRE(lunar::sys::thread_start(spec, &thread) == 0);
    lunar::sys::thread_end(thread);
  }
  CHECK(lunar::arena_bytes() == before);
  CHECK(child_with([spec, before] {
          rlimit limit{};
          if (setrlimit(RLIMIT_NPROC, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0))
            return false;
          pthread_t none;
          int refused = 0;
          for (int i = 0; i < 2; ++i) refused += lunar::sys::thread_start(spec, &none) < 0;
          _exit(refused == 2 && lunar::arena_bytes() == before ? kRight : kPromisedTooMuch);
          return true;
        }) == kRight);
}

// A forked child starts its service threads while the program may already replace it.
TEST_CASE("a thread starts beside one that is in exec, or ends with it") {
  for (int i = 0; i < 600; ++i) {
    CHECK(child_with([] {
            lunar::sys::ThreadSpec spec;
            spec.run = [](void*) {
              lunar::sys::ThreadSpec other;
              other.run = [](void*) {};
              other.program_files = true;
              for (pthread_t thread;;) {
                if (lunar::sys::thread_start_beside_exec(other, &thread) < 0)
                  _exit(kPromisedTooMuch);
                lunar::sys::thread_end(thread);
              }
            };
            spec.program_files = true;
            pthread_t thread;
            if (lunar::sys::thread_start(spec, &thread) < 0) _exit(kPromisedTooMuch);
            execl("/bin/true", "true", nullptr);
            _exit(kPromisedTooMuch);
            return true;
          }) == kRight);
  }
}

TEST_CASE("a stack overflow of a thread meets a page without rights") {
  StackEnd end;
  lunar::sys::ThreadSpec spec;
  spec.run = look_at_stack_end;
  spec.argument = &end;
  spec.program_files = true;
  spec.more_stack_bytes = 1 << 20;
  pthread_t thread;
  REQUIRE(lunar::sys::thread_start(spec, &thread) == 0);
  end.go.store(1);
  lunar::sys::thread_end(thread);
  CHECK(end.error == EFAULT);
}

TEST_CASE("leaving SCHED_IDLE is promised only to those who may") {
  CHECK(child_with([] { return true; }) == kRight);
  if (geteuid() != 0) LUNAR_SKIP("root", "it takes root to become another user");
  CHECK(child_with([] { return setuid(65534) == 0; }) == kRight);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NICE, &before) == 0);
  const rlimit raised{before.rlim_cur, 20};
  if (setrlimit(RLIMIT_NICE, &raised) != 0)
    LUNAR_SKIP("sys-resource", "the limit of priorities cannot be raised here");
  REQUIRE(setrlimit(RLIMIT_NICE, &before) == 0);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setuid(65534) == 0;
        }) == kRight);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setpriority(PRIO_PROCESS, 0, 5) == 0 &&
                 setuid(65534) == 0;
        }) == kRight);
  CHECK(child_with([] {
          rlimit limit{20, 20};
          return setrlimit(RLIMIT_NICE, &limit) == 0 && setpriority(PRIO_PROCESS, 0, -3) == 0 &&
                 setuid(65534) == 0;
        }) == kRight);
}

TEST_CASE("descriptors of drivers that pin buffers are told by their names") {
  char directory[] = "/tmp/lunar-fd-XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string link = std::string(directory) + "/64000";
  for (const char* node : {"/dev/sg0", "/dev/bsg/0:0:0:0", "/dev/nvme0", "/dev/ng0n1",
                           "/dev/video0", "/dev/infiniband/uverbs0"}) {
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
