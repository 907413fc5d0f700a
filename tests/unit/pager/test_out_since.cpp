// SPDX-License-Identifier: Apache-2.0
// When charges have failed for so long that the process ends.
#include "pager/fault/out_since.h"
#include "tests/catch.h"

using lunar::OutSince;

TEST_CASE("a charge that fails without a success has failed for a while after 200 ms") {
  constexpr uint64_t kStep = OutSince::kTryNs / 4;
  OutSince out;
  uint64_t now = 1'000'000'000;
  for (int i = 0; i <= 4; ++i, now += kStep) CHECK_FALSE(out.failed_for_a_while(now));
  CHECK(out.failed_for_a_while(now));
}

TEST_CASE("a success, or a pause, begins the time anew") {
  constexpr uint64_t kStep = OutSince::kTryNs / 4;
  OutSince out;
  uint64_t now = 1'000'000'000;
  for (int i = 0; i < 20; ++i, now += kStep) {
    CHECK_FALSE(out.failed_for_a_while(now));
    out.succeeded();
  }
  CHECK_FALSE(out.failed_for_a_while(now));
  now += OutSince::kTryNs + 1;
  CHECK_FALSE(out.failed_for_a_while(now));
}
