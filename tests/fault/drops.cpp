// SPDX-License-Identifier: Apache-2.0
// drops MODE: an eviction drops a batch of pages at once, and what cannot be dropped or read must neither be taken for
// dropped nor hold up the rest.
//
//   locked             a quarter of the pages is locked by raw mlock in runs of odd lengths: those stay, the others
//                      leave
//   locked-denied      the same where the kernel has no process_madvise for us (denied by seccomp): neighbours share
//                      one madvise
//   denied-later       process_madvise is denied when the pager has used it already
//   unreadable         every other page is PROT_NONE: they leave DRAM like any other and come back right
#include <sys/mman.h>
#include <sys/syscall.h>

#include "pager/state/state.h"
#include "tests/support/refused_calls.h"
#include "tests/support/test_tier.h"

namespace {

using lunar::PageState;

std::atomic<uint64_t> g_progress{0};
size_t g_page;

void deny_process_madvise() {
  if (!refuse_calls({SYS_process_madvise}, true)) tier::skip("seccomp", strerror(errno));
}

struct Pages {
  char* base;
  uint64_t count;
  explicit Pages(uint64_t bytes) : base(static_cast<char*>(lunar_region_create(bytes))), count(bytes / g_page) {
    REQUIRE_THAT(base != nullptr, "region: %s", strerror(errno));
  }
  char* at(uint64_t i) const { return base + i * g_page; }
  void write(uint64_t version) const {
    for (uint64_t i = 0; i < count; ++i, ++g_progress) tier::stamp_write(at(i), g_page, i, version);
  }
  uint64_t wrong(uint64_t version) const {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; ++i, ++g_progress) n += !tier::stamp_holds(at(i), g_page, i, version);
    return n;
  }
  PageState state(uint64_t i) const { return static_cast<PageState>(lunar::pager_page_state(at(i))); }
  uint64_t in_state(PageState s) const {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; ++i) n += state(i) == s;
    return n;
  }
};

// Locked runs of 1 to 16 pages. True: the page is in one.
bool locked_page(uint64_t i) { return i % 61 < 1 + i / 61 % 16; }

void keeps_locked_pages() {
  const Pages pages(16 * tier::kMega);
  pages.write(1);
  uint64_t locked = 0;
  for (uint64_t i = 0; i < pages.count; ++i) {
    if (!locked_page(i)) continue;
    if (syscall(SYS_mlock, pages.at(i), g_page) != 0) tier::skip("memlock", strerror(errno));
    ++locked;
  }
  for (unsigned round = 0; round < 3; ++round) {
    int64_t evicted = lunar_evict(pages.base, pages.count * g_page);
    printf("round %u: %lld of %llu pages evicted, %llu are locked\n", round, static_cast<long long>(evicted),
           static_cast<unsigned long long>(pages.count), static_cast<unsigned long long>(locked));
    for (uint64_t i = 0; i < pages.count; ++i)
      REQUIRE_THAT((pages.state(i) == PageState::kResident) == locked_page(i), "page %llu is in state %d, locked %d",
                   static_cast<unsigned long long>(i), static_cast<int>(pages.state(i)), locked_page(i));
    REQUIRE_THAT(tier::validate(), "page table");
    uint64_t wrong = pages.wrong(1 + round);
    REQUIRE_THAT(wrong == 0, "%llu of %llu pages are wrong", static_cast<unsigned long long>(wrong),
                 static_cast<unsigned long long>(pages.count));
    pages.write(2 + round);
  }
  // What is discarded reads as zeros, or the call says that it could not be.
  int rc = lunar_discard(pages.base, pages.count * g_page);
  REQUIRE_THAT(rc == 0, "discard: %d", rc);
  for (uint64_t i = 0; i < pages.count; ++i)
    REQUIRE_THAT(tier::stamp_holds(pages.at(i), g_page, i, 0), "page %llu is not empty",
                 static_cast<unsigned long long>(i));
  REQUIRE_THAT(tier::validate(), "page table");
}

void goes_on_when_denied() {
  const Pages pages(64 * tier::kMega);  // twice the budget
  pages.write(1);
  deny_process_madvise();
  pages.write(2);
  REQUIRE_THAT(pages.wrong(2) == 0, "content");
  REQUIRE_THAT(tier::validate(), "page table");
}

void evicts_unreadable_pages() {
  const auto protect = [](char* at, int prot) {
    REQUIRE_THAT(mprotect(at, g_page, prot) == 0, "mprotect: %s", strerror(errno));
  };
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
  printf("%.2f s for %llu pages; %llu evictions in %llu batches; %llu of %llu pages stayed\n", took,
         static_cast<unsigned long long>(others.count), static_cast<unsigned long long>(evictions),
         static_cast<unsigned long long>(batches),
         static_cast<unsigned long long>(pages.in_state(PageState::kResident)),
         static_cast<unsigned long long>(pages.count));
  REQUIRE_THAT(evictions > 16 * batches, "batches end early");
  REQUIRE_THAT(pages.in_state(PageState::kResident) < pages.count / 8, "what cannot be read stays in DRAM");
  REQUIRE_THAT(lunar_touch(pages.base, pages.count * g_page) == 0, "touch");
  (void)lunar_evict(pages.base, pages.count * g_page);
  REQUIRE_THAT(pages.in_state(PageState::kResident) == 0, "%llu pages stayed",
               static_cast<unsigned long long>(pages.in_state(PageState::kResident)));
  for (uint64_t i = 0; i < pages.count; i += 2) protect(pages.at(i), PROT_READ | PROT_WRITE);
  REQUIRE_THAT(pages.wrong(1) == 0 && others.wrong(1) == 0, "content");
  REQUIRE_THAT(tier::validate(), "page table");
}

}  // namespace

int main(int argc, char** argv) {
  g_page = lunar_page_bytes();
  if (argc > 1 && strcmp(argv[1], "locked-denied") == 0) deny_process_madvise();
  tier::start_tier(32 * tier::kMega, 512 * tier::kMega);
  tier::Watchdog watchdog(g_progress, 60);
  return tier::run_case(argc, argv,
                        {{"locked", keeps_locked_pages},
                         {"locked-denied", keeps_locked_pages},
                         {"denied-later", goes_on_when_denied},
                         {"unreadable", evicts_unreadable_pages}});
}
