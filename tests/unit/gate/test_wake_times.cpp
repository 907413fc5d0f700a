// SPDX-License-Identifier: Apache-2.0
// The wake-ups of the gate's fetch threads that count as late.
#include "adapters/gate/wake_times.h"
#include "tests/catch.h"

using lunar::redis::WakeTimes;

namespace {

constexpr uint64_t kShort = 50'000, kLong = 5'000'000;

// As many wake-ups at `now` as a decision needs, whose requests are taken `after` later.
bool decided(WakeTimes& times, uint64_t after) {
  bool late = false;
  for (unsigned i = 0; i < WakeTimes::kLookedAt; ++i) {
    const uint64_t now = 1'000'000'000 + i * 100'000'000ull;
    times.woken(now, 1);
    times.taken(now + after);
    late = times.late();
  }
  return late;
}

}  // namespace

TEST_CASE("wake-ups that most threads follow late are late") {
  WakeTimes times;
  CHECK_FALSE(decided(times, kShort));
  CHECK(decided(times, kLong));
  CHECK_FALSE(decided(times, kShort));
}

TEST_CASE("the first of several wake-ups counts") {
  WakeTimes times;
  bool late = false;
  for (unsigned i = 0; i < WakeTimes::kLookedAt; ++i) {
    const uint64_t now = 1'000'000'000 + i * 100'000'000ull;
    for (uint64_t later = 0; later < kLong; later += kShort) times.woken(now + later, 1);
    times.taken(now + kLong);
    late = times.late();
  }
  CHECK(late);
}

TEST_CASE("a wake-up whose requests an awake thread has taken is not late") {
  WakeTimes times;
  bool late = false;
  for (unsigned i = 0; i < 4 * WakeTimes::kLookedAt; ++i) {
    const uint64_t now = 1'000'000'000 + i * 100'000'000ull;
    SECTION("before the wake-up") { times.woken(now, 0); }
    SECTION("after it: the woken thread finds nothing") {
      times.woken(now, 1);
      times.nothing_there();
    }
    times.woken(now + kLong, 1);
    times.taken(now + kLong + kShort);
    late = late || times.late();
  }
  CHECK_FALSE(late);
}

TEST_CASE("requests for which no thread was woken do not count") {
  WakeTimes times;
  for (unsigned i = 0; i < 4 * WakeTimes::kLookedAt; ++i) {
    CHECK_FALSE(times.waited_for());
    times.taken(1'000'000'000 + i * kLong);
    CHECK_FALSE(times.late());
  }
}
