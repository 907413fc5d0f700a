// SPDX-License-Identifier: Apache-2.0
// Walks over a store on a device, one behaviour a case: walks read in the order of the log, while
// sets, deletes, cleaning and the growth of the index move records.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv/store.h"
#include "superpipe/registry.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::Random;

namespace {

constexpr uint64_t kPlaceBytes = 24 * kMiB, kDramBytes = 5 * kMiB, kValueBytes = 700;

struct OnDevice {
  Store* store = nullptr;
  OnDevice() {
    StoreOptions options;
    options.device = kv_test::open_device("sim:24m", kPlaceBytes);
    options.log_bytes = kPlaceBytes;
    options.segment_bytes = 64 * kKiB;
    options.dram_bytes = kDramBytes;
    options.shards = 4;
    options.expected_keys = 1;
    store = kv_test::open_store(options);
  }
  ~OnDevice() {
    ErrorText why;
    CHECK(store->validate(&why) == 0);
    INFO(why.text);
    CHECK(store->dram_used() <= kDramBytes);
    store->close();
  }
  static std::string key(uint64_t number) { return "key " + std::to_string(number); }
  [[nodiscard]] int set(const std::string& name, uint64_t bytes = kValueBytes) const {
    return store->set(kv_test::bytes_of(name), kv_test::bytes_of(std::string(bytes, 'v')));
  }
  void fill(uint64_t keys, uint64_t bytes = kValueBytes) const {
    for (uint64_t i = 0; i < keys; ++i) REQUIRE(set(key(i), bytes) == 0);
  }
  [[nodiscard]] int64_t del(const std::string& name) const {
    return store->del(kv_test::bytes_of(name));
  }
};

struct Steps {  // one walk, and how often it gave what
  Walk* walk = nullptr;
  std::map<std::string, unsigned> seen;
  bool over = false;
  explicit Steps(const OnDevice& kv) { REQUIRE(Walk::open(kv.store, &walk) == 0); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  ~Steps() { walk->close(); }
  void go(uint64_t steps = UINT64_MAX) {
    std::vector<char> name(100'000);
    for (uint64_t i = 0; i < steps && !over; ++i) {
      const int64_t peeked = walk->peek(), length = walk->next(name.data(), name.size());
      REQUIRE(peeked == length);
      over = length == -ENOENT;
      REQUIRE((over || length >= 0));
      if (!over)
        // cut
        ++seen[std::string(name.data(), std::min(static_cast<uint64_t>(length), name.size()))];
    }
  }
  // How many of the keys [0, keys) did not come `times` times.
  [[nodiscard]] uint64_t others(uint64_t keys, unsigned times = 1) const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < keys; ++i) {
      const auto found = seen.find(OnDevice::key(i));
      count += (found == seen.end() ? 0 : found->second) != times ? 1 : 0;
    }
    return count;
  }
};

}  // namespace

TEST_CASE("kv-walk: cold records are read by segments, once, and each key comes once") {
  const OnDevice kv;
  kv.fill(20'000);
  const uint64_t before = kv.store->device_ios();
  Steps steps(kv);
  steps.go();
  CHECK(steps.seen.size() == 20'000);
  CHECK(steps.others(20'000) == 0);
  CHECK(kv.store->device_ios() - before <= kPlaceBytes / (64 * kKiB));
}

TEST_CASE(
    "kv-walk: keys that are set again while a walk is under way come once, before or behind where "
    "it is") {
  const OnDevice kv;
  kv.fill(14'000);
  Random random(1);
  Steps steps(kv);
  for (uint64_t round = 0; round < 70; ++round) {
    steps.go(200);
    for (uint64_t i = 0; i < 900; ++i) REQUIRE(kv.set(OnDevice::key(random.below(14'000))) == 0);
  }
  steps.go();
  CHECK(kv.store->cleaned_bytes() > 0);
  CHECK(steps.others(14'000) == 0);
}

TEST_CASE("kv-walk: keys that cleaning moves while a walk is under way come once") {
  const OnDevice kv;
  kv.fill(20'000);
  for (uint64_t i = 0; i < 20'000; i += 2) REQUIRE(kv.del(OnDevice::key(i)) >= 0);
  Steps steps(kv);
  steps.go(3000);
  REQUIRE(kv.store->compact() == 0);
  CHECK(kv.store->cleaned_bytes() > 2 * kMiB);
  for (uint64_t i = 0; i < 8000; ++i)
    REQUIRE(kv.set("later " + std::to_string(i)) == 0);  // where the others lay
  steps.go();
  for (uint64_t i = 0; i < 20'000; ++i) {
    const bool given = steps.seen.count(OnDevice::key(i)) != 0;
    if (given != (i % 2 == 1)) FAIL_CHECK(OnDevice::key(i));
  }
  for (const auto& [name, times] : steps.seen)
    if (times != 1) FAIL_CHECK(name);
}

TEST_CASE("kv-walk: the index may grow many times while a walk is under way") {
  const OnDevice kv;
  kv.fill(6000, 2000);
  Steps steps(kv);
  steps.go(4000);  // their marks move with the entries
  for (uint64_t i = 0; i < 60'000; ++i) {
    REQUIRE(kv.set("new " + std::to_string(i), 8) == 0);
    if (i % 40 == 0) steps.go(1);
  }
  steps.go();
  CHECK(steps.others(6000) == 0);
  for (const auto& [name, times] : steps.seen)
    if (times != 1) FAIL_CHECK(name);
}

TEST_CASE("kv-walk: large pairs and long keys come with the others") {
  const OnDevice kv;
  const std::string longest(90'000, 'k');
  kv.fill(10'000);
  REQUIRE(kv.set(longest, 10) == 0);
  REQUIRE(kv.set("large value", 200'000) == 0);
  REQUIRE(kv.set(std::string(3000, 'm'), 10) == 0);
  for (uint64_t i = 10'000; i < 18'000; ++i) REQUIRE(kv.set(OnDevice::key(i)) == 0);
  Steps steps(kv);
  steps.go();
  CHECK(steps.others(18'000) == 0);
  CHECK(steps.seen.size() == 18'003);
  CHECK(steps.seen[longest] == 1);
  CHECK(steps.seen["large value"] == 1);
}

TEST_CASE(
    "kv-walk: a walk of a store with an empty log, and of one that nothing has left DRAM of") {
  const OnDevice kv;
  Steps none(kv);
  none.go();
  CHECK(none.seen.empty());
  kv.fill(3);
  Steps few(kv);
  few.go();
  CHECK(few.seen.size() == 3);
}

TEST_CASE(
    "kv-walk: walks that are left half-way give their buffers and marks back, to walks as fast as "
    "ever") {
  const OnDevice kv;
  kv.fill(20'000);
  for (unsigned i = 0; i < 3 * Index::kMarkers; ++i) {
    Steps left(kv);
    left.go(i * 2000);
  }
  const uint64_t before = kv.store->device_ios();
  Steps steps(kv);
  steps.go();
  CHECK(steps.others(20'000) == 0);
  CHECK(kv.store->device_ios() - before <= kPlaceBytes / (64 * kKiB));
}

TEST_CASE(
    "kv-walk: five walks at a time read by segments, and one beyond them, record by record, gives "
    "all as well") {
  constexpr uint64_t kKeys = 20'000, kSegments = kPlaceBytes / (64 * kKiB);
  const OnDevice kv;
  kv.fill(kKeys);
  std::vector<std::unique_ptr<Steps>> walks;
  uint64_t before = kv.store->device_ios();
  for (unsigned i = 0; i < 5; ++i) walks.push_back(std::make_unique<Steps>(kv));
  for (unsigned round = 0; round < 5; ++round)
    for (auto& walk : walks) walk->go(round < 4 ? 1000 : UINT64_MAX);
  for (const auto& walk : walks) CHECK(walk->others(kKeys) == 0);
  const uint64_t by_segments = (kv.store->device_ios() - before) / walks.size();
  CHECK(by_segments <= kSegments);
  before = kv.store->device_ios();
  Steps beyond(kv);
  beyond.go();
  CHECK(beyond.others(kKeys) == 0);
  const uint64_t by_records = kv.store->device_ios() - before;
  INFO("reads a walk of " << kKeys << " keys: " << by_segments << " by segments, " << by_records
                          << " by records");
  CHECK(by_records <= kKeys);
}

TEST_CASE(
    "kv-walk: more walks at a time than there are marks, each at its own pace, among writers") {
  const OnDevice kv;
  kv.fill(9000);
  for (uint64_t i = 9000; i < 12'000; ++i) REQUIRE(kv.set(OnDevice::key(i)) == 0);
  Random random(kv_test::mix(7));
  constexpr unsigned kWalks = Index::kMarkers + 2;
  std::vector<std::unique_ptr<Steps>> walks;
  for (unsigned i = 0; i < kWalks; ++i) walks.push_back(std::make_unique<Steps>(kv));
  unsigned ended = 0, begun = kWalks;
  while (ended < 2 * kWalks) {
    const uint64_t turn = random.below(kWalks);
    walks[turn]->go(random.below(400) * (turn + 1));
    for (uint64_t i = 0; i < 30; ++i)
      REQUIRE(kv.set(OnDevice::key(random.below(9000)), 500 + random.below(500)) == 0);
    for (uint64_t i = 0; i < 5; ++i) {
      const std::string name = OnDevice::key(9000 + random.below(3000));
      if (random.below(2))
        REQUIRE(kv.set(name) == 0);
      else
        REQUIRE(kv.del(name) >= -ENOENT);
    }
    CHECK(kv.store->dram_used() <= kDramBytes);
    if (!walks[turn]->over) continue;
    CHECK(walks[turn]->others(9000) == 0);
    ++ended;
    if (begun++ < 4 * kWalks) walks[turn] = std::make_unique<Steps>(kv);
  }
}

TEST_CASE("kv-walk: where the budget leaves no buffers a walk reads record by record") {
  const OnDevice kv;
  uint64_t keys = 0;
  while (kv.set(OnDevice::key(keys), 1) == 0) ++keys;  // until the index is as large as it may be
  REQUIRE(kv.store->bytes_in_use() < kPlaceBytes / 4 * 3);
  const uint64_t before = kv.store->device_ios();
  Steps steps(kv);
  steps.go();
  CHECK(steps.others(keys) == 0);
  CHECK(kv.store->device_ios() - before > keys / 4);
}

TEST_CASE("kv-walk: memory of a long key is given back when the walk goes on") {
  constexpr uint64_t kLong = 12 * kMiB;
  // Uses no heap memory: AddressSanitizer keeps freed memory, which would count.
  const auto resident = [] {
    unsigned long long pages = 0;
    char text[100] = "";
    const int file = open("/proc/self/statm", O_RDONLY);
    const bool is_read =
        file >= 0 && read(file, text, sizeof text - 1) > 0 && sscanf(text, "%*u %llu", &pages) == 1;
    if (file >= 0) (void)close(file);
    if (!is_read) FAIL("statm");
    return pages * 4096;
  };
  const OnDevice kv;
  kv.fill(3000);
  REQUIRE(kv.set(std::string(kLong, 'k'), 1) == 0);
  for (uint64_t key = 3000; key < 3300; ++key)
    REQUIRE(kv.set(OnDevice::key(key), 1) == 0);  // come behind it
  Steps before(kv);
  before.go();
  Walk* walk = nullptr;
  REQUIRE(Walk::open(kv.store, &walk) == 0);
  const uint64_t at_first = resident();
  uint64_t most = 0, last = 0;
  char name[100];
  for (int64_t length; (length = walk->next(name, sizeof name)) != -ENOENT;) {
    if (length < 0) FAIL("walk");
    last = resident() > at_first ? resident() - at_first : 0;
    most = std::max(most, last);
  }
  walk->close();
  CHECK(most >= kLong);
  CHECK(last < kLong / 2);
}
