// SPDX-License-Identifier: Apache-2.0
// Foreign ranges against an array of marks, one per page. A reader at the same time never finds a
// range that never existed. LUNAR_SEED=N replays a run.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "pager/page/foreign.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr size_t kPages = 4096, kPage = 4096;
char* const kBase = reinterpret_cast<char*>(0x7000'0000'0000);

char* at(size_t page) { return kBase + page * kPage; }

void same(const ForeignRanges& ranges, const std::vector<bool>& marks) {
  for (size_t page = 0; page < kPages;) {
    size_t end = page + 1;
    while (end < kPages && marks[end] == marks[page]) ++end;
    bool foreign = !marks[page];
    REQUIRE(ranges.run(at(page), at(kPages), &foreign) == at(end));
    REQUIRE(foreign == marks[page]);
    REQUIRE(ranges.overlaps(at(page), kPage) == marks[page]);
    page = end;
  }
}

}  // namespace

TEST_CASE("foreign: ranges are those that were added and not removed") {
  const uint64_t seed = tier::run_seed();
  std::mt19937 random(seed);
  ForeignRanges ranges;
  std::vector<bool> marks(kPages);
  same(ranges, marks);
  for (int step = 0; step < 3000; ++step) {
    const size_t first = random() % kPages, most = random() % 4 == 0 ? kPages / 4 : 3;
    size_t end = first + 1 + random() % most;
    if (end > kPages) end = kPages;
    const bool add = random() % 2 == 0;
    REQUIRE(ranges.reserve() == 0);
    add ? ranges.add(at(first), (end - first) * kPage)
        : ranges.remove(at(first), (end - first) * kPage);
    for (size_t page = first; page < end; ++page) marks[page] = add;
    if (step % 10 == 0) same(ranges, marks);
  }
  size_t seen = 0;
  (void)for_own(ranges, at(0), at(kPages), [&](char*, size_t bytes) {
    seen += bytes / kPage;
    return 0;
  });
  for (const bool mark : marks) seen += mark;
  CHECK(seen == kPages);
}

TEST_CASE("foreign: readers meanwhile") {
  ForeignRanges ranges;
  REQUIRE(ranges.reserve() == 0);
  ranges.add(at(2000), kPage);  // stays; what comes and goes are the even pages
  std::atomic<bool> stop{false};
  std::atomic<unsigned> wrong{0};
  std::thread reader([&] {
    while (!stop)
      if (!ranges.overlaps(at(2000), kPage) || ranges.overlaps(at(2001), kPage) ||
          ranges.overlaps(at(3), kPage))
        ++wrong;
  });
  for (int round = 0; round < 20; ++round) {
    for (size_t page = 0; page < kPages; page += 2) {
      REQUIRE(ranges.reserve() == 0);
      if (page != 2000) ranges.add(at(page), kPage);
    }
    for (size_t page = 0; page < kPages; page += 2) {
      REQUIRE(ranges.reserve() == 0);
      if (page != 2000) ranges.remove(at(page), kPage);
    }
  }
  stop = true;
  reader.join();
  CHECK(wrong == 0);
}
