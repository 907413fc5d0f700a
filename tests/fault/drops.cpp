// SPDX-License-Identifier: Apache-2.0
// drops MODE: an eviction drops a batch of pages at once, and what cannot be dropped or read must
// neither be taken for dropped nor hold up the rest.
//
//   locked             a quarter of the pages is locked by raw mlock in runs of odd lengths: those
//                      stay, the others leave
//   locked-denied      the same where the kernel has no process_madvise for us (denied by seccomp):
//                      neighbours share one madvise
//   denied-later       process_madvise is denied when the pager has used it already
//   unreadable         every other page is PROT_NONE: they leave DRAM like any other and come back
//                      right
#include <sys/mman.h>
#include <sys/syscall.h>

#include "pager/state/state.h"
#include "tests/support/refused_calls.h"
#include "tests/support/test_tier.h"

namespace {

using lunar::PageState;

std::atomic<uint64_t> g_progress{0};
size_t g_page;

struct Tier {
  Tier() {
    g_page = lunar_page_bytes();
    tier::start_tier(32 * tier::kMega, 512 * tier::kMega);
  }
  tier::Watchdog watchdog{g_progress, 60};
};

void deny_process_madvise() {
  if (!refuse_calls({SYS_process_madvise}, true)) SKIP("seccomp", strerror(errno));
}

struct Pages {
  char* base;
  uint64_t count;
  explicit Pages(uint64_t bytes)
      : base(static_cast<char*>(lunar_region_create(bytes))), count(bytes / g_page) {
    REQUIRE(base != nullptr);
  }
  char* at(uint64_t i) const { return base + i * g_page; }
  void write(uint64_t version) const {
    for (uint64_t i = 0; i < count; ++i, ++g_progress) tier::stamp_write(at(i), g_page, i, version);
  }
  uint64_t wrong(uint64_t version) const {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; ++i, ++g_progress)
      n += !tier::stamp_holds(at(i), g_page, i, version);
    return n;
  }
  PageState state(uint64_t i) const {
    return static_cast<PageState>(lunar::pager_page_state(at(i)));
  }
  uint64_t in_state(PageState s) const {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; ++i) n += state(i) == s;
    return n;
  }
};

// Locked runs of 1 to 16 pages. True: the page is in one.
bool locked_page(uint64_t i) { return i % 61 < 1 + i / 61 % 16; }

void keeps_locked_pages() {
  const Tier tier;
  const Pages pages(16 * tier::kMega);
  pages.write(1);
  uint64_t locked = 0;
  for (uint64_t i = 0; i < pages.count; ++i) {
    if (!locked_page(i)) continue;
    if (syscall(SYS_mlock, pages.at(i), g_page) != 0) SKIP("memlock", strerror(errno));
    ++locked;
  }
  for (unsigned round = 0; round < 3; ++round) {
    int64_t evicted = lunar_evict(pages.base, pages.count * g_page);
    printf("round %u: %lld of %lu pages evicted, %lu are locked\n", round,
           static_cast<long long>(evicted), pages.count, locked);
    for (uint64_t i = 0; i < pages.count; ++i)
      REQUIRE((pages.state(i) == PageState::kResident) == locked_page(i),
              "page %lu is in state %d, locked %d", i, static_cast<int>(pages.state(i)),
              locked_page(i));
    REQUIRE(tier::validate());
    uint64_t wrong = pages.wrong(1 + round);
    REQUIRE(wrong == 0, "%lu of %lu pages are wrong", wrong, pages.count);
    pages.write(2 + round);
  }
  // What is discarded reads as zeros, or the call says that it could not be.
  int rc = lunar_discard(pages.base, pages.count * g_page);
  REQUIRE(rc == 0, "discard: %d", rc);
  for (uint64_t i = 0; i < pages.count; ++i)
    REQUIRE(tier::stamp_holds(pages.at(i), g_page, i, 0), "page %lu is not empty", i);
  REQUIRE(tier::validate());
}

TEST_CASE("denied-later") {
  const Tier tier;
  const Pages pages(64 * tier::kMega);  // twice the budget
  pages.write(1);
  deny_process_madvise();
  pages.write(2);
  REQUIRE(pages.wrong(2) == 0);
  REQUIRE(tier::validate());
}

TEST_CASE("unreadable") {
  const Tier tier;
  const auto protect = [](char* at, int prot) { REQUIRE(mprotect(at, g_page, prot) == 0); };
  const Pages pages(16 * tier::kMega), others(96 * tier::kMega);
  pages.write(1);
  for (uint64_t i = 0; i < pages.count; i += 2) protect(pages.at(i), PROT_NONE);
  auto& counted = lunar::counters();
  uint64_t evictions = counted.evictions.get(), batches = counted.batches.get();
  double start = tier::seconds();
  others.write(1);
  double took = tier::seconds() - start;
  evictions = counted.evictions.get() - evictions;
  batches = counted.batches.get() - batches;
  printf("%.2f s for %lu pages; %lu evictions in %lu batches; %lu of %lu pages stayed\n", took,
         others.count, evictions, batches, pages.in_state(PageState::kResident), pages.count);
  REQUIRE(evictions > 16 * batches, "batches end early");
  REQUIRE(pages.in_state(PageState::kResident) < pages.count / 8,
          "what cannot be read stays in DRAM");
  REQUIRE(lunar_touch(pages.base, pages.count * g_page) == 0);
  (void)lunar_evict(pages.base, pages.count * g_page);
  REQUIRE(pages.in_state(PageState::kResident) == 0, "%lu pages stayed",
          pages.in_state(PageState::kResident));
  for (uint64_t i = 0; i < pages.count; i += 2) protect(pages.at(i), PROT_READ | PROT_WRITE);
  REQUIRE(pages.wrong(1) == 0 && others.wrong(1) == 0);
  REQUIRE(tier::validate());
}

}  // namespace

TEST_CASE("locked") { keeps_locked_pages(); }
TEST_CASE("locked-denied") {
  deny_process_madvise();
  keeps_locked_pages();
}
