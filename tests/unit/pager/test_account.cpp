// SPDX-License-Identifier: Apache-2.0
// The account of a process tree: sums, limits and shares in one process whose members are Account
// objects on one memory file, as the processes of a tree are. (That the dead give back, and that
// reaping can be interrupted: tests/fault/account_*.) LUNAR_SEED=N replays a run.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "pager/account/account.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr int64_t kCap = 1000, kLunCap = 1 << 30;

// The memory that `lunar run` would hand down. Members are never destroyed, as those of a process
// are not: their locks are held.
class Tree {
 public:
  explicit Tree(int64_t cap = kCap) : cap_(cap), fd_(memfd_create("account", MFD_CLOEXEC)) {
    REQUIRE(fd_ >= 0);
    REQUIRE(ftruncate(fd_, sizeof(AccountShared)) == 0);
  }
  ~Tree() { close(fd_); }
  // Another mapping of the account, not a member yet.
  Account& look() {
    accounts_.push_back(std::make_unique<Account>());
    REQUIRE(accounts_.back()->open(fd_, static_cast<uint64_t>(cap_), kLunCap) == 0);
    return *accounts_.back();
  }
  Account& member() {
    Account& account = look();
    REQUIRE(account.join() == 0);
    account.lock_alive();
    return account;
  }
  int fd() const { return fd_; }

 private:
  int64_t cap_;
  int fd_;
  std::vector<std::unique_ptr<Account>> accounts_;
};

int64_t taken(const Account& account) { return account.cap_pages() - account.free_pages(); }

}  // namespace

TEST_CASE("the first to open sets the caps; the others see them, and each other's pages") {
  Tree tree;
  Account& one = tree.member();
  Account later;
  REQUIRE(later.open(tree.fd(), 5, 7) == 0);
  CHECK(later.cap_pages() == kCap);
  CHECK(later.lun_cap() == kLunCap);
  REQUIRE(later.join() == 0);
  CHECK(one.member() != later.member());
  CHECK(one.take(300, 0));
  CHECK(later.free_pages() == kCap - 300);
  CHECK(later.own_pages() == 0);
  one.set_cap(200);
  CHECK(later.cap_pages() == 200);
  CHECK(later.free_pages() == -100);
}

TEST_CASE("memory that is no account of this build is refused") {
  const int fd = memfd_create("foreign", MFD_CLOEXEC);
  REQUIRE(ftruncate(fd, sizeof(AccountShared)) == 0);
  {
    Account maker;
    REQUIRE(maker.open(fd, 10, 10) == 0);
  }
  auto* shared = static_cast<AccountShared*>(
      mmap(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  REQUIRE(shared != MAP_FAILED);
  shared->bytes += 8;  // another version
  Account other;
  CHECK(other.open(fd, 10, 10) == -EPROTO);
  shared->bytes -= 8;
  shared->magic ^= 1;
  CHECK(other.open(fd, 10, 10) == -EPROTO);
  munmap(shared, sizeof(AccountShared));
  close(fd);
}

TEST_CASE(
    "an account without a tree is a file of its own, which keeps its size and is closed by exec") {
  Account account;
  REQUIRE(account.open(-1, 10, 10) == 0);
  const int fd = account.descriptor();
  REQUIRE(fd >= 0);
  CHECK((ftruncate(fd, 0) == -1 && errno == EPERM));
  CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
  REQUIRE(account.join() == 0);
  CHECK(account.take(10, 0));
}

TEST_CASE("take keeps free what it must, to the page, and charges nothing when it refuses") {
  Tree tree;
  Account& account = tree.member();
  CHECK_FALSE(account.take(kCap + 1, 0));
  CHECK_FALSE(account.take(kCap - 9, 10));
  CHECK(taken(account) == 0);
  CHECK(account.own_pages() == 0);
  CHECK(account.take(kCap - 10, 10));
  CHECK_FALSE(account.take(1, 10));
  CHECK(account.take(10, 0));
  CHECK(account.free_pages() == 0);
  account.take_always(5);  // what is there already
  CHECK(account.free_pages() == -5);
  CHECK_FALSE(account.take(0, 0));
  account.give(kCap + 5);
  CHECK(taken(account) == 0);
  CHECK(account.own_pages() == 0);
}

TEST_CASE(
    "frames, windows and tables are charged as pages, and counted as what eviction cannot give "
    "back") {
  Tree tree;
  Account& one = tree.member();
  Account& two = tree.member();
  one.take_fixed(100);
  CHECK(taken(two) == 100);
  CHECK(one.own_pages() == 100);
  CHECK(one.own_fixed() == 100);
  CHECK(two.fixed_total() == 100);
  CHECK(two.others_active());
  CHECK_FALSE(one.others_active());
  CHECK_FALSE(one.take_fixed_within(kCap - 100 + 1, 0));
  CHECK(one.own_fixed() == 100);
  CHECK(one.take_fixed_within(50, kCap - 150));
  CHECK(two.fixed_total() == 150);
  one.give_fixed(150);
  CHECK(taken(two) == 0);
  CHECK(two.fixed_total() == 0);
}

TEST_CASE("fixed pages that were reserved are charged once, and the rest comes back") {
  Tree tree;
  Account& one = tree.member();
  Account& two = tree.member();
  CHECK_FALSE(one.reserve_fixed(kCap - 99, 100));
  CHECK(taken(two) == 0);
  REQUIRE(one.reserve_fixed(200, 100));
  CHECK(taken(two) == 200);
  CHECK_FALSE(two.reserve_fixed(kCap - 300 + 1, 100));  // both together would leave too little
  one.use_reserved(200);
  one.take_fixed(150);
  CHECK(taken(two) == 200);
  CHECK(one.reserved() == 50);
  one.take_fixed(80);  // 30 beyond it
  CHECK(one.reserved() == 0);
  CHECK(taken(two) == 230);
  one.give_fixed(230);
  REQUIRE(one.reserve_fixed(40, 100));
  one.use_reserved(40);
  one.take_fixed(10);
  one.end_reserved();
  CHECK(one.reserved() == 0);
  CHECK(taken(two) == 10);
  CHECK(one.own_fixed() == 10);
  one.end_reserved();  // again: nothing is left to give
  CHECK(taken(two) == 10);
}

TEST_CASE("plain memory stops at its limit, counts as fixed, and can be evicted after activation") {
  Tree tree;
  Account& account = tree.member();
  CHECK(account.take_plain(700, 700));
  CHECK_FALSE(account.take_plain(1, 700));
  CHECK(account.plain_pages() == 700);
  CHECK(taken(account) == 700);
  CHECK(account.fixed_total() == 700);
  account.plain_to_evictable(650);
  CHECK(taken(account) == 700);
  CHECK(account.fixed_total() == 50);
  account.plain_to_evictable(-650);  // it failed
  account.give_plain(700);
  CHECK(taken(account) == 0);
  CHECK(account.own_fixed() == 0);
}

TEST_CASE("LUN space: to the byte, for all members together") {
  Tree tree;
  Account& one = tree.member();
  Account& two = tree.member();
  CHECK(one.lun_take(kLunCap + 1) == -ENOMEM);
  CHECK(one.lun_free() == kLunCap);
  CHECK(one.lun_take(kLunCap - 4096) == 0);
  CHECK(two.lun_take(4097) == -ENOMEM);
  CHECK(two.lun_take(4096) == 0);
  CHECK(one.lun_free() == 0);
  one.lun_give(kLunCap - 4096);
  two.lun_give(4096);
  CHECK(two.lun_free() == kLunCap);
}

TEST_CASE(
    "inherited pages are charged to the child: as a copy if there is room, otherwise as shared") {
  Tree tree;
  Account& parent = tree.member();
  REQUIRE(parent.take(400, 0));
  uint64_t ticket = 0;
  const int index = parent.reserve_child(7, &ticket);
  REQUIRE(index >= 0);
  CHECK(parent.child_lives(7));
  CHECK_FALSE(parent.child_lives(6));
  // 800 of 1000, 100 kept free
  CHECK(parent.take_for_child(static_cast<unsigned>(index), 400, 100, true));
  CHECK(taken(parent) == 800);
  CHECK(parent.shared_pages() == 0);
  CHECK_FALSE(parent.take_for_child(static_cast<unsigned>(index), 300, 100, true));
  CHECK(parent.shared_pages() == 300);
  CHECK(taken(parent) == 800);  // there once
  CHECK(parent.own_pages() == 400);
  CHECK_FALSE(parent.unshare(101, 100));  // 201 copies would leave 99 free
  CHECK(parent.shared_pages() == 300);
  CHECK(parent.unshare(100, 100));
  CHECK(parent.shared_pages() == 200);
  CHECK(taken(parent) == 900);
  parent.give_maybe_shared(50);  // gone here, there still for the child: as much is there as before
  CHECK(taken(parent) == 900);
  CHECK(parent.shared_pages() == 150);
  parent.unshare_always(1000);  // no more than there are
  CHECK(parent.shared_pages() == 0);
  Account& child = tree.look();
  CHECK(child.adopt(static_cast<unsigned>(index), ticket + 1) == -ESRCH);
  REQUIRE(child.adopt(static_cast<unsigned>(index), ticket) == 0);
  CHECK(child.own_pages() == 700);
}

TEST_CASE("without room, and where sharing is no way out, a child's pages pass the cap") {
  Tree tree;
  Account& parent = tree.member();
  REQUIRE(parent.take(900, 0));
  uint64_t ticket = 0;
  const int index = parent.reserve_child(1, &ticket);
  REQUIRE(index >= 0);
  CHECK_FALSE(parent.take_for_child(static_cast<unsigned>(index), 900, 0, false));
  CHECK(parent.free_pages() == -800);
  CHECK(parent.shared_pages() == 0);
}

TEST_CASE("a fork that failed gives all of it back, once, and only for its own ticket") {
  Tree tree;
  Account& parent = tree.member();
  parent.take_fixed(60);
  REQUIRE(parent.lun_take(1 << 20) == 0);
  uint64_t ticket = 0;
  const int index = parent.reserve_child(3, &ticket);
  REQUIRE(index >= 0);
  parent.hand_to_child(static_cast<unsigned>(index), 40, 1 << 19);
  CHECK(parent.own_fixed() == 20);
  CHECK(parent.fixed_total() == 60);
  CHECK(parent.take_for_child(static_cast<unsigned>(index), 100, 0, true));
  CHECK(taken(parent) == 160);
  parent.fork_returned();
  parent.release_child(static_cast<unsigned>(index), ticket + 1);
  CHECK(taken(parent) == 160);
  parent.release_child(static_cast<unsigned>(index), ticket);
  CHECK(taken(parent) == 20);
  CHECK(parent.lun_free() == kLunCap - (1 << 19));
  CHECK_FALSE(parent.child_lives(3));
  parent.release_child(static_cast<unsigned>(index), ticket);
  CHECK(taken(parent) == 20);
  uint64_t later = 0;
  REQUIRE(parent.reserve_child(4, &later) == index);  // its place is used again, and a ticket never
  CHECK(later != ticket);
  Account& child = tree.look();
  CHECK(child.adopt(static_cast<unsigned>(index), ticket) == -ESRCH);
}

TEST_CASE(
    "a child of a plain member: prepaid pages move, what is short is charged, what is over comes "
    "back") {
  Tree tree;
  for (const int64_t prepaid : {int64_t{0}, int64_t{80}, int64_t{100}, int64_t{130}}) {
    Account& parent = tree.member();
    REQUIRE(parent.take_plain(100 + prepaid, kCap));
    const int64_t before = taken(parent) - 100 - prepaid;
    uint64_t ticket = 0;
    const int index = parent.reserve_plain_child(100, prepaid, &ticket);
    REQUIRE(index >= 0);
    INFO("prepaid " << prepaid);
    CHECK(parent.plain_pages() == 100);
    CHECK(taken(parent) == before + 200);
    Account& child = tree.look();
    REQUIRE(child.adopt(static_cast<unsigned>(index), ticket) == 0);
    CHECK(child.plain_pages() == 100);
    // adopted: it is not ours to give back
    parent.release_child(static_cast<unsigned>(index), ticket);
    CHECK(taken(parent) == before + 200);
    child.give_plain(100);
    parent.give_plain(100);
  }
}

TEST_CASE(
    "shares: a member with more than its weight of the evictable pages evicts; fixed pages do not "
    "count") {
  Tree tree;
  Account& one = tree.member();
  CHECK(one.above_share());  // no member has any: true for each
  Account& two = tree.member();
  REQUIRE((one.take(300, 0) && two.take(100, 0)));
  CHECK(one.above_share());
  CHECK_FALSE(two.above_share());
  two.take_fixed(400);
  CHECK_FALSE(two.above_share());
  REQUIRE(two.take(200, 0));
  CHECK((one.above_share() && two.above_share()));  // equal: both
  uint64_t ticket = 0;
  const int index = two.reserve_child(1, &ticket);  // a forked child weighs half
  REQUIRE(index >= 0);
  (void)two.take_for_child(static_cast<unsigned>(index), 150, -kCap, true);
  Account& child = tree.look();
  REQUIRE(child.adopt(static_cast<unsigned>(index), ticket) == 0);
  CHECK(child.above_share());  // 150 of 750; 4 of 20 is just that
  child.give(1);
  CHECK_FALSE(child.above_share());
}

TEST_CASE("pieces: adjacent ones, lowest first, given back to the process that needs them") {
  Tree tree;
  Account& one = tree.member();
  Account& two = tree.member();
  CHECK(one.carve(3) == 0);
  CHECK(two.carve(2) == 3);
  CHECK(one.carve(1) == 5);
  two.uncarve(3, 2);
  CHECK(one.carve(3) == 6);  // two are not enough for three
  CHECK(two.carve(2) == 3);
  CHECK(two.carve(kCarvePieces - 9) == 9);
  CHECK(two.carve(1) == -ENOSPC);
  one.uncarve(0, 3);
  CHECK(two.carve(4) == -ENOSPC);
  CHECK(two.carve(3) == 0);
  CHECK(one.carve(kCarvePieces + 1) == -ENOSPC);
}

TEST_CASE("wild indices that another member has written are not followed") {
  Tree tree;
  Account& account = tree.member();
  REQUIRE(account.take(10, 0));
  void* memory =
      mmap(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED, tree.fd(), 0);
  REQUIRE(memory != MAP_FAILED);
  auto* shared = static_cast<AccountShared*>(memory);
  for (const uint32_t bad : {kMembersMax + 1, 1u << 20, UINT32_MAX}) {
    shared->member_high.store(bad);
    shared->reaping.store(bad < 1u << 20 ? (bad + 1) << 2 : UINT32_MAX);
    shared->unsettled.store(1);
    uint32_t oldest = 0;
    bool unsure = false;
    sys::FutexWait words[4];
    CHECK(account.sweep(&oldest));
    CHECK(oldest == 0);
    CHECK(shared->reaping.load() == 0);
    CHECK(account.fixed_total() == 0);
    CHECK_FALSE(account.others_active());
    CHECK(account.above_share());
    CHECK_FALSE(account.child_lives(1));
    CHECK(account.child_words(words, 4, &unsure) == 0);
    CHECK_FALSE(account.someone_writes_elsewhere());
    CHECK(account.write_elsewhere_begin());
    account.write_elsewhere_end();
    CHECK(account.own_pages() == 10);
  }
  munmap(memory, sizeof(AccountShared));
}

TEST_CASE("a request for room is answered once, by the next member that gives back") {
  Tree tree;
  Account& one = tree.member();
  Account& two = tree.member();
  REQUIRE(one.take(10, 0));
  const uint32_t before = two.pressure();
  one.give(5);
  CHECK(two.pressure() == before);  // no request
  two.want_room();
  one.give(0);  // nothing was given
  CHECK(two.pressure() == before);
  one.give(5);
  CHECK(two.pressure() == before + 1);
  one.take_always(1);
  one.give(1);
  CHECK(two.pressure() == before + 1);
  std::atomic<bool> woken{false};
  std::jthread sleeper([&] {
    const uint32_t seen = two.pressure();
    two.want_room();
    while (two.pressure() == seen) two.wait_pressure(seen, -1);
    woken.store(true);
  });
  one.take_always(1);
  while (!woken.load()) {
    one.take_always(1);
    one.give(1);
  }
}

TEST_CASE("a failed fork that is not reported gives all of it back at the next sweep") {
  Tree tree;
  Account& parent = tree.member();
  uint64_t ticket = 0;
  const int index = parent.reserve_child(3, &ticket);
  REQUIRE(index >= 0);
  CHECK(parent.take_for_child(static_cast<unsigned>(index), 100, 0, true));
  uint32_t oldest = 0;
  CHECK(parent.sweep(&oldest));
  CHECK(taken(parent) == 100);
  parent.fork_returned();
  CHECK(parent.sweep(&oldest));
  CHECK(taken(parent) == 0);
  CHECK(oldest == 0);
}

TEST_CASE("without a descriptor of the account none of the others is taken for dead") {
  Tree tree;
  Account& one = tree.member();
  uint64_t ticket = 0;
  const int index = one.reserve_child(3, &ticket);
  REQUIRE((index >= 0 && one.take_for_child(static_cast<unsigned>(index), 100, 0, true)));
  one.fork_returned();
  const int kept = dup(tree.fd());
  REQUIRE((kept >= 0 && close(tree.fd()) == 0));
  CHECK(one.descriptor() == -1);
  uint32_t oldest = 0;
  CHECK(one.sweep(&oldest));
  CHECK(taken(one) == 100);
  REQUIRE((dup2(kept, tree.fd()) == tree.fd() && close(kept) == 0));
  CHECK(one.sweep(&oldest));
  CHECK(taken(one) == 0);
}

// A child that adopts its member, takes `fixed` pages, says so ("y"), and lives until the pipe is
// closed.
static pid_t fork_adopter(const Tree& tree, int index, uint64_t ticket, int64_t fixed,
                          const int (&told)[2], int said) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  close(told[1]);
  Account child;
  const bool good =
      child.open(tree.fd(), 1, 1) == 0 && child.adopt(static_cast<unsigned>(index), ticket) == 0;
  child.take_fixed(fixed);
  (void)!write(said, good ? "y" : "n", 1);
  char none;
  (void)!read(told[0], &none, 1);
  _exit(0);
}

TEST_CASE(
    "a child that has not begun yet is alive for a member in another pid namespace, which cannot "
    "look") {
  Tree tree;
  Account& account = tree.member();
  uint64_t ticket = 0;
  const int index = account.reserve_child(2, &ticket);
  REQUIRE(index >= 0);
  int said[2], told[2];
  REQUIRE((pipe(said) == 0 && pipe(told) == 0));
  const pid_t pid = fork_adopter(tree, index, ticket, 20, told, said[1]);
  account.fork_returned();
  char answer = 0;
  REQUIRE((pid > 0 && read(said[0], &answer, 1) == 1 && answer == 'y'));
  const pid_t elsewhere = fork();
  if (elsewhere == 0) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) _exit(77);
    const pid_t first = fork();
    if (first == 0) {
      if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(77);
      if (mount("proc", "/proc", "proc", 0, nullptr) != 0) _exit(77);
      Account other;
      uint32_t oldest = 0;
      _exit(other.open(tree.fd(), 1, 1) == 0 && other.join() == 0 && other.sweep(&oldest) &&
                    taken(other) == 20
                ? 0
                : 1);
    }
    int status = 0;
    _exit(waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  REQUIRE(waitpid(elsewhere, &status, 0) == elsewhere);
  close(told[1]);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
  for (const int fd : {said[0], said[1], told[0]}) close(fd);
  if (status == 77 << 8) LUNAR_SKIP("pid-namespace", "a pid namespace cannot be made");
  CHECK(status == 0);
  uint32_t oldest = 0;
  for (int i = 0; i < 200 && !(account.sweep(&oldest) && taken(account) == 0); ++i) usleep(10000);
  CHECK(taken(account) == 0);
}

TEST_CASE("a child without a lock that ends before it is active or plain gives all of it back") {
  Tree tree;
  Account& account = tree.member();
  uint64_t ticket = 0;
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{0, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const int index = account.reserve_child(2, &ticket);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE((index >= 0 && account.take_for_child(static_cast<unsigned>(index), 100, 0, true)));
  int told[2], said[2];
  REQUIRE((pipe(told) == 0 && pipe(said) == 0));
  const pid_t pid = fork_adopter(tree, index, ticket, 0, told, said[1]);
  account.fork_returned();
  char answer = 0;
  REQUIRE((pid > 0 && read(said[0], &answer, 1) == 1 && answer == 'y'));
  uint32_t oldest = 0;
  for (int i = 0; i < 20; ++i, usleep(10000)) CHECK(account.sweep(&oldest));
  CHECK(taken(account) == 100);
  close(told[1]);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
  for (int i = 0; i < 200 && !(account.sweep(&oldest) && taken(account) == 0); ++i) usleep(10000);
  CHECK(taken(account) == 0);
  for (const int fd : {said[0], said[1], told[0]}) close(fd);
}

TEST_CASE(
    "a member that is stopped while it holds the account's lock stops no sweep, and its end gives "
    "the lock back") {
  Tree tree;
  Account& account = tree.member();
  uint64_t ticket = 0;
  REQUIRE(account.reserve_child(2, &ticket) >= 0);
  void* const map =
      mmap(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED, tree.fd(), 0);
  REQUIRE(map != MAP_FAILED);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    pthread_mutex_lock(&static_cast<AccountShared*>(map)->lock);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
  REQUIRE(WIFSTOPPED(status));
  uint32_t oldest = 7;
  CHECK(!account.sweep(&oldest));
  CHECK(oldest == 7);
  kill(pid, SIGKILL);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
  (void)account.sweep(&oldest);
  CHECK(oldest == 2);
  REQUIRE(munmap(map, sizeof(AccountShared)) == 0);
}

TEST_CASE(
    "property: threads take and give, the cap holds at every moment, and the sums come out even") {
  const uint64_t base_seed = tier::run_seed();
  Tree tree;
  Account& account = tree.member();
  constexpr int64_t kKeep = 17;
  std::atomic<bool> stop{false};
  // `held` is raised after a take and lowered before a give
  std::atomic<int64_t> held{0}, above{0};
  lunar_test::in_parallel(4u, [&](unsigned t) {
    std::mt19937_64 random(base_seed + t);
    int64_t own = 0, lun = 0;
    for (int step = 0; step < 20'000; ++step) {
      const auto pages = static_cast<int64_t>(1 + random() % 300);
      if (random() % 2 && account.take(pages, kKeep)) {
        if (held.fetch_add(pages) + pages > kCap - kKeep) ++above;
        own += pages;
      } else if (own >= pages) {
        held.fetch_sub(pages);
        account.give(pages);
        own -= pages;
      }
      if (random() % 2 && account.lun_take(pages << 20) == 0)
        lun += pages << 20;
      else if (lun)
        account.lun_give(std::exchange(lun, 0));
    }
    held.fetch_sub(own);
    account.give(own);
    account.lun_give(lun);
  });
  CHECK(above == 0);
  CHECK(taken(account) == 0);
  CHECK(account.own_pages() == 0);
  CHECK(account.lun_free() == kLunCap);
}
