// SPDX-License-Identifier: Apache-2.0
// Sets that are durable when they return: commits, the log and its replay, full stores. Other tests
// cover crashes (kv_crash_durable.cpp), kills (kv_kill.cpp), failing devices
// (test_kv_disk_full.cpp) and damage (test_kv_salvage.cpp).
#include <errno.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/kv/image_map.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::Bed;
using kv_test::bytes_of;
using kv_test::value_of;
namespace form = lunar::kv::media;

namespace {

constexpr uint64_t kBytes = 4 * kMiB;

void must_set(Store* store, const std::string& key, const std::string& value) {
  REQUIRE(store->set(bytes_of(key), bytes_of(value)) == 0);
}

}  // namespace

TEST_CASE("threads share commits") {
  Bed bed(kBytes);
  bed.device.before = [](const Command& command) {
    if (command.op != Op::kRead) sys::sleep_ns(300'000);
    return 0;
  };
  Store* store = bed.open(Contents::kNew, Durability::kGroup);
  lunar_test::in_parallel(8u, [&](unsigned i) {
    for (unsigned n = 0; n < 50; ++n) {
      const unsigned key = i * 100 + n % 10;
      if (store->set({&key, sizeof key}, {&n, sizeof n}) != 0) FAIL("set");
    }
  });
  CHECK(store->commits() < 130);  // of 400 sets
}

// All keys of a full store can be deleted, and the store can be filled again. The pairs that are
// durable at each point come back.
TEST_CASE("a full store lets keys be deleted, durably") {
  Bed bed(kBytes);
  Store* store = bed.open(Contents::kNew, Durability::kGroup);
  uint64_t first = 0;
  for (unsigned round = 0; round < 2; ++round) {
    uint64_t keys = 0;
    const std::string value(700, 'v');
    while (store->set({&keys, sizeof keys}, bytes_of(value)) == 0) ++keys;
    if (round == 0) first = keys;
    CHECK(keys + keys / 10 > first);
    CHECK(keys > 2000);  // of 4 MiB
    for (uint64_t key = 0; key < keys; ++key) REQUIRE(store->del({&key, sizeof key}) == 700);
    CHECK(store->count() == 0);
    store = bed.open(Contents::kExisting, Durability::kGroup);
    CHECK(store->count() == 0);
    kv_test::check_store(store);
  }
}

TEST_CASE("a state is saved before the log is longer than an open may read") {
  Bed bed(kBytes);
  bed.options.replay_bytes_most = 256 * kKiB;
  Store* store = bed.open(Contents::kNew, Durability::kEach);
  const std::string value(3000, 'v');
  const auto root_sequence = [&] {
    uint64_t most = 0;
    for (uint64_t slot = 0; slot < 2; ++slot)
      most = std::max(most, kv_test::read_at<kv_test::ImageHeader>(
                                bed.memory, form::kFrontRootsAt + slot * form::kBlockBytes)
                                .sequence);
    return most;
  };
  const uint64_t before = root_sequence();
  for (unsigned i = 0; i < 1000; ++i)
    must_set(store, "key " + std::to_string(i % 50), value);  // 4 MiB of batches
  const uint64_t saves = root_sequence() - before;
  CHECK(saves >= 10);
  CHECK(saves <= 25);
  const auto header = kv_test::read_at<kv_test::ImageHeader>(bed.memory, form::kFrontRootsAt);
  CHECK((header.features & form::kFeatureLog) != 0);  // what code that knows no log refuses
}

// Cleaning moves records whose entries look alike (one tag, one segment). A replay must find the
// right ones.
TEST_CASE("records that cleaning moved replace themselves when the log is replayed") {
  Bed bed(kBytes);
  // Images of a crash just before a younger state counts, when the log is at its longest.
  std::vector<std::vector<char>> images;
  bed.device.before = [&](const Command& command) {
    const bool root = command.offset.value - form::kFrontRootsAt < 2 * 4096;
    if (command.op == Op::kWrite && root) images.push_back(bed.memory);
    return 0;
  };
  Store* store = bed.open(Contents::kNew, Durability::kGroup);
  const auto pairs = kv_test::look_alikes(3);
  const std::string value(200, 'v');
  for (const auto& [one, two] : pairs) {
    must_set(store, one, "one");
    must_set(store, two, "two");
  }
  REQUIRE(store->flush() == 0);
  for (uint64_t i = 0; i < 7000; ++i) {
    if (i == 5000) images.clear();
    must_set(store, "other " + std::to_string(i < 5000 ? i : kv_test::mix(i) % 5000), value);
  }
  bed.close();
  REQUIRE(images.size() > 3);
  Bed crashed(kBytes);
  for (const auto& image : images) {
    crashed.memory = image;
    store = crashed.open(Contents::kExisting, Durability::kFlush);
    kv_test::check_store(store);
    CHECK(store->count() == 5000 + 2 * pairs.size());
    for (const auto& [one, two] : pairs) {
      CHECK(value_of(store, one) == "one");
      CHECK(value_of(store, two) == "two");
    }
    crashed.close();
  }
}

// Two entries look alike (one tag, one segment). Cleaning has moved only one of them when a write
// fails, so only the content of the records tells which entry to change. If both had been moved, a
// wrong choice would not be seen.
TEST_CASE(
    "a record that cleaning moved takes the place of its own entry, not of one that looks alike") {
  constexpr unsigned kPairs = 3, kKeys = 400, kRounds = 8;
  const auto pairs = kv_test::look_alikes(kPairs);
  unsigned failed = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    Bed bed(kBytes);
    Store* store = bed.open(Contents::kNew, Durability::kFlush);
    const auto filler = [](unsigned i) { return "filler " + std::to_string(i); };
    // Each pair in a segment of its own, at both of its ends: 64 KiB hold 68 records.
    for (unsigned i = 0; i < kKeys; ++i) {
      must_set(store, filler(i), std::string(900, 'f'));
      if (i / 66 >= kPairs) continue;
      if (i % 66 == 5) must_set(store, pairs[i / 66].first, std::string(900, '1'));
      if (i % 66 == 55) must_set(store, pairs[i / 66].second, std::string(900, '2'));
    }
    // These segments are emptied first, the first of them last; a segment ends somewhere within
    // what is moved of one.
    for (unsigned i = 0; i < kKeys; ++i) {
      const bool stays = i % 3 == 0 || (i % 3 == 1 && (i < 3 * round || i > 66 * kPairs));
      if (!stays) REQUIRE(store->del(bytes_of(filler(i))) == 900);
    }
    REQUIRE(store->flush() == 0);
    bed.close();
    const std::vector<char> before = bed.memory;
    for (int writes = 0; writes < 40; ++writes) {
      bed.memory = before;
      store = bed.open(Contents::kExisting, Durability::kEach);
      bed.device.fail_after = writes;
      const int status = store->compact();
      store = bed.open(Contents::kExisting, Durability::kFlush);
      kv_test::check_store(store);
      for (const auto& [one, two] : pairs) {
        CHECK(value_of(store, one) == std::string(900, '1'));
        CHECK(value_of(store, two) == std::string(900, '2'));
      }
      bed.close();
      if (status == 0) break;
      ++failed;
    }
  }
  CHECK(failed > kRounds);
}

// Where less than a record's head is left of a block, the mark behind a batch takes the next block
// too, and is longer than any pair's record in segments of 64 KiB.
TEST_CASE("marks of every length are read again, by cleaning and by a look") {
  for (const bool replayed : {true, false}) {
    Bed bed(kBytes);
    Store* store = bed.open(Contents::kNew, Durability::kEach);
    for (unsigned i = 0; i < 150; ++i)
      must_set(store, "key " + std::to_string(1000 + i), std::string(3870 + i, 'v'));
    for (unsigned i = 0; i < 150; i += 2)
      REQUIRE(store->del(bytes_of("key " + std::to_string(1000 + i))) > 0);
    if (!replayed) REQUIRE(store->flush() == 0);
    bed.close();
    const std::vector<char> before = bed.memory;
    store = bed.open(Contents::kExisting, true);
    const kv_test::Swept swept = kv_test::sweep_of(store);
    CHECK(swept.damages.empty());
    CHECK(swept.given == 75);
    bed.close();
    CHECK(before == bed.memory);
    store = bed.open(Contents::kExisting, Durability::kFlush);
    CHECK(store->compact() == 0);
    StoreInfo info;
    store->info(&info);
    CHECK(info.segments[static_cast<unsigned>(SegmentState::kDamaged)] == 0);
    kv_test::check_store(store);
  }
}

// Cleaning has moved the record to the newest batch. Changed in place there, it would no longer
// name the record that it replaces.
TEST_CASE(
    "a record that cleaning moved and the next set changes is replayed with the right length") {
  for (unsigned trial = 0; trial < 60; ++trial) {
    Bed bed(kBytes);
    Store* store = bed.open(Contents::kNew, Durability::kFlush);
    const auto set = [&](uint64_t number, uint64_t length) {
      return store->set({&number, sizeof number}, bytes_of(std::string(length, 'v')));
    };
    for (uint64_t i = 0; i < 3000; ++i) REQUIRE(set(i, 600) == 0);
    for (uint64_t i = 0; i < 3000; i += 2) REQUIRE(store->del({&i, sizeof i}) == 600);
    REQUIRE(store->flush() == 0);
    store = bed.open(Contents::kExisting, Durability::kEach);
    bed.device.fail_after = static_cast<int>(1 + trial % 20);
    std::thread writer([&] {
      for (uint64_t i = 0; set(kv_test::mix(i + trial * 1000) % 1500 * 2 + 1, 600 - i % 200) == 0;)
        ++i;
    });
    (void)store->compact();
    writer.join();
    store = bed.open(Contents::kExisting, true);
    const kv_test::Swept swept = kv_test::sweep_of(store);
    CHECK(swept.damages.empty());
    uint64_t bytes = 0;
    for (const auto& [key, value] : swept.pairs) bytes += key.size() + value.size();
    CHECK(store->bytes_actual() == bytes);
  }
}

// Such records lie in the segment that replay begins in, and in front of what it replays.
TEST_CASE(
    "a record of the saved state that is damaged in the segment where the log goes on is not given "
    "out or moved") {
  for (const bool header : {false, true}) {
    INFO("its header: " << header);
    Bed bed(kBytes);
    const std::string early(1000, 'e'), after(1000, 'a');
    Store* store = bed.open(Contents::kNew, Durability::kGroup);
    must_set(store, "early", early);
    must_set(store, "next to it", after);
    REQUIRE(store->flush() == 0);
    must_set(store, "later", after);
    const std::vector<char> killed = bed.memory;
    bed.close();
    bed.memory = killed;
    const std::string all(bed.memory.begin(), bed.memory.end());
    const uint64_t value_at = all.find(early);
    REQUIRE(value_at != std::string::npos);
    if (header)
      memset(bed.memory.data() + value_at - 8 - sizeof(Record), 0, sizeof(Record));
    else
      bed.memory[value_at + 500] ^= 1;
    for (unsigned open = 0; open < 3; ++open) {
      store = bed.open(Contents::kExisting, open == 2 ? Durability::kFlush : Durability::kGroup);
      char value[1000];
      CHECK(store->get(bytes_of("early"), value, sizeof value, 0) == -EBADMSG);
      CHECK(value_of(store, "next to it") == after);
      CHECK(value_of(store, "later") == after);
      // It is moved with the frame that it lies in, or as what is written out of that.
      const std::string other(2000, 'o');
      for (unsigned i = 0; open == 1 && i < 1500; ++i)
        must_set(store, "filler " + std::to_string(i % 7), other);
      if (open == 1) REQUIRE(store->compact() == 0);
      CHECK(store->get(bytes_of("early"), value, sizeof value, 0) == -EBADMSG);
    }
  }
}
