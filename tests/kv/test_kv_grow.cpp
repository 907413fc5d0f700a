// SPDX-License-Identifier: Apache-2.0
// A store that is kept takes the rest of a place that became larger, and no crash in between costs
// a pair. The writes are recorded, and the place is opened as each prefix of them could leave it:
// with the last write torn, and those since the last flush lost in part.
#include <errno.h>

#include <string>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using lunar_test::DeviceEvent;

namespace {

constexpr uint64_t kSmall = 4 * kMiB, kLargest = 12 * kMiB;
constexpr int kKeys = 700;

std::string value_of(int i) {
  std::string value;
  kv_test::fill(&value, static_cast<uint64_t>(i), 1, i % 100 == 7 ? 150'000 : 1000);
  return value;
}

// Returns how many pairs are wrong or missing.
int wrong_pairs(Store* store, int keys) {
  int wrong = 0;
  std::string found(200'000, 0);
  for (int i = 0; i < keys; ++i) {
    const std::string key = std::to_string(i), value = value_of(i);
    const int64_t length = store->get(bytes_of(key), found.data(), found.size(), 0);
    wrong +=
        length != static_cast<int64_t>(value.size()) || found.compare(0, value.size(), value) != 0;
  }
  return wrong;
}

void make_small(kv_test::Bed* bed) {
  Store* store = bed->open(Contents::kNew);
  for (int i = 0; i < kKeys; ++i)
    REQUIRE(store->set(bytes_of(std::to_string(i)), bytes_of(value_of(i))) == 0);
  for (int round = 0; round < 2; ++round) REQUIRE(store->flush() == 0);
  bed->close();
}

// grow_place() needs it, and no other open has it.
void open_to_grow(kv_test::Bed* bed, uint64_t bytes) {
  bed->close();
  bed->memory.resize(bytes);
  bed->options.log_bytes_most = UINT64_MAX;
  bed->open(Contents::kExisting);
  bed->options.log_bytes_most = 0;
}

// The image after a crash. Of a write since the last flush that lost() names, all or half is
// absent.
template <class Lost>
void put(const std::vector<DeviceEvent>& events, size_t count, std::vector<char>* image,
         Lost lost) {
  size_t flushed = 0;
  for (size_t i = 0; i < count; ++i)
    if (events[i].kind == DeviceEvent::Kind::kFlush) flushed = i;
  for (size_t i = 0; i < count; ++i) {
    if (events[i].kind != DeviceEvent::Kind::kWrite) continue;
    size_t bytes = events[i].bytes.size();
    if (i > flushed && !events[i].fua) bytes = lost(i) ? 0 : bytes;
    if (i + 1 == count) bytes = bytes / 2 / 512 * 512;
    std::copy_n(events[i].bytes.begin(), bytes,
                image->begin() + static_cast<ptrdiff_t>(events[i].offset));
  }
}

}  // namespace

TEST_CASE("kv-grow: a store takes the rest of a place that became larger, and keeps its pairs") {
  kv_test::Bed bed(kSmall);
  make_small(&bed);
  open_to_grow(&bed, kSmall);
  uint64_t before = bed.store->bytes_allocated();
  CHECK(bed.store->grow_place() == -ENODATA);
  for (const uint64_t bytes : {kSmall + 256 * kKiB, kLargest}) {
    open_to_grow(&bed, bytes);
    REQUIRE(bed.store->grow_place() == 0);
    Store* store = bed.open(Contents::kExisting);
    CHECK(store->bytes_allocated() > before);
    before = store->bytes_allocated();
    CHECK(wrong_pairs(store, kKeys) == 0);
    kv_test::check_store(store);
  }
  Store* store = bed.open(Contents::kExisting);
  int stored = kKeys;
  while (store->set(bytes_of(std::to_string(stored)), bytes_of(value_of(stored))) == 0) ++stored;
  CHECK(stored > 3 * kKeys);
  CHECK(wrong_pairs(store, stored) == 0);
}

TEST_CASE(
    "kv-grow: a crash while it grows leaves the store that it was, or the larger one, with each "
    "pair") {
  kv_test::Bed bed(kSmall);
  make_small(&bed);
  bed.memory.resize(kLargest);
  const std::vector<char> first = bed.memory;
  std::vector<DeviceEvent> events;
  open_to_grow(&bed, kLargest);
  bed.device.record = &events;
  REQUIRE(bed.store->grow_place() == 0);
  bed.close();
  bed.device.record = nullptr;
  REQUIRE(events.size() > 12);
  kv_test::Random random(7);
  uint64_t small = 0, large = 0;
  for (size_t count = 0; count <= events.size(); ++count) {
    for (int way = 0; way < 3; ++way) {
      bed.memory = first;
      put(events, count, &bed.memory, [&](size_t) { return way != 0 && random.below(2) != 0; });
      INFO("event " << count << " of " << events.size() << ", way " << way);
      Store* store = bed.open(Contents::kExisting);
      (store->bytes_allocated() > kSmall ? large : small) += 1;
      REQUIRE(wrong_pairs(store, kKeys) == 0);
      kv_test::check_store(store);
      REQUIRE(store->set(bytes_of("new"), bytes_of("v")) == 0);
      REQUIRE(store->flush() == 0);
      REQUIRE(bed.open(Contents::kExisting)->count() == kKeys + 1);
      bed.close();
    }
  }
  CHECK(small > 10);
  CHECK(large > 3);
}
