// SPDX-License-Identifier: Apache-2.0
// Streams: what a pattern of faults makes the handler read ahead. LUNAR_SEED=N replays a run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "pager/fault/streams.h"
#include "tests/catch.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr unsigned kWindowMax = 64;
constexpr int kThread = 4321;

struct Walk {
  Streams streams;
  Region one, other;
  ReadAhead fault(uint64_t page, int thread = kThread, bool first_touch = false) {
    return streams.on_fault(thread, &one, page, first_touch);
  }
  // Faults of a reader that finds each window in memory, so the next fault is behind the last
  // window. Returns the last answer.
  ReadAhead follow(uint64_t page, int64_t stride, unsigned faults, int thread = kThread) {
    ReadAhead ahead;
    for (unsigned i = 0; i < faults; ++i) {
      ahead = fault(page, thread);
      page += static_cast<uint64_t>(stride * static_cast<int64_t>(ahead.window));
    }
    return ahead;
  }
};

}  // namespace

TEST_CASE("the first fault of a thread reads nothing ahead") {
  Walk walk;
  CHECK(walk.fault(0).window == 1);
  Walk far;
  CHECK(far.fault(uint64_t{1} << 40).window == 1);
}

TEST_CASE("a walk doubles its window up to 64 pages and stays there") {
  for (const int64_t stride : {int64_t{1}, int64_t{-1}, int64_t{7}, int64_t{-7}, int64_t{64}}) {
    Walk walk;
    uint64_t page = 1'000'000;
    unsigned last = 0, most = 0;
    for (int i = 0; i < 20; ++i) {
      const ReadAhead ahead = walk.fault(page);
      INFO("stride " << stride << ", fault " << i << ", window " << ahead.window << " after "
                     << last);
      REQUIRE(ahead.window >= 1);
      REQUIRE(ahead.window <= kWindowMax);
      if (i > 2) {
        REQUIRE(ahead.stride == stride);
        REQUIRE((ahead.window == 2 * last || (last == kWindowMax && ahead.window == last)));
      }
      last = ahead.window;
      most = last > most ? last : most;
      page += static_cast<uint64_t>(stride * static_cast<int64_t>(ahead.window));
    }
    CHECK(most == kWindowMax);
  }
}

TEST_CASE("a fault that the last window should have covered starts over") {
  Walk walk;
  walk.follow(1000, 1, 8);
  // The page before the end of the last window was read and evicted again. A fault on it does not
  // show that a walk goes on.
  Walk inside;
  uint64_t page = 1000;
  ReadAhead ahead;
  for (int i = 0; i < 6; ++i, page += ahead.window) ahead = inside.fault(page);
  CHECK(ahead.window > 1);
  CHECK(inside.fault(page - 1).window == 1);
  CHECK(walk.fault(5'000'000).window == 1);  // and a jump does
}

TEST_CASE("a walk goes on over pages that were in memory, as far as the slack") {
  for (const auto& [stride, slack] :
       {std::pair{int64_t{1}, 32}, std::pair{int64_t{-1}, 32}, std::pair{int64_t{5}, 4}}) {
    for (const int beyond : {0, slack, slack + 1}) {
      Walk walk;
      uint64_t page = 1'000'000;
      ReadAhead ahead;
      for (int i = 0; i < 5;
           ++i, page += static_cast<uint64_t>(stride * static_cast<int64_t>(ahead.window)))
        ahead = walk.fault(page);
      REQUIRE(ahead.window > 1);
      const ReadAhead after = walk.fault(page + static_cast<uint64_t>(stride * beyond));
      INFO("stride " << stride << ", " << beyond << " steps beyond the window");
      CHECK(after.window == (beyond <= slack ? 2 * ahead.window : 1));
    }
  }
}

TEST_CASE("a step that is no multiple of the stride ends the walk") {
  Walk walk;
  uint64_t page = 9000;
  ReadAhead ahead;
  for (int i = 0; i < 4; ++i, page += 6 * ahead.window) ahead = walk.fault(page);
  REQUIRE(ahead.stride == 6);
  REQUIRE(ahead.window > 1);
  CHECK(walk.fault(page + 1).window == 1);
}

TEST_CASE("the same page again is no walk") {
  Walk walk;
  for (int i = 0; i < 10; ++i) CHECK(walk.fault(500).window == 1);
}

TEST_CASE("a filling run and a reading run of one thread do not disturb each other") {
  Walk walk;
  uint64_t read_at = 10'000, fill_at = 90'000'000;
  ReadAhead reading, filling;
  for (int i = 0; i < 12; ++i) {
    reading = walk.fault(read_at, kThread, false);
    filling = walk.fault(fill_at, kThread, true);
    read_at += reading.window;
    fill_at += filling.window;
  }
  CHECK(reading.window == kWindowMax);
  CHECK(filling.window == kWindowMax);
}

TEST_CASE("threads do not disturb each other, and one that moved to another region starts over") {
  Walk walk;
  CHECK(walk.follow(1000, 1, 10, 1).window == kWindowMax);
  CHECK(walk.fault(77, 2).window == 1);
  Walk two;
  uint64_t page = 0;
  ReadAhead ahead;
  for (int i = 0; i < 10; ++i, page += ahead.window)
    ahead = two.streams.on_fault(kThread, &two.one, page, false);
  REQUIRE(ahead.window == kWindowMax);
  CHECK(two.streams.on_fault(kThread, &two.other, page, false).window ==
        1);  // though its number would go on
}

TEST_CASE("more threads than entries: the walks that are at work keep theirs") {
  Walk walk;
  uint64_t page = 1000;
  ReadAhead ahead;
  for (int i = 0; i < 200; ++i, page += ahead.window) {
    ahead = walk.fault(page);
    walk.fault(static_cast<uint64_t>(i) * 100'000, 100'000 + i);  // each of these once
  }
  CHECK(ahead.window == kWindowMax);
}

TEST_CASE(
    "property: random faults are hardly ever read ahead of, and no answer leaves its bounds") {
  std::mt19937_64 random(tier::run_seed());
  Walk walk;
  constexpr int kFaults = 100'000;
  uint64_t ahead = 0;
  for (int i = 0; i < kFaults; ++i) {
    const ReadAhead got =
        walk.fault(random() % (uint64_t{1} << 24), static_cast<int>(random() % 4));
    REQUIRE(got.window >= 1);
    REQUIRE(got.window <= kWindowMax);
    REQUIRE(got.stride != 0);
    REQUIRE((got.stride > -65 && got.stride < 65));
    ahead += got.window - 1;
  }
  CHECK(ahead < kFaults / 100);
}

TEST_CASE("property: thread ids of every kind are told apart from an entry that is not in use") {
  for (const int thread : {0, 1, -1, INT32_MAX, INT32_MIN, 1 << 22}) {
    Walk walk;
    INFO("thread " << thread);
    CHECK(walk.fault(0, thread, true).window == 1);
    CHECK(walk.follow(1000, 1, 10, thread).window == kWindowMax);
  }
}
