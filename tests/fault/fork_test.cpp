// SPDX-License-Identifier: Apache-2.0
// fork_test CASE [--long]: a forked child keeps its memory.
//
// Idea. Every page has a content that tells its version. After a fork parent, child and grandchild
// write on their own, and each must see exactly the content of the fork and its own writes. Memory
// is three times the budget, so at the fork pages are in DRAM, in frames, on the LUN and empty.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "pager/state/state.h"
#include "tests/fault/first_touch.h"
#include "tests/fault/versioned_pages.h"
#include "tests/support/stderr_of.h"
#include "tests/support/test_tier.h"

extern char** environ;

namespace {

using tier::expect_exit;
using tier::fork_child;
using tier::Random;

constexpr uint64_t kMemory = 60 * tier::kMega, kDram = 20 * tier::kMega, kLun = 1536 * tier::kMega;
const uint64_t g_seed = tier::run_seed();

struct Pages : tier::VersionedPages {
  explicit Pages(uint64_t bytes, uint32_t first_version = 1) : VersionedPages(bytes) {
    for (uint64_t i = 0; i < count; ++i)
      if (i % 16 != 5) write(i, first_version);  // the others stay untouched
  }
  // Afterwards some pages are in every state: the last third is resident or in frames, the rest
  // evicted.
  void spread() {
    Random random(g_seed);
    for (int k = 0; k < 2000; ++k) check(random.below(count), "before the fork");
  }
};

void start(const char* options = nullptr) { tier::start_tier(kDram, kLun, nullptr, options); }

// ---- cases --------------------------------------------------------------------------------------

TEST_CASE("child-sees-the-parents-content") {
  start();
  Pages pages(kMemory);
  pages.spread();
  pid_t child = fork_child([&] {
    pages.check_all("child");
    for (uint64_t i = 0; i < pages.count; i += 2) pages.write(i, 1000);
    pid_t grandchild = fork_child([&] {
      pages.check_all("grandchild");
      for (uint64_t i = 0; i < pages.count; i += 3) pages.write(i, 2000);
      pages.check_all("grandchild, after its writes");
      REQUIRE(tier::validate(), "grandchild's page table");
    });
    for (uint64_t i = 1; i < pages.count; i += 2) pages.write(i, 1001);
    pages.check_all("child, after its writes");
    expect_exit(grandchild, "grandchild");
    pages.check_all("child, without its child");
    REQUIRE(tier::validate(), "child's page table");
  });
  for (uint64_t i = 0; i < pages.count; ++i) pages.write(i, 3000 + static_cast<uint32_t>(i % 7));
  pages.check_all("parent, after its writes");
  expect_exit(child, "child");
  pages.check_all("parent, alone again");
  REQUIRE(tier::validate(), "parent's page table");
}

TEST_CASE("child-discards-and-allocates") {
  start();
  Pages pages(kMemory);
  pages.spread();
  expect_exit(fork_child([&] {
                for (uint64_t i = 0; i < pages.count; i += 4) {
                  REQUIRE(lunar_discard(pages.at(i), pages.page) == 0);
                  pages.versions[i] = 0;
                }
                Pages own(8 * tier::kMega, 7);
                auto* block = static_cast<char*>(lunar_malloc(1 << 20));
                REQUIRE(block != nullptr, "lunar_malloc in a child");
                tier::stamp_write(block, 1 << 20, 99, 1);
                pages.check_all("child");
                own.check_all("child's own region");
                REQUIRE(tier::stamp_holds(block, 1 << 20, 99, 1));
                lunar_range ranges[64];
                for (uint64_t i = 0; i < 64; ++i) ranges[i] = {pages.at(i * 37), pages.page};
                REQUIRE(lunar_prefetch(ranges, 64) == 0, "prefetch in a child");
                REQUIRE(lunar_evict(pages.base, pages.count * pages.page) >= 0, "evict in a child");
                pages.check_all("child, after evicting");
                REQUIRE(tier::validate(), "child's page table");
              }),
              "child");
  pages.check_all("parent");
}

// The child sleeps. The pages that the parent rewrites must stay readable for the child, and need
// space of their own.
TEST_CASE("sleeping-child-keeps-its-version") {
  start();
  Pages pages(kMemory);
  pages.spread();
  int go[2];
  REQUIRE(pipe2(go, O_CLOEXEC) == 0);
  pid_t child = fork_child([&] {
    char byte;
    close(go[1]);
    REQUIRE(read(go[0], &byte, 1) == 1, "the parent is gone");
    pages.check_all("child that slept");
  });
  for (uint32_t version = 10; version < 13; ++version)
    for (uint64_t i = 0; i < pages.count; ++i) pages.write(i, version);
  pages.check_all("parent");
  REQUIRE(write(go[1], "g", 1) == 1);
  expect_exit(child, "child");
  pages.check_all("parent, alone again");
}

uint64_t used_dram() {
  auto& account = lunar::pager_state().account;
  return static_cast<uint64_t>(account.cap_pages() - account.free_pages());
}

unsigned open_descriptors() {
  unsigned n = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++n;
  closedir(directory);
  return n;
}

// Mappings of this process and their bytes.
struct AddressSpace {
  unsigned mappings = 0;
  uint64_t bytes = 0;
};

AddressSpace address_space() {
  AddressSpace all;
  char line[512];
  FILE* maps = fopen("/proc/self/maps", "r");
  REQUIRE(maps != nullptr);
  while (fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin = 0, end = 0;
    if (sscanf(line, "%lx-%lx ", &begin, &end) != 2) continue;
    ++all.mappings;
    all.bytes += end - begin;
  }
  fclose(maps);
  return all;
}

struct Holdings {
  uint64_t slots, dram, lun_charged, promised;
  unsigned descriptors;
};

Holdings holdings(Pages& pages) {
  REQUIRE(lunar_evict(pages.base, pages.count * pages.page) >= 0);
  auto& state = lunar::pager_state();
  return {state.luns.slots[0].used_slots(), used_dram(), state.luns.slots[0].charged_slots(),
          static_cast<uint64_t>(state.account.lun_cap() - state.account.lun_free()),
          open_descriptors()};
}

// The resources of the process after its first fork, which may leave a descriptor or a table
// behind. The housekeeping thread returns the reservation for the child a moment after the child's
// end.
Holdings settled(Pages& pages, const Holdings& alone) {
  Holdings now{};
  for (unsigned i = 0; i < tier::scaled(50); ++i) {
    now = holdings(pages);
    if (now.lun_charged == alone.lun_charged && now.promised == alone.promised &&
        now.dram <= alone.dram)
      return now;
    usleep(100000);
  }
  REQUIRE(false,
          "a first child's end gave back too little: DRAM %lu (%lu), charged %lu (%lu), promised "
          "%lu (%lu)",
          now.dram, alone.dram, now.lun_charged, alone.lun_charged, now.promised, alone.promised);
  return now;
}

void expect_back(Pages& pages, const Holdings& before, const char* after) {
  Holdings now{};
  for (unsigned i = 0; i < tier::scaled(50); ++i) {
    now = holdings(pages);
    if (now.slots == before.slots && now.dram <= before.dram &&
        now.lun_charged == before.lun_charged && now.promised == before.promised &&
        now.descriptors == before.descriptors)
      return;
    usleep(100000);  // the housekeeping thread looks a few times a second
  }
  REQUIRE(false,
          "after %s: slots %lu (were %lu), DRAM %lu (%lu), charged %lu (%lu), promised %lu (%lu), "
          "descriptors %u (%u)",
          after, now.slots, before.slots, now.dram, before.dram, now.lun_charged,
          before.lun_charged, now.promised, before.promised, now.descriptors, before.descriptors);
}

TEST_CASE("killed-child-gives-everything-back") {
  start();
  Pages pages(kMemory);
  pages.check_all("parent");
  Holdings before = holdings(pages);
  const int rounds = lunar_test::has_option("--long") ? 10 : 2;
  for (int round = 0; round < rounds; ++round) {
    pid_t child = fork_child([&] {
      for (uint32_t version = 50;; ++version)
        for (uint64_t i = 0; i < pages.count; ++i) pages.write(i, version);
    });
    for (uint64_t i = 0; i < pages.count; ++i)
      if (pages.versions[i] != 0) pages.write(i, 60 + static_cast<uint32_t>(round));
    usleep(100000);
    kill(child, SIGKILL);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    pages.check_all("parent of a killed child");
  }
  expect_back(pages, before, "killed children");
  REQUIRE(tier::validate());
}

TEST_CASE("fifty-forks-leave-nothing-behind") {
  start();
  Pages pages(kMemory / 2);
  pages.check_all("parent");
  Holdings alone = holdings(pages);
  expect_exit(fork_child([] {}), "a first child");
  Holdings before = settled(pages, alone);
  Random random(g_seed);
  for (int round = 0; round < 50; ++round) {
    pid_t child = fork_child([&] {
      Random mine(g_seed + static_cast<uint64_t>(round));
      for (int k = 0; k < 200; ++k) pages.check(mine.below(pages.count), "child");
      for (int k = 0; k < 200; ++k) pages.write(mine.below(pages.count), 5);
    });
    for (int k = 0; k < 300; ++k) {
      uint64_t i = random.below(pages.count);
      if (pages.versions[i] != 0) pages.write(i, pages.versions[i] + 1);
    }
    expect_exit(child, "child");
  }
  pages.check_all("parent");
  expect_back(pages, before, "50 forks");
  REQUIRE(tier::validate());
}

// Four threads write and evict while a fifth forks. A page's two counters rise one after the other.
// A child has each page as of one moment, so it sees the counters equal or one apart, and never
// below their values before the fork.
TEST_CASE("fork-among-writers") {
  start();
  size_t page = lunar_page_bytes();
  uint64_t count = kMemory / page;
  char* base = tier::new_region(kMemory);
  auto words = [&](uint64_t i) {
    return reinterpret_cast<std::atomic<uint64_t>*>(base + i * page);
  };
  size_t last = page / 8 - 1;
  std::vector<std::atomic<uint64_t>> model(count);
  std::atomic<bool> stop{false};
  auto writers = lunar_test::start_threads(4u, [&](unsigned t) {
    Random random(g_seed * 8 + t);
    while (!stop.load(std::memory_order_relaxed)) {
      uint64_t i = random.below(count / 4) * 4 + t;
      uint64_t to = model[i].load(std::memory_order_relaxed) + 1;
      words(i)[0].store(to);
      words(i)[last].store(to);
      model[i].store(to);
      if (random.one_in(500)) (void)lunar_evict(base + random.below(count - 64) * page, 64 * page);
      if (random.one_in(200)) {
        lunar_range range{base + random.below(count) * page, page};
        (void)lunar_prefetch(&range, 1);
      }
    }
  });
  std::thread forker([&] {
    for (int round = 0; round < (lunar_test::has_option("--long") ? 30 : 2); ++round) {
      usleep(100000);
      std::vector<uint64_t> before(count);
      for (uint64_t i = 0; i < count; ++i) before[i] = model[i].load();
      expect_exit(fork_child([&] {
                    for (int pass = 0; pass < 2; ++pass)
                      for (uint64_t i = 0; i < count; ++i) {
                        uint64_t a = words(i)[0].load(), b = words(i)[last].load();
                        REQUIRE(a >= before[i] && (a == b || a == b + 1),
                                "child: page %lu holds %lu and %lu, before the fork %lu, state %d",
                                i, a, b, before[i], lunar::pager_page_state(base + i * page));
                        before[i] = a + 1;  // and its own writes stay
                        words(i)[0].store(a + 1);
                        words(i)[last].store(a + 1);
                      }
                    REQUIRE(tier::validate(), "child's page table");
                  }),
                  "child");
    }
    stop.store(true);
  });
  forker.join();
  writers.clear();
  for (uint64_t i = 0; i < count; ++i)
    REQUIRE(words(i)[0].load() == model[i].load() && words(i)[last].load() == model[i].load(),
            "parent: page %lu holds %lu, wrote %lu", i, words(i)[0].load(), model[i].load());
  REQUIRE(tier::validate());
}

void generations() {
  start();
  Pages pages(kMemory / 2);
  pages.spread();
  struct Chain {
    static void go(Pages& pages, unsigned depth) {
      expect_exit(fork_child([&] {
                    pages.check_all("descendant");
                    for (uint64_t i = depth; i < pages.count; i += 6) pages.write(i, 100 + depth);
                    pages.check_all("descendant, after its writes");
                    if (depth < (lunar_test::has_option("--long") ? 8 : 3)) go(pages, depth + 1);
                    pages.check_all("descendant, without its own");
                  }),
                  "descendant");
    }
  };
  Chain::go(pages, 1);
  pages.check_all("ancestor");
}

// A daemon's double fork. The child between ends, and the pages that its child reads still lie in
// the grandparent's LUN. The grandparent rewrites all pages, so that slots would be used again if
// they were given up.
TEST_CASE("double-fork-keeps-its-pages") {
  start();
  Pages pages(kMemory);
  pages.spread();
  int go[2], done[2];
  REQUIRE(pipe2(go, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0);
  expect_exit(fork_child([&] {
                (void)fork_child([&] {
                  char byte;
                  close(go[1]);
                  REQUIRE(read(go[0], &byte, 1) == 1, "the grandparent is gone");
                  pages.check_all("grandchild, its parent gone");
                  REQUIRE(tier::validate(), "grandchild's page table");
                  REQUIRE(write(done[1], "d", 1) == 1);
                });
              }),
              "the child between");
  usleep(300000);  // the housekeeping threads reap it
  for (uint32_t version = 10; version < 13; ++version)
    for (uint64_t i = 0; i < pages.count; ++i) pages.write(i, version);
  pages.check_all("grandparent");
  REQUIRE(write(go[1], "g", 1) == 1);
  close(done[1]);
  char byte;
  REQUIRE(read(done[0], &byte, 1) == 1, "the grandchild has ended early");
  pages.check_all("grandparent, at the end");
}

// Each generation reads all pages, writes a part, forks the next one and ends. There are more
// generations than a page word can tell apart, and pages are left of all of them.
void chain_of_generations(const char* lun, unsigned generations) {
  tier::start_tier(kDram, kLun, lun);
  Pages pages(kMemory / 2);
  pages.spread();
  int done[2];
  REQUIRE(pipe2(done, O_CLOEXEC) == 0);
  pid_t pid = 0;
  AddressSpace early;
  for (unsigned depth = 1; depth <= generations; ++depth) {
    fflush(nullptr);
    pid = fork();
    REQUIRE(pid >= 0, "fork at depth %u: %s", depth, strerror(errno));
    if (pid != 0) {
      if (depth == 1) break;
      _exit(0);
    }
    for (uint64_t i = depth; i < pages.count; i += 100) pages.write(i, 100 + depth);
    Random random(g_seed + depth);
    for (int k = 0; k < 200; ++k) pages.check(random.below(pages.count), "descendant");
    REQUIRE(lunar_evict(pages.base, pages.count * pages.page) >= 0);
    if (depth == 20) early = address_space();
  }
  if (pid == 0) {
    // Nothing of an ancestor's threads and devices stays mapped (17 mappings and 0.9 MiB a
    // generation), except the tables of at most 15 LUNs that pages lie on.
    const AddressSpace late = address_space();
    REQUIRE(late.mappings <= early.mappings + 60 && late.bytes <= early.bytes + 20 * tier::kMega,
            "%u generations have added %d mappings and %lld KiB", generations - 20,
            static_cast<int>(late.mappings - early.mappings),
            static_cast<long long>(late.bytes - early.bytes) / 1024);
    pages.check_all("the last descendant");
    REQUIRE(tier::validate(), "the last descendant's page table");
    REQUIRE(open_descriptors() < 100, "the last descendant has %u descriptors", open_descriptors());
    REQUIRE(write(done[1], "d", 1) == 1);
    _exit(0);
  }
  expect_exit(pid, "the first descendant");
  close(done[1]);
  char byte;
  REQUIRE(read(done[0], &byte, 1) == 1, "a descendant has ended early");
  pages.check_all("ancestor");
}

TEST_CASE("many-generations") {
  chain_of_generations(nullptr, lunar_test::has_option("--long") ? 100 : 40);
}

// On a file with Lunar's format, each process has a virtual LUN. Those of 15 ancestors stay, with
// the space that each had reserved.
TEST_CASE("generations-on-virtual-luns") {
  char path[] = "/var/tmp/lunar-generations-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0, "%s: %s", path, strerror(errno));
  const int rc = posix_fallocate(file, 0, static_cast<off_t>(4096 * tier::kMega));
  close(file);
  if (rc == 0) chain_of_generations((std::string("file:") + path).c_str(), 50);
  unlink(path);
  if (rc != 0) SKIP("disk-space", strerror(rc));
}

// A timer forks at any place of the main thread, mostly inside the pager: in a discard, a commit,
// an eviction.
volatile sig_atomic_t g_forks_in_handler = 0;

void fork_in_handler(int) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) _exit(4);
  g_forks_in_handler = g_forks_in_handler + 1;
  const itimerval soon{{0, 0}, {0, 1000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
}

TEST_CASE("signal-handler-forks") {
  start();
  std::atomic<uint64_t> progress{0};
  tier::Watchdog watchdog(progress, 20);
  Pages pages(kMemory / 4);
  struct sigaction action{};
  action.sa_handler = fork_in_handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval soon{{0, 0}, {0, 1000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  constexpr int kForks = 100;
  for (uint64_t round = 0; g_forks_in_handler < kForks; ++round) {
    const uint64_t first = round % 4 * (pages.count / 4), count = pages.count / 4;
    REQUIRE(lunar_discard(pages.at(first), count * pages.page) == 0);
    char* more = tier::new_region(4 * tier::kMega);
    for (uint64_t i = 0; i < 4 * tier::kMega; i += pages.page) more[i] = 1;
    REQUIRE(lunar_evict(more, 4 * tier::kMega) >= 0);
    REQUIRE(lunar_region_destroy(more, 4 * tier::kMega) == 0);
    for (uint64_t i = first; i < first + count; ++i)
      pages.write(i, 100 + static_cast<uint32_t>(round));
    progress.fetch_add(1);
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  pages.check_all("the one that forked");
  REQUIRE(tier::validate());
}

// vfork and posix_spawn share the address space until exec: arguments in evicted memory are served
// by the parent's pager.
TEST_CASE("spawn-is-served") {
  start();
  Pages pages(kMemory);
  char* text = pages.at(3);
  auto** arguments = reinterpret_cast<char**>(pages.at(4));
  int out[2];
  for (int round = 0; round < 3; ++round) {
    strcpy(text, "from tiered memory");
    strcpy(text + 100, "/bin/echo");
    arguments[0] = text + 100;
    arguments[1] = text;
    arguments[2] = nullptr;
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(lunar_evict(pages.base, pages.count * pages.page) >= 0);
    pid_t pid = 0;
    if (round == 2) {
      pid = vfork();  // NOLINT(bugprone-unsafe-functions): served, too
      if (pid == 0) {
        dup2(out[1], 1);
        execve(text + 100, arguments, environ);
        _exit(127);
      }
    } else {
      posix_spawn_file_actions_t actions;
      posix_spawn_file_actions_init(&actions);
      posix_spawn_file_actions_adddup2(&actions, out[1], 1);
      REQUIRE(posix_spawn(&pid, text + 100, &actions, nullptr, arguments, environ) == 0);
      posix_spawn_file_actions_destroy(&actions);
    }
    close(out[1]);
    char line[64] = {};
    REQUIRE(read(out[0], line, sizeof line - 1) > 0 && strcmp(line, "from tiered memory\n") == 0,
            "it said '%s'", line);
    close(out[0]);
    expect_exit(pid, "echo");
  }
}

// A prepare handler that was registered before the pager's runs after it, when evictions have
// stopped. Here it waits for a lock (jemalloc's handler does), whose holder waits for DRAM.
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<bool> g_forks{false};
void take_lock() {
  if (!g_forks.load()) return;
  usleep(60000);  // until the others have used up what was left
  pthread_mutex_lock(&g_lock);
}
void give_lock() {
  if (g_forks.load()) pthread_mutex_unlock(&g_lock);
}

TEST_CASE("lock-holder-waits-for-room") {
  REQUIRE(pthread_atfork(take_lock, give_lock, give_lock) == 0);
  start();
  Pages pages(kMemory);
  std::atomic<bool> over{false};
  auto threads = lunar_test::start_threads(4u, [&](unsigned t) {
    Random random(g_seed + t);
    while (!over.load()) {
      if (t == 0) pthread_mutex_lock(&g_lock);
      for (int k = 0; k < 8; ++k) pages.check(random.below(pages.count), "during forks");
      if (t == 0) pthread_mutex_unlock(&g_lock);
    }
  });
  g_forks.store(true);
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    expect_exit(child, "child");
  }
  g_forks.store(false);
  over.store(true);
  threads.clear();
  pages.check_all("parent");
}

// A fork handler that was registered before the pager's touches pages in the child before they are
// served. If one of them is evicted, the child ends with one line, for any number of pages and any
// kind of access.
enum class Early { kNothing, kWrite, kClear, kRead };
Early g_early = Early::kNothing;
std::vector<char*> g_touched_early;

void touch_early() {
  for (size_t i = 0; g_early != Early::kNothing && i < g_touched_early.size(); ++i) {
    char* at = g_touched_early[i] + 1000;
    if (g_early == Early::kRead)
      (void)*const_cast<volatile char*>(at);
    else
      memset(at, g_early == Early::kWrite ? 0xa5 : 0, 100);
  }
}

TEST_CASE("touched-before-it-is-served") {
  REQUIRE(pthread_atfork(nullptr, nullptr, touch_early) == 0);
  start();
  Pages pages(kMemory);
  for (const auto& [early, count, evicted] :
       {std::tuple{Early::kWrite, 1, true}, std::tuple{Early::kWrite, 600, true},
        std::tuple{Early::kClear, 1, true}, std::tuple{Early::kClear, 600, true},
        std::tuple{Early::kRead, 1, true}, std::tuple{Early::kWrite, 600, false}}) {
    g_touched_early.clear();
    for (uint64_t i = 0; g_touched_early.size() < static_cast<size_t>(count); i += 7)
      if (i % 16 != 5) g_touched_early.push_back(pages.at(i));
    for (char* at : g_touched_early) {
      pages.check(static_cast<uint64_t>(at - pages.base) / pages.page, "parent");
      REQUIRE(!evicted || lunar_evict(at, pages.page) >= 0);
    }
    g_early = early;
    int status = 0;
    const auto use = [&] {
      for (char* at : g_touched_early) {
        for (int i = 1000; i < 1100; ++i)
          REQUIRE(at[i] == static_cast<char>(0xa5), "what was written early");
        pages.write(static_cast<uint64_t>(at - pages.base) / pages.page, 9);
      }
      pages.check_all("child");
    };
    const std::string line = lunar_test::stderr_of(use, &status);
    g_early = Early::kNothing;
    const bool refused = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    REQUIRE(
        evicted ? refused && line.find("has touched it in the child") != line.npos : status == 0,
        "early %d on %d pages, evicted %d: status %x, '%s'", static_cast<int>(early), count,
        evicted, status, line.c_str());
    pages.check_all("parent");
  }
}

// Threads touch new pages while a fork goes on. The pages come in write-protected, and are written
// to before the handler that filled them releases them (test_release_delay_us). No thread may wait
// forever.
TEST_CASE("first-touches-beside-forks") {
  start("handlers=4,test_release_delay_us=1000");
  constexpr uint64_t kNew = 128 * tier::kMega;
  const size_t page = lunar_page_bytes();
  Pages pages(kDram / 4 * 3);  // the budget has no room for a copy of them
  char* base = tier::new_region(kNew);
  constexpr unsigned kThreads = 8;
  const uint64_t each = kNew / page / kThreads;
  auto word = [&](unsigned t, uint64_t i) {
    return reinterpret_cast<uint64_t*>(base + (i * kThreads + t) * page);
  };
  std::atomic<bool> stop{false};
  uint64_t touched[kThreads] = {};
  auto threads = lunar_test::start_threads(kThreads, [&](unsigned t) {
    for (uint64_t i = 0; i < each && !stop.load(std::memory_order_relaxed); touched[t] = ++i)
      *word(t, i) += i + 1;
  });
  for (int round = 0; round < (lunar_test::has_option("--long") ? 300 : 60); ++round) {
    usleep(10000);
    expect_exit(
        fork_child([&] { pages.check(static_cast<uint64_t>(round) * 7 % pages.count, "child"); }),
        "child");
  }
  stop.store(true);
  threads.clear();
  for (unsigned t = 0; t < kThreads; ++t)
    for (uint64_t i = 0; i < touched[t]; ++i)
      REQUIRE(*word(t, i) == i + 1, "parent: thread %u's new page", t);
  pages.check_all("parent");
  REQUIRE(tier::validate());
}

// The first touch of a chunk while the kernel copies: its words are in use in the child, as a busy
// page (test_reach_delay_us). The child touches the same pages, and must not wait forever.
TEST_CASE("first-touch-of-a-chunk") {
  start("test_reach_delay_us=20000");
  constexpr uint64_t kChunks = 10;
  const size_t chunk = lunar::kChunkPages * lunar_page_bytes();
  char* base = lunar::region_base(tier::make_charged_on_touch(kChunks));
  auto touch = [&](uint64_t i) { ++*reinterpret_cast<volatile uint64_t*>(base + i * chunk); };
  touch(0);  // also activates
  for (uint64_t i = 1; i < kChunks; ++i) {
    std::thread other = tier::begin_touch([&, i] { touch(i); });
    const pid_t child = fork_child([&] {
      for (uint64_t k = 0; k < kChunks; ++k) touch(k);
      REQUIRE(tier::validate(), "page table of the child");
    });
    expect_exit(child, "child");
    other.join();
  }
  REQUIRE(tier::validate());
}

}  // namespace

TEST_CASE("generations") { generations(); }
