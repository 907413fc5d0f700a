// SPDX-License-Identifier: Apache-2.0
// The gate's own tables: hold times by quantile, prefixes of keys.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "adapters/gate/hold_times.h"
#include "adapters/gate/prefixes.h"
#include "tests/catch.h"
#include "tests/support/seed.h"

using namespace lunar::redis;

namespace {

std::string prefix(const std::string& key) {
  return key.substr(0, Prefixes::prefix_of({key.data(), key.size()}));
}

void note(Prefixes& prefixes, const std::string& key, bool cold) {
  prefixes.sample({key.data(), key.size()}, cold);
}

PrefixUse find(const Prefixes& prefixes, const std::string& text) {
  static PrefixUse all[Prefixes::kMost];
  uint64_t samples;
  const unsigned count = prefixes.copy(all, &samples);
  for (unsigned i = 0; i < count; ++i)
    if (std::string(all[i].text, all[i].bytes) == text) return all[i];
  return {};
}

}  // namespace

TEST_CASE("hold times: each bucket begins where the one before ends") {
  uint64_t from = 0;
  for (unsigned b = 0; b < HoldTimes::kBuckets; ++b) {
    const uint64_t most = HoldTimes::most_ns(b);
    REQUIRE(most > from);
    CHECK(HoldTimes::bucket_of(from) == b);
    CHECK(HoldTimes::bucket_of(most - 1) == b);
    from = most;
  }
  CHECK(HoldTimes::bucket_of(UINT64_MAX) == HoldTimes::kBuckets - 1);
  CHECK(from > 15'000'000'000);  // ns
}

TEST_CASE("hold times: the quantile is the one sorting gives, to a fifth") {
  const uint64_t seed = tier::run_seed();
  std::mt19937_64 random(seed);
  HoldTimes before;
  for (int i = 0; i < 1000; ++i) before.add(1'000'000'000);  // of another time
  HoldTimes times = before;
  std::vector<uint64_t> list;
  for (int i = 0; i < 5000; ++i) {
    list.push_back(20'000 + random() % (uint64_t{1} << (15 + random() % 15)));
    times.add(list.back());
  }
  std::sort(list.begin(), list.end());
  for (double part : {0.5, 0.9, 0.99}) {
    const auto right = static_cast<double>(list[static_cast<size_t>(part * 5000) - 1]);
    const auto told = static_cast<double>(times.quantile_ns(before, part));
    CHECK(told >= right);
    CHECK(told <= right * 1.26);
  }
  CHECK(times.quantile_ns(times, 0.99) == 0);
}

TEST_CASE("prefixes: up to the first colon or digit") {
  CHECK(prefix("user:1000:cart") == "user:");
  CHECK(prefix("key17") == "key");
  CHECK(prefix("17").empty());
  CHECK(prefix("").empty());
  CHECK(prefix("session") == "session");
}

TEST_CASE("prefixes: a frequent prefix stays among names that come once") {
  Prefixes prefixes;
  for (int i = 0; i < 20000; ++i) {
    note(prefixes, "often:" + std::to_string(i), i % 4 == 0);
    std::string once = "x";
    for (int n = i; n != 0; n /= 16) once += static_cast<char>('a' + n % 16);
    for (int repeat = 0; repeat < 3; ++repeat)
      note(prefixes, once + std::string(static_cast<size_t>(repeat), 'z'), true);
  }
  const PrefixUse often = find(prefixes, "often:");
  CHECK(often.samples > 15000);
  CHECK(often.cold * 4 <= often.samples + 4);
  CHECK(often.cold * 5 >= often.samples);
  prefixes.age();
  CHECK(find(prefixes, "often:").samples == often.samples / 2);
  for (int i = 0; i < 20; ++i) prefixes.age();
  PrefixUse all[Prefixes::kMost];
  uint64_t samples = 1;
  CHECK(prefixes.copy(all, &samples) == 0);
  CHECK(samples == 0);
}

TEST_CASE("prefixes: long ones are cut, any bytes are taken") {
  Prefixes prefixes;
  const std::string most(PrefixUse::kBytes, 'a');
  note(prefixes, most, false);
  note(prefixes, most + "b", false);
  note(prefixes, most + std::string(1000, 'c'), true);
  note(prefixes, std::string("\0\xff", 2), false);
  uint64_t samples;
  PrefixUse all[Prefixes::kMost];
  CHECK(prefixes.copy(all, &samples) == 3);
  CHECK(samples == 4);
  CHECK(find(prefixes, std::string("\0\xff", 2)).samples == 1);
}
