// SPDX-License-Identifier: Apache-2.0
// fork_in_handler CASE: a signal handler forks in the middle of a range operation. Parent and child
// return from the handler and complete the operation, with the right content and resources of their
// own.
//   first-touches      meanwhile threads make first touches
//   waiting-for-room   the operation waits because there is no DRAM; and how often it looks then
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "pager/evict/evictor.h"
#include "pager/state/state.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;

constexpr uint64_t kDram = 32 * kMega, kMemory = 96 * kMega, kLun = 1024 * kMega;

char* g_base = nullptr;
uint64_t g_page = 0, g_count = 0;
thread_local volatile sig_atomic_t t_in_child = 0;
std::atomic<int> g_made{0}, g_forks{0};  // children, and those that have ended

void check(uint64_t first, uint64_t count, const char* who) {
  for (uint64_t i = first; i < first + count; ++i)
    REQUIRE(tier::stamp_holds(g_base + i * g_page, g_page, i, 1), "%s: page %lu, state %d", who, i,
            lunar::pager_page_state(g_base + i * g_page));
}

void touch(uint64_t first, uint64_t count, const char* who) {
  const int rc = lunar_touch(g_base + first * g_page, count * g_page);
  REQUIRE(rc == 0, "%s: touch: %d", who, rc);
}

void set_up() {
  tier::start_tier(kDram, kLun);
  g_page = lunar_page_bytes();
  g_count = kMemory / g_page;
  g_base = tier::new_region(kMemory);
  for (uint64_t i = 0; i < g_count; ++i) tier::stamp_write(g_base + i * g_page, g_page, i, 1);
}

void fork_and_return(int) {
  const pid_t pid = fork();
  if (pid == 0) {
    t_in_child = 1;
    return;
  }
  ++g_made;
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
    const char text[] = "a child of the handler has failed\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(4);
  }
  ++g_forks;
}

void catch_with_fork() {
  struct sigaction action{};
  action.sa_handler = fork_and_return;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

// In a child: this thread, which has just completed its operation, and others start more of them at
// once.
[[noreturn]] void end_child(uint64_t at) {
  constexpr uint64_t kPart = 64;
  auto others = lunar_test::start_threads(uint64_t{2}, [=](uint64_t t) {
    for (uint64_t n = 0; n < 8; ++n) {
      const uint64_t first = (at + (t * 8 + n + 1) * kPart) % (g_count - kPart);
      touch(first, kPart, "thread of a child");
      check(first, kPart, "thread of a child");
    }
  });
  for (uint64_t n = 0; n < 8; ++n) {
    const uint64_t first = (at + (n + 40) * kPart) % (g_count - kPart);
    touch(first, kPart, "child");
    check(first, kPart, "child");
  }
  others.clear();
  REQUIRE(tier::validate(), "page table of a child");
  _exit(0);
}

void first_touches(uint64_t seed) {
  catch_with_fork();
  std::atomic<uint64_t> progress{0};
  tier::Watchdog watchdog(progress, 20);
  tier::Random random(seed);
  constexpr int kRounds = 80;
  for (int round = 0; round < kRounds; ++round) {
    constexpr uint64_t kPart = 16;
    const uint64_t first = random.below(g_count - kPart), delay_us = random.below(150);
    std::atomic<bool> begins{false};
    std::thread toucher([&, first] {
      begins = true;
      touch(first, kPart, "toucher");
      if (t_in_child != 0) {
        check(first, kPart, "child");
        end_child(first);
      }
    });
    const pthread_t id = toucher.native_handle();
    while (!begins) sched_yield();
    for (const double until = tier::seconds() + static_cast<double>(delay_us) * 1e-6;
         tier::seconds() < until;) {}
    (void)pthread_kill(id, SIGUSR1);
    toucher.join();
    progress.fetch_add(1);
  }
  printf("%d forks\n", g_forks.load());
  check(0, g_count, "parent");
}

uint64_t switches_of(int tid) {
  char path[64], line[128];
  snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
  FILE* file = fopen(path, "r");
  REQUIRE(file != nullptr, "%s: %s", path, strerror(errno));
  unsigned long switches = 0;
  while (fgets(line, sizeof line, file) != nullptr)
    if (sscanf(line, "voluntary_ctxt_switches: %lu", &switches) == 1) break;
  fclose(file);
  return switches;
}

void waiting_for_room() {
  catch_with_fork();
  auto& state = lunar::pager_state();
  std::atomic<int> tid{0};
  state.evictor->pause();  // nothing becomes free any more
  std::thread toucher([&] {
    tid = lunar::sys::thread_id();
    touch(0, g_count / 2, "toucher");
    if (t_in_child != 0) {
      check(0, g_count / 2, "child");
      end_child(0);
    }
  });
  // It waits when nothing changes any longer.
  for (int64_t before = -1, now = 0; tid == 0 || now != before; usleep(100000)) {
    before = now;
    now = lunar::counters().resident.load();
  }
  const uint64_t from = switches_of(tid);
  const double began = tier::seconds();
  sleep(1);
  const double looks = static_cast<double>(switches_of(tid) - from) / (tier::seconds() - began);
  printf("%.0f looks per second\n", looks);
  REQUIRE(looks < 1000, "an operation without room looks %.0f times per second", looks);
  const pthread_t id = toucher.native_handle();
  (void)pthread_kill(id, SIGUSR1);
  while (g_made == 0) usleep(10000);
  state.evictor->resume();
  toucher.join();
  check(0, g_count, "parent");
}

}  // namespace

TEST_CASE("first-touches") {
  set_up();
  first_touches(tier::run_seed());
  REQUIRE(tier::validate());
}
TEST_CASE("waiting-for-room") {
  set_up();
  waiting_for_room();
  REQUIRE(tier::validate());
}
