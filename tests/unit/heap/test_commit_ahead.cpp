// SPDX-License-Identifier: Apache-2.0
// CommitAhead: every page that was asked for is committed once, and nothing else except the rest of
// the block that is begun; also if the commit fails, after gaps, and with several threads.
#include "heap/commit_ahead.h"

#include <atomic>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/support/meanwhile.h"

namespace {

using lunar::CommitAhead;

constexpr uint64_t kBlock = CommitAhead::kBlockPages;
constexpr uint64_t kPages = 4096;

// Counts how often each page is committed; refuses beyond `room` pages.
struct Pages {
  std::vector<std::atomic<int>> times = std::vector<std::atomic<int>>(kPages);
  std::atomic<int64_t> total{0}, room{INT64_MAX};
  std::atomic<unsigned> calls{0};

  bool commit(uint64_t first, uint64_t pages) {
    ++calls;
    if (total.fetch_add(static_cast<int64_t>(pages)) + static_cast<int64_t>(pages) > room) {
      total -= static_cast<int64_t>(pages);
      return false;
    }
    for (uint64_t page = first; page < first + pages; ++page) ++times.at(page);
    return true;
  }
  void forget(uint64_t first, uint64_t pages) {
    total -= static_cast<int64_t>(pages);
    for (uint64_t page = first; page < first + pages; ++page) --times.at(page);
  }
  // Whether exactly the pages of [first, end) are committed, once.
  bool holds(uint64_t first, uint64_t end) const {
    for (uint64_t page = 0; page < kPages; ++page)
      if (times[page] != (page >= first && page < end ? 1 : 0)) return false;
    return total == static_cast<int64_t>(end - first);
  }
};

struct Run {
  CommitAhead ahead;
  Pages pages;
  void start(uint64_t first, uint64_t count) {
    ahead.start(first, count, [this](uint64_t at, uint64_t n) { pages.forget(at, n); });
  }
  bool ask(uint64_t first, uint64_t count) {
    return ahead.commit(
        first, count, [this](uint64_t at, uint64_t n) { return pages.commit(at, n); },
        [this](uint64_t at, uint64_t n) { pages.forget(at, n); });
  }
};

TEST_CASE("pages in sequence are committed a block at a time") {
  Run run;
  run.start(kBlock, 64 * kBlock);
  for (uint64_t page = kBlock; page < 5 * kBlock; ++page) REQUIRE(run.ask(page, 1));
  CHECK(run.pages.calls == 4);
  CHECK(run.pages.holds(kBlock, 5 * kBlock));
  REQUIRE(run.ask(5 * kBlock, 1));
  CHECK(run.pages.holds(kBlock, 6 * kBlock));
  REQUIRE(run.ask(5 * kBlock + 1, 3 * kBlock));  // across blocks
  CHECK(run.pages.holds(kBlock, 9 * kBlock));
  run.start(0, 0);
  CHECK(run.pages.holds(kBlock, 8 * kBlock + 1));
}

TEST_CASE("an extent that is not made of whole blocks is committed as asked for") {
  Run run;
  run.start(3, 64 * kBlock);
  REQUIRE(run.ask(3, 1));
  CHECK(run.pages.holds(3, 4));
  run.start(kBlock, 1);
  REQUIRE(run.ask(4, 1));
  CHECK(run.pages.holds(3, 5));
}

TEST_CASE("a gap, and what lies below the cursor") {
  Run run;
  run.start(0, 64 * kBlock);
  REQUIRE(run.ask(0, 1));
  CHECK(run.pages.holds(0, kBlock));
  REQUIRE(run.ask(4, 2));  // within the block that is begun
  CHECK(run.pages.times[1] == 0);
  CHECK(run.pages.times[3] == 0);
  CHECK(run.pages.times[4] == 1);
  CHECK(run.pages.times[kBlock - 1] == 1);
  REQUIRE(run.ask(1, 3));  // below
  CHECK(run.pages.holds(0, kBlock));
  REQUIRE(run.ask(6, kBlock));
  CHECK(run.pages.holds(0, 2 * kBlock));
  REQUIRE(run.ask(9 * kBlock, 1));  // far above
  run.start(0, 0);
  CHECK(run.pages.total == static_cast<int64_t>(6 + kBlock + 1));
}

TEST_CASE("where a block does not fit any more, what was asked for does") {
  Run run;
  run.start(0, 64 * kBlock);
  run.pages.room = 3;
  for (uint64_t page = 0; page < 3; ++page) REQUIRE(run.ask(page, 1));
  CHECK_FALSE(run.ask(3, 1));
  CHECK(run.pages.holds(0, 3));
  run.pages.room = kPages;
  REQUIRE(run.ask(3, 1));
  CHECK(run.pages.holds(0, kBlock));
}

TEST_CASE("a request from below the cursor to above it") {
  Run run;
  run.start(0, 64 * kBlock);
  REQUIRE(run.ask(0, 3));
  run.pages.forget(0, 3);  // freed: the pages join those above
  REQUIRE(run.ask(0, 5));
  CHECK(run.pages.holds(0, kBlock));
  run.pages.forget(0, 5);
  CHECK(run.pages.holds(5, kBlock));  // and inaccessible, if the kernel counts commits
  REQUIRE(run.ask(0, 3));
  const unsigned calls = run.pages.calls;
  REQUIRE(run.ask(3, 1));
  CHECK(run.pages.calls == calls + 1);
}

// As jemalloc does it: pages come from the low end of what is free; what is given back joins what
// is free next to it.
TEST_CASE("pages that are given back and asked for again in pieces of other sizes") {
  struct Piece {
    uint64_t first, count;
  };
  Run run;
  run.start(0, kPages);
  std::vector<bool> taken(kPages);
  std::vector<Piece> pieces;
  int64_t held = 0;
  unsigned seed = 1;
  const auto random = [&](unsigned below) {
    return (seed = seed * 1664525 + 1013904223) / 65536 % below;
  };
  const auto mark = [&](Piece piece, bool is_taken) {
    held += (is_taken ? 1 : -1) * static_cast<int64_t>(piece.count);
    for (uint64_t page = piece.first; page < piece.first + piece.count; ++page) {
      REQUIRE(run.pages.times[page] == (is_taken ? 1 : 0));
      taken[page] = is_taken;
    }
  };
  for (unsigned step = 0; step < 5000; ++step) {
    if (!pieces.empty() && random(100) < (step / 500 % 2 == 0 ? 30u : 70u)) {
      std::swap(pieces[random(static_cast<unsigned>(pieces.size()))], pieces.back());
      run.pages.forget(pieces.back().first, pieces.back().count);
      mark(pieces.back(), false);
      pieces.pop_back();
    } else {
      const uint64_t count = 1 + random(random(2) == 0 ? 3 : 40);
      uint64_t page = 0, length = 0;
      for (; page < kPages && length < count; ++page) length = taken[page] ? 0 : length + 1;
      if (length < count) continue;
      REQUIRE(run.ask(page - count, count));
      pieces.push_back({page - count, count});
      mark(pieces.back(), true);
    }
    REQUIRE(run.pages.total - held < static_cast<int64_t>(kBlock));
  }
  run.start(0, 0);
  CHECK(run.pages.total == held);
}

// As jemalloc does it: threads take the next pages of one extent, in sequence, and commit them side
// by side.
TEST_CASE("threads") {
  for (unsigned round = 0; round < 200; ++round) {
    Run run;
    run.start(0, kPages);
    std::atomic<uint64_t> next{0};
    constexpr uint64_t kAsked = kPages - 8 * kBlock;
    const auto work = [&](unsigned seed) {
      for (;;) {
        seed = seed * 1664525 + 1013904223;
        const uint64_t count = 1 + (seed >> 20) % 5;
        const uint64_t first = next.fetch_add(count);
        if (first + count > kAsked) return;
        if (!run.ask(first, count)) std::abort();
        if (run.pages.times.at(first) < 1) std::abort();  // committed once it has returned
      }
    };
    lunar_test::in_parallel(4u, [&](unsigned i) { work(round * 4 + i); });
    run.start(0, 0);
    // The space that a thread took last and gave up is uncommitted; the space before it is
    // committed once.
    uint64_t end = kAsked;
    while (end > 0 && run.pages.times[end - 1] == 0) --end;
    REQUIRE(end + 5 >= kAsked);
    REQUIRE(run.pages.holds(0, end));
  }
}

}  // namespace
