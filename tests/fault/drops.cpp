// SPDX-License-Identifier: Apache-2.0
// drops CASE: an eviction drops a batch of pages at once. A page that cannot be dropped or read
// must not be taken for dropped, and must not delay the others.
//
//   locked             a quarter of the pages is locked by raw mlock in runs of odd lengths: these
//                      stay, the others leave
//   locked-denied      the same where seccomp denies process_madvise: neighbours share one madvise
//   denied-later       process_madvise is denied after the pager has used it
//   unreadable         every other page is PROT_NONE: these pages leave DRAM like the others and
//                      come back with their content
#include <sys/mman.h>
#include <sys/syscall.h>

#include "pager/state/state.h"
#include "tests/fault/versioned_pages.h"
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

struct Pages : tier::VersionedPages {
  using VersionedPages::VersionedPages;
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
  Pages pages(16 * tier::kMega);
  pages.write_all(1);
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
    pages.check_all("after an eviction");
    pages.write_all(2 + round);
  }
  // Discarded pages read as zeros, or the call fails.
  int rc = lunar_discard(pages.base, pages.count * g_page);
  REQUIRE(rc == 0, "discard: %d", rc);
  for (uint64_t i = 0; i < pages.count; ++i)
    REQUIRE(tier::stamp_holds(pages.at(i), g_page, i, 0), "page %lu is not empty", i);
  REQUIRE(tier::validate());
}

TEST_CASE("denied-later") {
  const Tier tier;
  Pages pages(64 * tier::kMega);  // twice the budget
  pages.write_all(1);
  deny_process_madvise();
  pages.write_all(2);
  pages.check_all("at the end");
  REQUIRE(tier::validate());
}

TEST_CASE("unreadable") {
  const Tier tier;
  const auto protect = [](char* at, int prot) { REQUIRE(mprotect(at, g_page, prot) == 0); };
  Pages pages(16 * tier::kMega), others(96 * tier::kMega);
  pages.write_all(1);
  for (uint64_t i = 0; i < pages.count; i += 2) protect(pages.at(i), PROT_NONE);
  auto& counted = lunar::counters();
  uint64_t evictions = counted.evictions.get(), batches = counted.batches.get();
  double start = tier::seconds();
  others.write_all(1);
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
  pages.check_all("made accessible");
  others.check_all("others");
  REQUIRE(tier::validate());
}

}  // namespace

TEST_CASE("locked") { keeps_locked_pages(); }
TEST_CASE("locked-denied") {
  deny_process_madvise();
  keeps_locked_pages();
}
