// SPDX-License-Identifier: Apache-2.0
// Writers during a save of the state. The device stops when the state's root is to be written, so a
// save lasts as long as a test needs. The test counts the work of other writers and measures no
// time. At 80% full no large pair is refused.
#include <errno.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

constexpr uint64_t kPatienceNs = 20'000'000'000;  // beyond it a writer counts as held up

// Delays the writes of roots while `closed`, and those of the log while `log_closed`, except for
// one that release_one lets go.
struct Gate {
  std::atomic<bool> closed{false};
  std::atomic<unsigned> waiting{0};
  std::atomic<bool> log_closed{false}, release_one{false};
  std::atomic<unsigned> log_waiting{0};
  int pass(const Command& command) {
    const bool root =
        command.op == Op::kWrite &&
        command.offset.value - lunar::kv::media::kFrontRootsAt < 2 * lunar::kv::media::kBlockBytes;
    if (root && closed.load()) {
      waiting.fetch_add(1);
      while (closed.load()) sys::sleep_ns(100'000);
    }
    const bool log =
        command.op == Op::kWrite && command.offset.value >= lunar::kv::media::kHeadBytes;
    if (log && log_closed.load()) {
      log_waiting.fetch_add(1);
      while (log_closed.load() && !release_one.exchange(false)) sys::sleep_ns(100'000);
    }
    return 0;
  }
};

struct Stage : kv_test::Bed {
  explicit Stage(Durability durability, uint64_t replay_bytes_most = 0) : Bed(32 * kMiB) {
    device.before = [this](const Command& command) { return gate.pass(command); };
    options.replay_bytes_most = replay_bytes_most;
    options.dram_bytes = 64 * kMiB;  // frames for all of the log
    options.shards = 16;
    open(Contents::kNew, durability);
  }
  ~Stage() {
    gate.closed = false;
    gate.log_closed = false;
    threads.clear();
    kv_test::check_store(store);
    close();
  }
  // Sets until `most` are done. Keys are of this writer alone, some of them set again and again.
  void write(unsigned writer, uint64_t keys, uint64_t length, uint64_t most,
             std::atomic<uint64_t>* done) {
    threads.emplace_back([=, this] {
      const std::string value(length, 'v');
      for (uint64_t i = 0; i < most; ++i) {
        const uint64_t key = writer * 1'000'000 + i % keys;
        if (store->set({&key, sizeof key}, bytes_of(value)) < 0) FAIL("set");
        done->fetch_add(1);
      }
    });
  }
  template <class Done>
  static bool comes(Done done) {
    for (const uint64_t end = sys::now_ns() + kPatienceNs; !done();) {
      if (sys::now_ns() > end) return false;
      sys::sleep_ns(100'000);
    }
    return true;
  }

  Gate gate;
  std::vector<std::jthread> threads;
};

}  // namespace

TEST_CASE("kv-stalls: large pairs are set while a state is saved") {
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    Stage stage(durability);
    stage.gate.closed = true;
    stage.threads.emplace_back([&] {
      if (stage.store->flush() < 0) FAIL("flush");
    });
    REQUIRE(Stage::comes([&] { return stage.gate.waiting != 0; }));
    std::atomic<uint64_t> done{0};
    stage.write(1, 5, 300'000, 20, &done);
    CHECK(Stage::comes([&] { return done == 20; }));
  }
}

// A set is being made durable when a save fixes its moment, and the device stands still. No shard
// is locked for that long.
TEST_CASE("kv-stalls: calls that need no commit go on while a save waits for one") {
  constexpr uint64_t kSetsAtAll = 2, kCalls = 500;
  Stage stage(Durability::kEach);
  std::atomic<uint64_t> set{0}, calls{0};
  stage.write(1, 1, 100, 1, &set);
  REQUIRE(Stage::comes([&] { return set == 1; }));
  stage.gate.log_closed = true;
  stage.write(2, 1, 100, 1, &set);
  REQUIRE(Stage::comes([&] { return stage.gate.log_waiting == 1; }));
  stage.threads.emplace_back([&] {  // waits for that commit, and then comes to its moment
    if (stage.store->flush() < 0) FAIL("flush");
  });
  stage.write(3, 1, 100, 1, &set);  // in the batch behind that commit, and held in the next
  sys::sleep_ns(100'000'000);
  stage.gate.release_one = true;
  stage.threads.emplace_back([&] {
    const std::string none = "none";
    for (uint64_t i = 0; i < kCalls; ++i, sys::sleep_ns(1'000'000)) {
      if (stage.store->del(bytes_of(none)) != -ENOENT) FAIL("del");
      calls.fetch_add(1);
    }
  });
  CHECK(Stage::comes([&] { return calls == kCalls; }));
  CHECK(set <= kSetsAtAll);
}

// One writer saves. The log has room for what the others write until it reaches its longest length.
TEST_CASE("kv-stalls: a log that grows long holds up the one writer that saves") {
  Stage stage(Durability::kEach, 4 * kMiB);
  stage.gate.closed = true;
  std::atomic<uint64_t> saver{0}, other{0};
  stage.write(1, 100, 3000, 1024, &saver);  // 4 MiB of blocks
  REQUIRE(Stage::comes([&] { return stage.gate.waiting != 0; }));
  CHECK(saver < 1000);
  stage.write(2, 100, 3000, 150, &other);
  CHECK(Stage::comes([&] { return other == 150; }));
  CHECK(stage.gate.waiting == 1);
}

TEST_CASE(
    "kv-stalls: what only a younger state frees of large pairs holds up the one writer that "
    "saves") {
  constexpr uint64_t kKeys = 160, kMore = 5;  // 20 of 32 MiB
  Stage stage(Durability::kFlush);
  std::atomic<uint64_t> filled{0}, saver{0}, other{0};
  stage.write(1, kKeys, 100'000, kKeys, &filled);
  REQUIRE(Stage::comes([&] { return filled == kKeys; }));
  REQUIRE(stage.store->flush() == 0);
  stage.gate.closed = true;
  stage.write(1, kKeys, 100'000, 20 * kKeys, &saver);
  REQUIRE(Stage::comes([&] { return stage.gate.waiting != 0; }));
  stage.write(2, kMore, 100'000, kMore, &other);
  CHECK(Stage::comes([&] { return other == kMore; }));
}

// Only the thread that holds the cleaning mutex learns that the store is full, and flushes keep
// taking it.
TEST_CASE("kv-stalls: a thread that flushes again and again lets a writer have its turn") {
  constexpr uint64_t kFlushesMost = 500;
  Stage stage(Durability::kFlush);
  const std::string value(1000, 'v');
  uint64_t keys = 0, most = 0;
  while (stage.store->set({&keys, sizeof keys}, bytes_of(value)) == 0) ++keys;
  std::atomic<uint64_t> flushes{0};
  std::atomic<bool> over{false};
  stage.threads.emplace_back([&] {
    while (!over && flushes <= kFlushesMost) {
      if (stage.store->flush() < 0) FAIL("flush");
      flushes.fetch_add(1);
    }
  });
  REQUIRE(Stage::comes([&] { return flushes > 2; }));
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t key = keys + 1 + i, before = flushes;
    CHECK(stage.store->set({&key, sizeof key}, bytes_of(value)) == -ENOSPC);
    most = flushes - before > most ? flushes - before : most;
  }
  over = true;
  INFO("flushes during one set: " << most);
  CHECK(most <= 20);
}

// Only calls that take room clean ahead, one step each. A set in place and a delete take none.
TEST_CASE("kv-stalls: a set in its place neither cleans for others nor is delayed by it") {
  constexpr uint64_t kKeys = 5000;
  StoreOptions options;
  options.log_bytes = 8 * kMiB;
  options.segment_bytes = 64 * kKiB;
  options.expected_keys = 16;
  Store* store = kv_test::open_store(options);
  kv_test::Random random(3);
  const std::string value(1000, 'v');
  uint64_t moved = 0;
  for (uint64_t i = 0; i < 3 * kKeys; ++i) {
    const uint64_t key = i < kKeys ? i : random.below(kKeys), before = store->cleaned_bytes();
    if (i >= kKeys) REQUIRE(store->del({&key, sizeof key}) == 1000);
    if (i > 0) REQUIRE(store->set({"in place", 8}, {"another", 7}) == 0);
    moved += store->cleaned_bytes() - before;
    if (i == 0) REQUIRE(store->set({"in place", 8}, {"the one", 7}) == 0);
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
  }
  CHECK(moved == 0);
  CHECK(store->cleaned_bytes() > kMiB);
  kv_test::check_store(store);
  store->close();
}

// Pairs of one to 16 segments of 64 KiB, each at most a hundredth of the log. Pairs all over the
// log are deleted for them.
TEST_CASE("kv-stalls: large pairs of many lengths find room at 80% full") {
  constexpr uint64_t kSegments = 1500, kBytes = kSegments * 64 * kKiB, kLongest = kMiB, kKeys = 300;
  for (const bool kept : {false, true}) {
    kv_test::Bed bed(kBytes + kMiB);
    bed.options.dram_bytes = 6 * kMiB;
    Store* store = bed.open(kept ? Contents::kNew : Contents::kScratch);
    kv_test::Random random(11);
    std::map<uint64_t, uint64_t> segments_of;
    uint64_t taken = 0, refused = 0;
    std::string value;
    for (unsigned i = 0; i < 3000; ++i) {
      const uint64_t key = random.below(kKeys),
                     length = 64 * kKiB + random.below(kLongest - 64 * kKiB);
      const uint64_t count = length / (64 * kKiB - 8) + 1;
      while (taken + count > kSegments * 8 / 10) {
        const auto victim = segments_of.lower_bound(random.below(kKeys));
        if (victim == segments_of.end()) continue;
        REQUIRE(store->del({&victim->first, sizeof key}) > 0);
        taken -= victim->second;
        segments_of.erase(victim);
      }
      value.assign(length, static_cast<char>(i));
      const int status = store->set({&key, sizeof key}, bytes_of(value));
      if (status < 0) CHECK(status == -ENOSPC);
      refused += status < 0 ? 1 : 0;
      if (status == 0) taken += count - segments_of[key], segments_of[key] = count;
      if (kept && i % 50 == 0) REQUIRE(store->flush() == 0);
    }
    INFO("refused: " << refused << " of 3000");
    CHECK(refused == 0);
    kv_test::check_store(store);
  }
}
