// SPDX-License-Identifier: Apache-2.0
// What fails leaves everything else as it was:
//   no-memory-for-a-page   the kernel has no memory for one page's copy: the handler serves others
//   inbox-full             more threads wait for DRAM than a handler reads messages: it sleeps
//   pin                    a pin that fails leaves earlier pins in its range
//   budget                 a smaller budget that is refused leaves a process inactive
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "pager/fault/inbox.h"
#include "pager/state/state.h"
#include "pager/table/table_promise.h"
#include "stats/counters.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;
using tier::new_region;

std::atomic<uint64_t> g_no_memory_at{0};  // UFFDIO_COPY to this page fails

}  // namespace

// In place of libc's.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (request == UFFDIO_COPY && static_cast<uffdio_copy*>(argument)->dst == g_no_memory_at.load() &&
      g_no_memory_at.load() != 0) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

namespace {

void wait_for(const std::atomic<bool>& done, const char* what) {
  const double end = tier::seconds() + tier::scaled(20);
  for (; !done.load(); usleep(1000)) REQUIRE(tier::seconds() < end, "%s", what);
}

bool is_resident(const char* page) {
  return lunar::pager_page_state(page) == static_cast<int>(lunar::PageState::kResident);
}

// The page leaves its frame as well, because others are evicted to all frames.
void evict_to_lun(char* page, char* others, uint64_t bytes) {
  for (uint64_t round = 1;
       lunar::pager_page_state(page) != static_cast<int>(lunar::PageState::kEvicted); ++round) {
    REQUIRE(round < 20, "the page stays in its frame");
    REQUIRE(lunar_evict(page, lunar_page_bytes()) >= 0);
    for (uint64_t at = 0; at < bytes; at += lunar_page_bytes())
      tier::stamp_write(others + at, lunar_page_bytes(), at, round);
    REQUIRE(lunar_evict(others, bytes) >= 0);
  }
}

TEST_CASE("no-memory-for-a-page") {
  tier::start_tier(32 * kMega, 128 * kMega, nullptr, "handlers=1");
  const size_t page = lunar_page_bytes();
  char *one = new_region(page), *other = new_region(page), *more = new_region(8 * kMega);
  tier::stamp_write(one, page, 1, 1);
  tier::stamp_write(other, page, 2, 1);
  evict_to_lun(one, more, 8 * kMega);
  evict_to_lun(other, more, 8 * kMega);
  g_no_memory_at.store(reinterpret_cast<uint64_t>(one));
  std::atomic<bool> one_came{false}, other_came{false};
  std::thread first([&] {
    (void)*static_cast<volatile char*>(one);
    one_came.store(true);
  });
  usleep(100000);
  std::thread second([&] {
    (void)*static_cast<volatile char*>(other);
    other_came.store(true);
  });
  wait_for(other_came, "a page without memory stops the faults of others");
  REQUIRE(!one_came.load());
  g_no_memory_at.store(0);
  wait_for(one_came, "the page does not come when there is memory");
  first.join();
  second.join();
  REQUIRE(tier::stamp_holds(one, page, 1, 1) && tier::stamp_holds(other, page, 2, 1));
  REQUIRE(tier::validate());
}

uint64_t sleeps_of(int thread_id) {
  char path[64], line[128];
  snprintf(path, sizeof path, "/proc/self/task/%d/status", thread_id);
  FILE* file = fopen(path, "r");
  REQUIRE(file != nullptr, "%s", path);
  unsigned long n = 0;
  while (fgets(line, sizeof line, file) != nullptr)
    if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1) break;
  fclose(file);
  return n;
}

TEST_CASE("inbox-full") {
  constexpr unsigned kThreads = lunar::Inbox::kMax / 2 + 64;
  constexpr int64_t kNoRoom = 1 << 20;
  tier::start_tier(32 * kMega, 128 * kMega, nullptr, "handlers=1");
  const size_t page = lunar_page_bytes();
  auto& state = lunar::pager_state();
  struct Threads {
    char* base;
    std::atomic<unsigned> next{0};
  } shared{new_region(kThreads * page)};
  state.account.take_always(kNoRoom);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  std::vector<pthread_t> threads(kThreads);
  const auto touch = [](void* of) -> void* {
    auto* all = static_cast<Threads*>(of);
    all->base[all->next.fetch_add(1) * lunar_page_bytes()] = 1;
    return nullptr;
  };
  for (pthread_t& thread : threads)
    REQUIRE(pthread_create(&thread, &attributes, touch, &shared) == 0);
  const double end = tier::seconds() + tier::scaled(60);
  for (; lunar::counters().budget_waits.get() <= lunar::Inbox::kMax / 2; usleep(10000))
    REQUIRE(tier::seconds() < end, "%lu messages are parked",
            static_cast<unsigned long>(lunar::counters().budget_waits.get()));
  const int handler = state.services.handler_tids[0].load();
  const uint64_t before = sleeps_of(handler);
  usleep(2000000);
  const uint64_t slept = sleeps_of(handler) - before;
  state.account.give(kNoRoom);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  REQUIRE(slept >= 10, "the handler has slept %lu times in 2 s", slept);
  REQUIRE(tier::validate());
}

TEST_CASE("pin") {
  constexpr uint64_t kPages = 64, kLost = 40, kEarlier = 8;
  tier::start_tier(32 * kMega, 128 * kMega, nullptr, "log_file=/dev/null");
  const size_t page = lunar_page_bytes();
  char *base = new_region(kPages * page), *more = new_region(8 * kMega);
  auto& state = lunar::pager_state();
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  REQUIRE(lunar_pin(base + kEarlier * page, page) == 0);
  const int64_t pinned = state.pinned_pages.load();
  char* lost = base + kLost * page;
  evict_to_lun(lost, more, 8 * kMega);
  lunar::Region* region = lunar::region_find(lost);
  region->table.hash(region->page_of(lost).value) ^= 1;
  REQUIRE(lunar_pin(base, kPages * page) == -EIO);
  REQUIRE(lunar::pager_pinned(base + kEarlier * page), "the earlier pin is gone");
  REQUIRE(state.pinned_pages.load() == pinned, "%ld pages are pinned, not %ld",
          state.pinned_pages.load(), pinned);
  REQUIRE(!lunar::pager_pinned(base) && !lunar::pager_pinned(base + (kPages - 1) * page));
  REQUIRE(lunar_evict(base, kPages * page) >= 0);
  REQUIRE(is_resident(base + kEarlier * page) && !is_resident(base));
}

TEST_CASE("budget") {
  constexpr uint64_t kUnits = 56'000;
  lunar::Options options;
  lunar::ErrorText why;
  REQUIRE(lunar::options_load(&options, environ, &why) == 0, "options: %s", why.text);
  options.dram = 1024 * kMega;
  options.size = 2048 * kMega;
  if (lunar::pager_create(options, &why) < 0) SKIP("userfaultfd", why.text);
  const uint64_t page = lunar::sys::page_bytes(), step = lunar::kLeafPages * page;
  lunar::Region* region = nullptr;
  REQUIRE(lunar::region_create(kUnits * step, lunar::kRegionStrict, &region) == 0);
  for (uint64_t i = 0; i < kUnits; ++i)  // a leaf of the page table for each page
    REQUIRE(lunar::region_charge(region, i * step, page) == 0);
  REQUIRE(!lunar::pager_active());
  REQUIRE(lunar::pager_set_dram(16 * kMega) == -EBUSY, "page tables of more than that may come");
  REQUIRE(!lunar::pager_active(), "a refused budget has activated the process");
  REQUIRE(lunar::pager_budget_pages() == 1024 * kMega / page);
}

}  // namespace
