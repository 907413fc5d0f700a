// SPDX-License-Identifier: Apache-2.0
// dram_cap: the DRAM budget holds at every moment of a burst, by the pager's own account and by the
// kernel's count.
//
// Idea. Sixteen threads write, read, prefetch, touch and pin eight times the budget, while a
// sampler looks without a pause. What is charged never exceeds the cap, and the resident set of the
// process grows by little more than the cap. Then the budget changes under load: when
// lunar_set_dram returns, the new cap holds. LUNAR_SEED=N replays the choices. `--seconds N`: the
// length of the burst.
#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "pager/state/state.h"
#include "tests/support/test_tier.h"

namespace {

using tier::Random;

constexpr uint64_t kMemory = 384 * tier::kMega, kDram = 48 * tier::kMega;
constexpr unsigned kThreads = 16;
constexpr uint64_t kSlack = 8 * tier::kMega;  // stacks and heap of the test itself

std::atomic<uint64_t> g_done{0};
std::atomic<bool> g_stop{false};

uint64_t resident_set() {  // anonymous and file pages of this process, bytes
  char text[128] = {};
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  (void)!read(fd, text, sizeof text - 1);
  close(fd);
  unsigned long size = 0, resident = 0;
  sscanf(text, "%lu %lu", &size, &resident);
  return resident * lunar_page_bytes();
}

void work(char* base, uint64_t pages, uint64_t seed) {
  Random random(seed);
  size_t page = lunar_page_bytes();
  while (!g_stop.load(std::memory_order_relaxed)) {
    uint64_t i = random.below(pages - 64);
    switch (random.below(8)) {
      case 0:
        REQUIRE(lunar_touch(base + i * page, 64 * page) == 0);
        break;
      case 1: {
        lunar_range ranges[32];
        for (lunar_range& range : ranges) range = {base + random.below(pages) * page, page};
        REQUIRE(lunar_prefetch(ranges, 32) == 0);
        break;
      }
      case 2: {
        int rc = lunar_pin(base + i * page, 4 * page);
        REQUIRE(rc == 0 || rc == -ENOMEM, "pin: %d", rc);
        if (rc == 0) REQUIRE(lunar_unpin(base + i * page, 4 * page) == 0);
        break;
      }
      case 3:
        for (uint64_t k = 0; k < 64; ++k)
          *reinterpret_cast<volatile uint64_t*>(base + (i + k) * page) = k + 1;
        break;
      default:
        *reinterpret_cast<volatile uint64_t*>(base + i * page) = i + 1;
    }
    g_done.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

TEST_CASE("dram-cap") {
  const double burst_s = static_cast<double>(lunar_test::option("--seconds", 4));
  uint64_t seed = tier::run_seed();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  uint64_t before = resident_set();
  tier::start_tier(kDram, 4 * kMemory);
  size_t page = lunar_page_bytes();
  char* base = tier::new_region(kMemory);
  tier::Watchdog watchdog(g_done, 60);
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back(work, base, kMemory / page, seed * 32 + t);
  uint64_t used_peak = 0, resident_peak = 0, samples = 0, cap = kDram;
  auto sample = [&] {
    uint64_t used = tier::stats().dram_used_bytes, resident = resident_set();
    used_peak = std::max(used_peak, used);
    resident_peak = std::max(resident_peak, resident - std::min(resident, before));
    ++samples;
    usleep(50);
    REQUIRE(used <= cap, "charged %lu of %lu bytes", used, cap);
    REQUIRE(resident <= before + cap + kSlack, "resident set %lu KiB, before the tier %lu, cap %lu",
            resident >> 10, before >> 10, cap >> 10);
  };
  for (double end = tier::seconds() + burst_s; tier::seconds() < end;) sample();
  printf(
      "burst: charged at most %lu KiB of %lu, resident set grew by %lu KiB at most, %lu samples, "
      "%lu operations\n",
      used_peak >> 10, kDram >> 10, resident_peak >> 10, samples, g_done.load());
  REQUIRE(used_peak > kDram / 2, "the budget was hardly used: nothing was proven");
  for (uint64_t megabytes : {32, 64, 40, 24, 48}) {
    uint64_t next = megabytes * tier::kMega;
    int rc = lunar_set_dram(next);
    REQUIRE(rc == 0, "lunar_set_dram(%lu MiB): %d", megabytes, rc);
    cap = next;
    for (double end = tier::seconds() + 0.5; tier::seconds() < end;) sample();
  }
  REQUIRE(lunar_set_dram(1 * tier::kMega) == -EINVAL, "a budget of 1 MiB was taken");
  g_stop.store(true);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(tier::validate());
}
