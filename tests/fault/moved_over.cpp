// SPDX-License-Identifier: Apache-2.0
// moved_over: a raw mremap (MREMAP_FIXED) puts one tiered map over another one, part of whose pages are evicted, are
// being read or are being evicted, while other threads read there and range operations run on both. What was moved is
// whole in its new place, readers see nothing but what one of the two held, and eviction goes on: the budget holds
// afterwards. Without UFFDIO_MOVE (before 6.8) none of this is promised: an eviction there ends by madvise, which no
// event refuses, so it drops what was moved to its place a moment before (LIMITS.md).
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <memory>
#include <thread>
#include <vector>

#include "sys/thread.h"
#include "sys/uffd.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;

constexpr uint64_t kPages = 64;

std::atomic<uint64_t> g_progress{0};

char* new_region(uint64_t bytes) {
  char* base = static_cast<char*>(lunar_region_create(bytes));
  REQUIRE_THAT(base != nullptr, "region: %s", strerror(errno));
  return base;
}

// Pages here and there leave DRAM.
void evict_some(char* base, tier::Random& random) {
  const size_t page = lunar_page_bytes();
  const uint64_t first = random.below(kPages), pages = 1 + random.below(kPages - first);
  REQUIRE_THAT(lunar_evict(base + first * page, pages * page) >= 0, "evict");
}

struct Maps {
  char *from, *to;
  uint64_t source, target, pages;  // what is moved, in pages of the two maps
  uint64_t old_version, new_version;
};

// What a page of the map that is moved to may show.
void reads(const Maps& maps, uint64_t i) {
  const size_t page = lunar_page_bytes();
  uint64_t word;
  __builtin_memcpy(&word, maps.to + i * page, sizeof word);
  const bool is_old = tier::stamp_holds(&word, sizeof word, i, maps.old_version),
             is_new = i - maps.target < maps.pages &&
                      tier::stamp_holds(&word, sizeof word, i - maps.target + maps.source, maps.new_version);
  REQUIRE_THAT(is_old || is_new, "page %lu shows %lx", i, word);
}

void holds_what_was_moved(const Maps& maps) {
  const size_t page = lunar_page_bytes();
  for (uint64_t i = kPages; i-- > 0;) {
    const bool is_moved = i - maps.target < maps.pages;
    REQUIRE_THAT(is_moved ? tier::stamp_holds(maps.to + i * page, page, i - maps.target + maps.source, maps.new_version)
                          : tier::stamp_holds(maps.to + i * page, page, i, maps.old_version),
                 "page %lu is not what it was (%lu pages were moved from %lu to %lu)", i, maps.pages, maps.source,
                 maps.target);
    REQUIRE_THAT(i - maps.source < maps.pages || tier::stamp_holds(maps.from + i * page, page, i, maps.new_version),
                 "page %lu, which was not moved, is not what it was", i);
  }
}

// One move, and threads that use both maps until it is over. The first call of the process that is past the library has
// no eviction of these very pages meanwhile (LIMITS.md).
void round_of(uint64_t round, tier::Random& random) {
  const size_t page = lunar_page_bytes(), bytes = kPages * page;
  const uint64_t pages = random.one_in(2) ? kPages : 1 + random.below(kPages);
  const Maps maps{
      new_region(bytes), new_region(bytes), random.below(kPages - pages + 1), random.below(kPages - pages + 1), pages,
      2 * round + 1,     2 * round + 2};
  for (uint64_t i = 0; i < kPages; ++i) {
    tier::stamp_write(maps.from + i * page, page, i, maps.new_version);
    tier::stamp_write(maps.to + i * page, page, i, maps.old_version);
  }
  if (!random.one_in(4)) evict_some(maps.to, random);
  if (!random.one_in(4)) evict_some(maps.from, random);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  const auto until_over = [&](const auto& body) {
    threads.emplace_back([&over, body] {
      while (!over.load()) body();
    });
  };
  for (uint64_t t = 0; t < 2; ++t)
    until_over([&maps, hand = std::make_shared<tier::Random>(random.next())] { reads(maps, hand->below(kPages)); });
  const uint64_t meanwhile = round == 0 ? 3 : random.below(4);
  if (meanwhile == 0) until_over([&maps, bytes] { (void)lunar_evict(maps.to, bytes); });
  if (meanwhile == 1) until_over([&maps, bytes] { (void)lunar_touch(maps.to, bytes); });
  if (meanwhile == 2) until_over([&maps, bytes] { (void)lunar_evict(maps.from, bytes); });
  const uint64_t start = lunar::sys::now_ns(), wait = random.below(400000);
  while (lunar::sys::now_ns() - start < wait) {}
  char* target = maps.to + maps.target * page;
  const auto moved = reinterpret_cast<char*>(syscall(SYS_mremap, maps.from + maps.source * page, pages * page,
                                                     pages * page, MREMAP_MAYMOVE | MREMAP_FIXED, target));
  REQUIRE_THAT(moved == target, "mremap: %s", strerror(errno));
  if (random.one_in(2)) usleep(static_cast<useconds_t>(random.below(300)));
  over.store(true);
  for (std::thread& thread : threads) thread.join();
  holds_what_was_moved(maps);
  REQUIRE_THAT(munmap(target, pages * page) == 0, "munmap");
  REQUIRE_THAT(lunar_region_destroy(maps.from, bytes) == 0 && lunar_region_destroy(maps.to, bytes) == 0, "destroy");
}

// As the pager asks the kernel.
void need_move() {
  lunar::sys::UffdFeatures features;
  lunar::ErrorText why;
  const int fd = lunar::sys::uffd_open(&features, &why);
  if (fd < 0) tier::skip("userfaultfd", why.text);
  close(fd);
  if (!features.move) tier::skip("uffd-move", "needs Linux 6.8");
}

}  // namespace

int main() {
  need_move();
  tier::start_tier(16 * kMega, 512 * kMega, nullptr, "log=error,handlers=4");
  tier::Random random(tier::announce_seed());
  const tier::Watchdog watchdog(g_progress, 20);
  const size_t page = lunar_page_bytes();
  constexpr uint64_t kOther = 24 * kMega;
  char* other = new_region(kOther);
  uint64_t version = 0;
  for (uint64_t round = 0; round < 300; ++round, ++g_progress) {
    round_of(round, random);
    if (round % 16 != 0) continue;
    ++version;
    for (uint64_t at = 0; at < kOther; at += page) tier::stamp_write(other + at, page, at, version);
    for (uint64_t at = 0; at < kOther; at += page)
      REQUIRE_THAT(tier::stamp_holds(other + at, page, at, version), "page %lu of another map", at / page);
  }
  REQUIRE_THAT(tier::validate(), "page table");
  REQUIRE_THAT(tier::stats().resident_bytes <= 16 * kMega, "the budget is passed");
  fflush(nullptr);
  _exit(0);
}
