// SPDX-License-Identifier: Apache-2.0
// account_reap: a process that reaps a dead member of the account is killed at one instruction
// after another. The next process that reaps must come to the same sums and links. The same for a
// process that takes and gives: nothing of it stays taken.
//
// Idea. A tree of three: the test, a child that dies with DRAM, LUN space and pieces of a device,
// and its child, which lives on. A fourth process sweeps under ptrace, makes N steps and is killed.
// Then the test sweeps. What the dead child had must have come back once, the pieces must belong to
// the grandchild, and the grandchild must belong to the test, at the fork epoch of the dead child.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pager/account/account.h"
#include "tests/support/test_tier.h"

namespace {

using lunar::Account;
using lunar::kCarvePieces;

constexpr int64_t kCap = 100000, kLunCap = int64_t{1} << 40;
constexpr uint32_t kChildEpoch = 5, kGrandchildEpoch = 9;
constexpr unsigned kPieces = 3;

template <class F>
pid_t fork_member(Account& account, uint32_t epoch, F body) {
  uint64_t ticket = 0;
  const int member = account.reserve_child(epoch, &ticket);
  REQUIRE(member >= 0, "reserve_child: %d", member);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid != 0) {
    account.fork_returned();
    return pid;
  }
  REQUIRE(account.adopt(static_cast<unsigned>(member), ticket) == 0);
  account.lock_alive();
  body();
  _exit(0);
}

void reap(pid_t pid) { REQUIRE(waitpid(pid, nullptr, 0) == pid); }

// Makes a child that dies and its child, which lives on. Returns the latter's pid.
pid_t make_orphan(Account& account) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork_member(account, kChildEpoch, [&] {
    account.take_always(100);
    account.take_fixed(10);
    REQUIRE(account.lun_take(50 << 20) == 0 && account.carve(kPieces) == 0, "LUN space and pieces");
    const pid_t grandchild = fork_member(account, kGrandchildEpoch, [&] {
      account.take_always(7);
      const pid_t self = getpid();
      REQUIRE(write(ready[1], &self, sizeof self) == sizeof self);
      for (;;) pause();
    });
    (void)grandchild;
    pid_t pid;
    REQUIRE(read(ready[0], &pid, sizeof pid) == sizeof pid &&
            write(ready[1], &pid, sizeof pid) == sizeof pid);
  });
  reap(child);
  pid_t orphan = 0;
  REQUIRE(read(ready[0], &orphan, sizeof orphan) == sizeof orphan);
  close(ready[0]);
  close(ready[1]);
  return orphan;
}

// Runs `body` in another process and kills that after `steps` instructions. False: it ended before.
template <class F>
bool kill_after(Account& account, unsigned steps, F body) {
  const pid_t burier = fork_member(account, 1, [&] {
    REQUIRE(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
    raise(SIGSTOP);
    body();
    raise(SIGSTOP);
  });
  int status = 0;
  REQUIRE(waitpid(burier, &status, 0) == burier);
  if (!WIFSTOPPED(status)) SKIP("ptrace", "a process here may not trace its child");
  bool through = false;
  for (unsigned i = 0; i < steps && !through; ++i) {
    REQUIRE(ptrace(PTRACE_SINGLESTEP, burier, nullptr, nullptr) == 0);
    REQUIRE(waitpid(burier, &status, 0) == burier);
    through = WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
  }
  kill(burier, SIGKILL);
  reap(burier);
  return !through;
}

void check(Account& account, unsigned steps, int64_t pages, bool orphan) {
  uint32_t oldest = 0;
  account.sweep(&oldest);
  REQUIRE(account.cap_pages() - account.free_pages() == pages,
          "killed after %u steps: %lld pages are taken, should be %lld", steps,
          static_cast<long long>(account.cap_pages() - account.free_pages()),
          static_cast<long long>(pages));
  REQUIRE(account.lun_free() == kLunCap, "killed after %u steps: %lld bytes of LUN space are taken",
          steps, static_cast<long long>(kLunCap - account.lun_free()));
  REQUIRE(oldest == (orphan ? kChildEpoch : 0) && account.child_lives(kChildEpoch) == orphan &&
              !account.child_lives(kGrandchildEpoch),
          "killed after %u steps: the oldest child is of epoch %u", steps, oldest);
  const unsigned free = kCarvePieces - (orphan ? kPieces : 0);
  const int first = account.carve(free);
  REQUIRE(first == static_cast<int>(kCarvePieces - free),
          "killed after %u steps: %u pieces are free at %d", steps, free, first);
  account.uncarve(first, free);
  REQUIRE(free == kCarvePieces || account.carve(free + 1) < 0,
          "killed after %u steps: no member has the dead one's pieces", steps);
}

void take_and_give(Account& account, unsigned child) {
  if (!account.take(5, 0) || account.take(2 * kCap, 0)) _exit(1);
  account.give(2);
  account.take_always(3);
  if (account.lun_take(1 << 20) < 0 || account.lun_take(2 * kLunCap) == 0) _exit(1);
  account.lun_give(1 << 19);
  account.take_fixed(4);
  account.give_fixed(1);
  account.hand_to_child(child, 2, 1 << 10);
  (void)account.take_for_child(child, 6, kCap, true);
}

}  // namespace

TEST_CASE("account-reap") {
  tier::Random random(tier::run_seed());
  Account account;
  REQUIRE(account.open(-1, kCap, kLunCap) == 0 && account.join() == 0);
  account.lock_alive();
  account.take_always(1);
  check(account, 0, 1, false);  // also binds the calls, so that steps are the account's
  unsigned steps = 0, kills = 0;
  for (bool killed = true; killed; ++kills) {
    steps += 1 + static_cast<unsigned>(random.below(12));
    const pid_t orphan = make_orphan(account);
    killed = kill_after(account, steps, [&] {
      uint32_t oldest;
      account.sweep(&oldest);
    });
    check(account, steps, 8, true);
    kill(orphan, SIGKILL);
    usleep(500);
    for (int i = 0; i < 2000 && account.child_lives(kChildEpoch); ++i) {
      uint32_t oldest;
      account.sweep(&oldest);  // it is not our child, so we cannot wait for its end
      usleep(500);
    }
    check(account, steps, 1, false);
  }
  REQUIRE(kills > 50, "only %u kills: was reaping stepped through?", kills);
  printf("%u kills within %u steps of reaping\n", kills, steps);
  steps = kills = 0;
  for (bool killed = true; killed; ++kills) {
    steps += 1 + static_cast<unsigned>(random.below(4));
    uint64_t ticket = 0;
    const int child = account.reserve_child(kGrandchildEpoch, &ticket);
    REQUIRE(child >= 0, "reserve_child: %d", child);
    killed =
        kill_after(account, steps, [&] { take_and_give(account, static_cast<unsigned>(child)); });
    account.release_child(static_cast<unsigned>(child), ticket);
    check(account, steps, 1, false);
  }
  REQUIRE(kills > 50, "only %u kills: were the charges stepped through?", kills);
  printf("%u kills within %u steps of charges\n", kills, steps);
}
