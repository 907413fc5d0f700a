// SPDX-License-Identifier: Apache-2.0
// account_life: a member is alive as long as its memory exists. Then its charge is given back.
//
// A process whose first thread ends while others go on is alive at every moment of that thread's
// end, in this pid namespace or another one. The kernel first marks a thread's robust mutexes, then
// closes its descriptors, and at last makes it a zombie. The member's first thread has its own
// descriptor table with thousands of files, so that this takes long, and the test sweeps all the
// time.
//
// The memory of a killed process can be kept as long as the test needs: another process shares it
// (CLONE_VM).
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pager/account/account.h"
#include "tests/support/test_tier.h"

namespace {

using lunar::Account;

constexpr int64_t kCap = 100000, kHeld = 1234;
constexpr int kFiles = 20000;
constexpr int kRounds = 20;
constexpr int kLooks = 300;  // of a millisecond

int64_t taken(const Account& account) { return account.cap_pages() - account.free_pages(); }

void* go_on(void* told) {
  char byte;
  // until the test tells it to end
  (void)!read(static_cast<int>(reinterpret_cast<intptr_t>(told)), &byte, 1);
  _exit(0);
}

// The first thread ends, another one goes on.
[[noreturn]] void member_main(Account& account, int told, int said) {
  REQUIRE(account.join() == 0 && account.take_plain(kHeld, kCap), "the member cannot join");
  pthread_t other;
  REQUIRE(pthread_create(&other, nullptr, go_on, reinterpret_cast<void*>(intptr_t{told})) == 0);
  REQUIRE(unshare(CLONE_FILES) == 0);
  // as many as the limit allows
  for (int i = 0; i < kFiles && open("/dev/null", O_RDONLY) >= 0; ++i) {}
  REQUIRE(write(said, "g", 1) == 1);
  pthread_exit(nullptr);
}

bool first_thread_is_zombie(pid_t pid) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  REQUIRE(file != nullptr, "%s: %s", path, strerror(errno));
  REQUIRE(fgets(text, sizeof text, file) != nullptr, "%s is empty", path);
  fclose(file);
  const char* end = strrchr(text, ')');
  return end != nullptr && end[2] == 'Z';
}

void sweep_and_expect(Account& account, int64_t pages, const char* what) {
  uint32_t oldest;
  account.sweep(&oldest);
  REQUIRE(taken(account) == pages, "%s: %lld pages are taken, should be %lld", what,
          static_cast<long long>(taken(account)), static_cast<long long>(pages));
}

enum class Where { kHere, kOtherNamespace };

void first_thread_ends(Account& account, Where where) {
  int told[2], said[2];
  REQUIRE(pipe(told) == 0 && pipe(said) == 0);
  if (where == Where::kOtherNamespace && unshare(CLONE_NEWPID) != 0)
    SKIP("pid-namespace", "a pid namespace cannot be made");
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    close(told[1]);
    member_main(account, told[0], said[1]);
  }
  close(told[0]);
  close(said[1]);
  char byte;
  REQUIRE(read(said[0], &byte, 1) == 1, "the member said nothing");
  for (bool zombie = false, last = false; !last; zombie = first_thread_is_zombie(pid)) {
    last = zombie;  // once more after it
    sweep_and_expect(account, kHeld, "a process that lives");
  }
  for (int look = 0; where == Where::kOtherNamespace && look < kLooks; ++look, usleep(1000))
    sweep_and_expect(account, kHeld, "a process that lives in another namespace");
  close(told[1]);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid && status == 0, "the member ended with %d", status);
  sweep_and_expect(account, 0, "a dead process");
  close(said[0]);
}

int share_memory(void* told) {
  char byte;
  (void)!read(*static_cast<int*>(told), &byte, 1);
  return 0;
}

void killed_slowly(Account& account) {
  int told[2], said[2];
  REQUIRE(pipe(told) == 0 && pipe(said) == 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    close(told[1]);
    REQUIRE(account.join() == 0 && account.take_plain(kHeld, kCap), "the member cannot join");
    alignas(16) static char stack[64 << 10];
    REQUIRE(clone(share_memory, stack + sizeof stack, CLONE_VM | SIGCHLD, &told[0]) > 0);
    REQUIRE(write(said[1], "g", 1) == 1);
    for (;;) pause();
  }
  close(told[0]);
  char byte;
  REQUIRE(read(said[0], &byte, 1) == 1, "the member said nothing");
  REQUIRE(kill(pid, SIGKILL) == 0 && waitpid(pid, nullptr, 0) == pid);
  for (int look = 0; look < kLooks; ++look, usleep(1000))
    sweep_and_expect(account, kHeld, "a killed process whose memory is there");
  close(told[1]);
  REQUIRE(waitpid(-1, nullptr, 0) > 0);
  sweep_and_expect(account, 0, "a killed process whose memory is free");
  close(said[0]);
  close(said[1]);
}

}  // namespace

TEST_CASE("account-life") {
  rlimit files;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  Account account;
  REQUIRE(account.open(-1, kCap, int64_t{1} << 40) == 0 && account.join() == 0);
  account.lock_alive();
  killed_slowly(account);
  for (int i = 0; i < kRounds; ++i) first_thread_ends(account, Where::kHere);
  first_thread_ends(account, Where::kOtherNamespace);
}
