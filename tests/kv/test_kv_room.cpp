// SPDX-License-Identifier: Apache-2.0
// Space of deleted pairs is free: an empty store takes a pair as large as a new store does,
// wherever pairs lay. Only the reserve that Store::set() documents is kept.
#include <errno.h>

#include <atomic>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

// of a large pair: in pieces of 4 KiB
constexpr uint64_t kSegment = 64 * kKiB, kInSegment = 15 * 4000;

struct Kind {
  const char* name;
  bool on_device;
  Contents contents;
  Durability durability;
  // Segments that no pair gets: for cleaning, the tail, two saved states; of durable sets, the next
  // two tails.
  uint64_t kept() const {
    if (contents == Contents::kScratch) return 4;
    return durability == Durability::kFlush ? 8 : 10;
  }
};

constexpr Kind kKinds[] = {{"in DRAM", false, Contents::kScratch, Durability::kFlush},
                           {"on a device", true, Contents::kScratch, Durability::kFlush},
                           {"kept", true, Contents::kNew, Durability::kFlush},
                           {"durable sets", true, Contents::kNew, Durability::kGroup}};

// Sets and deletes pairs, also large ones, with flushes between.
void fill_and_empty(Store* store, uint64_t seed, uint64_t longest) {
  kv_test::Random random(seed);
  std::unordered_set<uint64_t> keys;
  for (unsigned i = 0; i < 1500; ++i) {
    const uint64_t key = random.below(400);
    const std::string value(random.below(20) ? random.below(4000) : random.below(longest), 'v');
    if (random.below(4) == 0) {
      if (store->del({&key, sizeof key}) >= 0) keys.erase(key);
    } else if (store->set({&key, sizeof key}, bytes_of(value)) == 0) {
      keys.insert(key);
    }
    if (random.below(300) == 0) REQUIRE(store->flush() == 0);
  }
  for (const uint64_t key : keys) REQUIRE(store->del({&key, sizeof key}) >= 0);
  if (seed % 2) REQUIRE(store->flush() == 0);
  REQUIRE(store->count() == 0);
}

}  // namespace

TEST_CASE(
    "kv-room: an emptied store takes a pair of all its room but what is kept, as a new one does") {
  for (const Kind& kind : kKinds) {
    for (const uint64_t bytes : {2 * kMiB, 16 * kMiB}) {
      for (uint64_t seed = 0; seed <= 5; ++seed) {  // 0: a new store
        INFO(kind.name << ", " << bytes / kMiB << " MiB, seed " << seed);
        kv_test::Bed bed(kind.on_device ? bytes : 0);
        bed.options.dram_bytes = kind.on_device ? 6 * kMiB : 0;
        bed.options.shards = 16;
        if (!kind.on_device) bed.options.device = nullptr, bed.options.log_bytes = bytes;
        bed.options.durability = kind.durability;
        Store* store = bed.open(kind.contents);
        if (seed != 0) fill_and_empty(store, seed, bytes / 40);
        const uint64_t segments = store->bytes_allocated() / kSegment,
                       most = segments - kind.kept();
        std::string value((most + 2) * kSegment, 'w');
        CHECK(store->set({"large", 5}, bytes_of(value)) == -ENOSPC);
        CHECK(store->pieces() == 0);
        value.resize(most * kInSegment);
        for (const char fill : {'x', 'y'}) {
          value[0] = fill;
          CHECK(store->set({"large", 5}, bytes_of(value)) == 0);
          CHECK((kv_test::value_of(store, "large") == value));  // not printed
          CHECK(store->del({"large", 5}) == static_cast<int64_t>(value.size()));
        }
        kv_test::check_store(store);
      }
    }
  }
}

// The state of a store of many keys is large; it is the next one, not the last, for which a large
// pair leaves room.
TEST_CASE("kv-room: a store that held many keys takes a large pair as soon as they are deleted") {
  constexpr uint64_t kBytes = 16 * kMiB, kKeys = 200'000;
  kv_test::Bed bed(kBytes);
  bed.options.dram_bytes = 16 * kMiB;
  Store* store = bed.open(Contents::kNew);
  for (uint64_t key = 0; key < kKeys; ++key) REQUIRE(store->set({&key, sizeof key}, {}) == 0);
  for (uint64_t key = 0; key < kKeys; ++key) REQUIRE(store->del({&key, sizeof key}) == 0);
  const std::string value(kBytes / 100 * 80, 'w');
  CHECK(store->set({"large", 5}, bytes_of(value)) == 0);
  kv_test::check_store(store);
}

TEST_CASE("kv-room: pairs of half of a store come and go while others write and flush") {
  constexpr uint64_t kBytes = 8 * kMiB, kRounds = 60;
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    kv_test::Bed bed(kBytes);
    bed.options.dram_bytes = 6 * kMiB;
    Store* store = bed.open(Contents::kNew, durability);
    std::atomic<bool> over{false};
    std::atomic<uint64_t> small{0};
    std::vector<std::thread> threads;
    for (uint64_t writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&, writer] {
        const std::string value(900, 's');
        for (uint64_t i = 0; !over; ++i) {
          const uint64_t key = writer << 32 | i % 500;
          if (const int status = store->set({&key, sizeof key}, bytes_of(value));
              status < 0 && status != -ENOSPC)
            FAIL("set");
          small.fetch_add(1);
        }
      });
    }
    threads.emplace_back([&] {
      for (; !over; sys::sleep_ns(3'000'000))
        if (store->flush() < 0) FAIL("flush");
    });
    uint64_t done = 0;
    std::string value(kBytes / 2, 'l');
    for (uint64_t i = 0; i < kRounds; ++i) {
      value.resize(kBytes / 2 - i * 20'000);
      if (store->set({"large", 5}, bytes_of(value)) != 0) continue;
      ++done;
      CHECK((kv_test::value_of(store, "large") == value));  // not printed
      CHECK(store->del({"large", 5}) == static_cast<int64_t>(value.size()));
    }
    over = true;
    for (std::thread& thread : threads) thread.join();
    INFO("durability " << static_cast<int>(durability) << ": " << done << " large pairs, " << small
                       << " small ones");
    CHECK(done == kRounds);
    kv_test::check_store(store);
  }
}

// Other writers may take the space that cleaning and saving gain for one writer. The store is not
// full then.
TEST_CASE(
    "kv-room: many threads overwrite a store that is three quarters full, and no set is refused") {
  constexpr uint64_t kKeys = 2000, kThreads = 64, kSets = 200, kBytes = 80 * 128 * kKiB;
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    kv_test::Bed bed(kBytes);
    bed.options.segment_bytes = 128 * kKiB;
    bed.options.dram_bytes = 16 * kMiB;
    bed.options.shards = 16;
    Store* store = bed.open(Contents::kNew, durability);
    std::atomic<uint64_t> refused{0};
    lunar_test::in_parallel(kThreads, [&](uint64_t t) {
      kv_test::Random random(tier::run_seed() + t);
      const std::string value(4000, 'v');
      const uint64_t from = kKeys * t / kThreads, own = kKeys * (t + 1) / kThreads - from;
      for (uint64_t i = 0; i < own + kSets; ++i) {
        const uint64_t key = i < own ? from + i : random.below(kKeys);
        if (store->set({&key, sizeof key}, bytes_of(value)) != 0) refused.fetch_add(1);
      }
    });
    INFO("durability " << static_cast<int>(durability));
    CHECK(refused == 0);
    CHECK(store->count() == kKeys);
    kv_test::check_store(store);
  }
}
