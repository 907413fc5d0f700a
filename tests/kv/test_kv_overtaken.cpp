// SPDX-License-Identifier: Apache-2.0
// Readers and cleaning that other threads overtake: the device holds a read back until another thread has changed what
// is read, or can do no more.
#include <errno.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

constexpr uint64_t kSegmentBytes = 64 * kKiB, kPatienceNs = 300'000'000, kOvertakes = 6;

thread_local bool is_slow = false;  // reads of this thread are overtaken

class Overtaking final : public lunar_test::MemoryDevice {
 public:
  using MemoryDevice::MemoryDevice;
  std::atomic<uint64_t> changes{0};
  std::atomic<bool> over{false};  // the other thread can do no more
  uint64_t overtakes = kOvertakes;
  std::atomic<uint64_t> waits{0};                                                           // of the slow thread
  std::function<bool(uint64_t, uint64_t)> holds = [](uint64_t, uint64_t) { return true; };  // of offset, length
  int64_t transfer(const Command& command) override {
    if (is_slow && command.op == Op::kRead && holds(command.offset.value, command.iov[0].iov_len)) wait();
    const MutexLock guard(lock_);
    return MemoryDevice::transfer(command);
  }

 private:
  void wait() {
    ++waits;
    const uint64_t wanted = changes + overtakes, end = sys::now_ns() + kPatienceNs;
    while (!over && changes < wanted) {
      if (sys::now_ns() > end) over = true;
      sys::sleep_ns(100'000);
    }
  }
  sys::Mutex lock_;
};

struct Stage {
  explicit Stage(uint64_t segments) : memory(segments * kSegmentBytes) {
    StoreOptions options;
    options.device = &device;
    options.log_bytes = 0;
    options.segment_bytes = kSegmentBytes;
    options.dram_bytes = 4 * kMiB;  // frames for 8 segments
    options.shards = 1;
    options.expected_keys = 16;
    store = kv_test::open_store(options);
  }
  ~Stage() {
    end_changes();
    kv_test::check_store(store);
    store->close();
  }
  // Sets the key to other versions of a large value, again and again.
  void change(const std::string& key) {
    changing = std::thread([this, key] {
      std::string value;
      for (uint64_t version = 1; !stop; ++version) {
        kv_test::fill(&value, 0, version, kValueBytes);
        if (store->set(bytes_of(key), bytes_of(value)) < 0) kv_test::fail("set");
        device.changes.fetch_add(1);
      }
    });
  }
  void end_changes() {
    stop = true;
    if (changing.joinable()) changing.join();
  }

  static constexpr uint64_t kValueBytes = 3 * kSegmentBytes;
  std::vector<char> memory;
  Overtaking device{memory.data(), memory.size()};
  Store* store = nullptr;
  std::thread changing;
  std::atomic<bool> stop{false};
};

struct Slow {
  Slow() { is_slow = true; }
  ~Slow() { is_slow = false; }
};

}  // namespace

// Its run is used again by the time that it is read.
TEST_CASE("kv-overtaken: a large pair that is set faster than it is read is no damaged pair") {
  const std::string key = "key";
  Stage stage(20);
  stage.change(key);
  while (stage.device.changes == 0) sys::sleep_ns(100'000);
  std::string value(Stage::kValueBytes, 0);
  char found[16];
  SECTION("get") {
    const Slow slow;
    CHECK(stage.store->get(bytes_of(key), value.data(), value.size(), 0) == static_cast<int64_t>(value.size()));
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
  CHECK(stage.device.waits != 0);
}

namespace {

// Keys that lie in the order of their numbers, kPerSegment in each segment.
constexpr uint64_t kSmallBytes = 3900, kPerSegment = 16, kSegments = 44;

const std::string kLarge = "large";

int set_small(Store* store, uint64_t key) {
  std::string value;
  kv_test::fill(&value, key, 0, kSmallBytes);
  return store->set({&key, sizeof key}, bytes_of(value));
}

uint64_t fill_up(Store* store) {
  uint64_t keys = 0;
  while (set_small(store, keys) == 0) ++keys;
  return keys;
}

// Of each segment from `first` to `last`, all but the first `left` of its keys.
void empty_segments(Store* store, uint64_t first, uint64_t last, uint64_t step, uint64_t left) {
  for (uint64_t segment = first; segment <= last; segment += step) {
    for (uint64_t i = left; i < kPerSegment; ++i) {
      const uint64_t key = segment * kPerSegment + i;
      REQUIRE(store->del({&key, sizeof key}) == static_cast<int64_t>(kSmallBytes));
    }
  }
}

}  // namespace

// What the window that is emptied for the run has to move somewhere is not for writers meanwhile.
TEST_CASE("kv-overtaken: a large pair finds room while another thread takes what is free") {
  Stage stage(kSegments);
  REQUIRE(fill_up(stage.store) >= (kSegments - 4) * kPerSegment);
  empty_segments(stage.store, 12, 33, 3, 0);
  REQUIRE(stage.store->compact() == 0);  // free, but no two of them neighbours
  empty_segments(stage.store, 2, 9, 1, kPerSegment / 2);
  empty_segments(stage.store, 34, 40, 1, kPerSegment / 4 * 3);  // there is room to gain in the end
  stage.device.holds = [](uint64_t, uint64_t length) { return length > kSegmentBytes / 2; };  // cleaning reads
  stage.device.overtakes = UINT64_MAX / 2;
  stage.changing = std::thread([&] {
    while (!stage.stop && stage.device.waits == 0) sys::sleep_ns(100'000);
    const std::string value(kSegmentBytes - kKiB, 'v');
    for (int status = 0; !stage.device.over && status == 0;) {
      const std::string key = "other " + std::to_string(stage.device.changes);
      status = stage.store->set(bytes_of(key), bytes_of(value));
      if (status < 0 && status != -ENOSPC) kv_test::fail("set");
      stage.device.changes.fetch_add(1);
    }
  });
  int status;
  {
    const Slow slow;
    status = stage.store->set(bytes_of(kLarge), bytes_of(std::string(8 * kSegmentBytes - kKiB, 'l')));
  }
  CHECK(status == 0);
  CHECK(stage.device.waits != 0);
}

TEST_CASE("kv-overtaken: a damaged segment in the window that is cheapest to empty leaves the next window") {
  Stage stage(kSegments);
  REQUIRE(fill_up(stage.store) >= (kSegments - 4) * kPerSegment);
  empty_segments(stage.store, 22, 30, 4, 0);
  REQUIRE(stage.store->compact() == 0);
  empty_segments(stage.store, 2, 9, 1, 1);
  empty_segments(stage.store, 12, 19, 1, 1);
  stage.memory[4 * kSegmentBytes + 1000] ^= 1;  // of the key that is left there
  CHECK(stage.store->set(bytes_of(kLarge), bytes_of(std::string(8 * kSegmentBytes - kKiB, 'l'))) == 0);
  const uint64_t damaged = 4 * kPerSegment, sound = damaged + kPerSegment;
  CHECK(stage.store->exists({&damaged, sizeof damaged}) == -EBADMSG);
  CHECK(stage.store->exists({&sound, sizeof sound}) == static_cast<int64_t>(kSmallBytes));
  stage.memory[4 * kSegmentBytes + 1000] ^= 1;
}
