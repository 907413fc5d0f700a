// SPDX-License-Identifier: Apache-2.0
// Readers and cleaning that other threads overtake. The device delays a read until another thread
// has changed what is read, or cannot go on.
#include <errno.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

constexpr uint64_t kSegmentBytes = 64 * kKiB, kPatienceNs = 300'000'000, kOvertakes = 6;

thread_local bool is_slow = false;  // reads of this thread are overtaken

struct Stage : kv_test::Bed {
  Stage() : Bed(64 * kSegmentBytes) {  // the DRAM has frames for 8 segments
    device.before = [this](const Command& command) {
      if (is_slow && command.op == Op::kRead && holds(command.offset.value, command.iov[0].iov_len))
        wait();
      return 0;
    };
    options.shards = 1;
    open(Contents::kScratch);
  }
  ~Stage() {
    end_changes();
    kv_test::check_store(store);
    close();
  }
  // Sets the key to other versions of a value, again and again.
  void change(const std::string& key, uint64_t bytes = kValueBytes) {
    changing = std::thread([this, key, bytes] {
      std::string value;
      for (uint64_t version = 1; !stop; ++version) {
        kv_test::fill(&value, 0, version, bytes);
        if (store->set(bytes_of(key), bytes_of(value)) < 0) FAIL("set");
        changes.fetch_add(1);
      }
    });
  }
  void wait() {
    ++waits;
    const uint64_t wanted = changes + overtakes, end = sys::now_ns() + patience_ns;
    while (!over && changes < wanted) {
      if (sys::now_ns() > end) over = true;
      sys::sleep_ns(100'000);
    }
  }
  void end_changes() {
    stop = true;
    if (changing.joinable()) changing.join();
  }

  static constexpr uint64_t kValueBytes = 12 * kSegmentBytes;  // more than there are frames for
  std::thread changing;
  std::atomic<uint64_t> changes{0};
  std::atomic<bool> over{false};  // the other thread can do no more
  uint64_t overtakes = kOvertakes, patience_ns = kPatienceNs;
  std::atomic<uint64_t> waits{0};  // of the slow thread
  std::function<bool(uint64_t, uint64_t)> holds = [](uint64_t, uint64_t) {
    return true;
  };  // of offset, length
  std::atomic<bool> stop{false};
};

struct Slow {
  Slow() { is_slow = true; }
  ~Slow() { is_slow = false; }
};

}  // namespace

// Its pieces are gone by the time that they are read.
TEST_CASE("kv-overtaken: a large pair that is set faster than it is read is no damaged pair") {
  const std::string key = "key";
  Stage stage;
  stage.change(key);
  while (stage.changes == 0) sys::sleep_ns(100'000);
  std::string value(Stage::kValueBytes, 0);
  char found[16];
  SECTION("get") {
    const Slow slow;
    CHECK(stage.store->get(bytes_of(key), value.data(), value.size(), 0) ==
          static_cast<int64_t>(value.size()));
    CHECK(stage.waits != 0);
  }
  SECTION("exists") {
    const Slow slow;
    CHECK(stage.store->exists(bytes_of(key)) == static_cast<int64_t>(value.size()));
  }
  SECTION("random") {
    const Slow slow;
    CHECK(stage.store->random(found, sizeof found) == static_cast<int64_t>(key.size()));
  }
  SECTION("a walk") {
    Walk* walk = nullptr;
    REQUIRE(Walk::open(stage.store, &walk) == 0);
    {
      const Slow slow;
      CHECK(walk->next(found, sizeof found) == static_cast<int64_t>(key.size()));
      CHECK(walk->next(found, sizeof found) == -ENOENT);
    }
    walk->close();
  }
}

TEST_CASE("kv-overtaken: a get that finds a piece damaged holds up no set of another key") {
  Stage stage;
  std::string key, value, part;
  kv_test::fill(&value, 1, 1, 20'000);
  SECTION("of the value") {
    key = "key";
    part = value;
  }
  SECTION("of the key") {
    kv_test::fill(&key, 2, 1, 10'000);
    part = key;
  }
  REQUIRE(stage.store->set(bytes_of(key), bytes_of(value)) == 0);
  REQUIRE(stage.store->set({"more", 4}, bytes_of(std::string(Stage::kValueBytes, 'm'))) ==
          0);  // now it is cold
  char* piece =
      static_cast<char*>(memmem(stage.memory.data(), stage.memory.size(), part.data(), 64));
  REQUIRE(piece);
  *piece = static_cast<char>(*piece ^ 1);
  const auto at = static_cast<uint64_t>(piece - stage.memory.data());
  stage.holds = [at](uint64_t offset, uint64_t length) {
    return offset <= at && at < offset + length;
  };
  stage.overtakes = 1;
  stage.patience_ns = 10'000'000'000;
  stage.change("another", 100);
  {
    const Slow slow;
    CHECK(stage.store->get(bytes_of(key), value.data(), value.size(), 0) == -EBADMSG);
  }
  CHECK(stage.waits != 0);
  CHECK_FALSE(stage.over);
  stage.end_changes();
  CHECK(stage.store->clear() == 0);
}
