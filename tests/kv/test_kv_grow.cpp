// SPDX-License-Identifier: Apache-2.0
// A store that is kept takes the rest of a place that became larger, and no crash in between costs
// a pair: the writes are recorded, and the place is opened as each prefix of them leaves it, the
// last one torn, those since the last flush in part lost.
// Threading: one thread.
#include <errno.h>

#include <string>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using lunar_test::DeviceEvent;
using lunar_test::MemoryDevice;

namespace {

constexpr uint64_t kSmall = 4 * kMiB, kLargest = 12 * kMiB;
constexpr int kKeys = 700;

StoreOptions options_for(Device* device, Contents contents) {
  StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.log_bytes = 0;
  options.dram_bytes = 4 * kMiB;
  options.shards = 2;
  options.expected_keys = 16;
  return options;
}

std::string value_of(int i) {
  std::string value;
  kv_test::fill(&value, static_cast<uint64_t>(i), 1, i % 100 == 7 ? 150'000 : 1000);
  return value;
}

// Wrong or missing pairs.
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

void make_small(std::vector<char>* memory) {
  MemoryDevice device(memory->data(), kSmall);
  Store* store = kv_test::open_store(options_for(&device, Contents::kNew));
  for (int i = 0; i < kKeys; ++i)
    REQUIRE(store->set(bytes_of(std::to_string(i)), bytes_of(value_of(i))) == 0);
  for (int round = 0; round < 2; ++round) REQUIRE(store->flush() == 0);
  store->close();
}

// What a crash leaves of them: a write since the last flush that lost() names is not there, or only
// half of it.
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
  std::vector<char> memory(kLargest);
  make_small(&memory);
  uint64_t before = 0;
  {
    MemoryDevice device(memory.data(), kSmall);
    StoreOptions options = options_for(&device, Contents::kKept);
    options.log_bytes_most = UINT64_MAX;
    Store* store = kv_test::open_store(options);
    before = store->bytes_allocated();
    CHECK(store->grow_place() == -ENODATA);
    store->close();
  }
  for (const uint64_t bytes : {kSmall + 256 * kKiB, kLargest}) {
    MemoryDevice device(memory.data(), bytes);
    StoreOptions options = options_for(&device, Contents::kKept);
    options.log_bytes_most = UINT64_MAX;
    Store* store = kv_test::open_store(options);
    REQUIRE(store->grow_place() == 0);
    store->close();
    MemoryDevice again(memory.data(), bytes);
    store = kv_test::open_store(options_for(&again, Contents::kKept));
    CHECK(store->bytes_allocated() > before);
    before = store->bytes_allocated();
    CHECK(wrong_pairs(store, kKeys) == 0);
    ErrorText why;
    CHECK(store->validate(&why) == 0);
    store->close();
  }
  MemoryDevice device(memory.data(), kLargest);
  Store* store = kv_test::open_store(options_for(&device, Contents::kKept));
  int stored = kKeys;
  while (store->set(bytes_of(std::to_string(stored)), bytes_of(value_of(stored))) == 0) ++stored;
  CHECK(stored > 3 * kKeys);
  CHECK(wrong_pairs(store, stored) == 0);
  store->close();
}

TEST_CASE(
    "kv-grow: a crash while it grows leaves the store that it was, or the larger one, with each "
    "pair") {
  std::vector<char> memory(kLargest);
  make_small(&memory);
  const std::vector<char> first = memory;
  std::vector<DeviceEvent> events;
  {
    MemoryDevice device(memory.data(), kLargest);
    StoreOptions options = options_for(&device, Contents::kKept);
    options.log_bytes_most = UINT64_MAX;
    Store* store = kv_test::open_store(options);
    device.record = &events;
    REQUIRE(store->grow_place() == 0);
    store->close();
  }
  REQUIRE(events.size() > 12);
  kv_test::Random random(7);
  uint64_t small = 0, large = 0;
  for (size_t count = 0; count <= events.size(); ++count) {
    for (int way = 0; way < 3; ++way) {
      std::vector<char> image = first;
      put(events, count, &image, [&](size_t) { return way != 0 && random.below(2) != 0; });
      INFO("event " << count << " of " << events.size() << ", way " << way);
      MemoryDevice device(image.data(), kLargest);
      ErrorText why;
      Store* store = nullptr;
      const int status = Store::open(options_for(&device, Contents::kKept), &store, &why);
      INFO(why.text);
      REQUIRE(status == 0);
      (store->bytes_allocated() > kSmall ? large : small) += 1;
      REQUIRE(wrong_pairs(store, kKeys) == 0);
      REQUIRE(store->validate(&why) == 0);
      REQUIRE(store->set(bytes_of("new"), bytes_of("v")) == 0);
      REQUIRE(store->flush() == 0);
      store->close();
      MemoryDevice again(image.data(), kLargest);
      store = kv_test::open_store(options_for(&again, Contents::kKept));
      REQUIRE(store->count() == kKeys + 1);
      store->close();
    }
  }
  CHECK(small > 10);
  CHECK(large > 3);
}
