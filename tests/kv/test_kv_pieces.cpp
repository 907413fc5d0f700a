// SPDX-License-Identifier: Apache-2.0
// Values in pieces, beyond what the models show: what a moment in the middle of a set or delete
// leaves, what clear() and a failure leave, that nothing which goes over keys meets a piece, and
// what a read of a part touches.
#include <errno.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "lun/volume/image_format.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using lunar_test::MemoryDevice;

namespace {

constexpr uint64_t kBytes = 8 * kMiB, kLong = 500'000;

StoreOptions options_of(Device* device, Contents contents,
                        Durability durability = Durability::kFlush) {
  StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.durability = durability;
  options.log_bytes = device ? 0 : kBytes;
  options.segment_bytes = contents == Contents::kKept ? 0 : 64 * kKiB;
  options.dram_bytes = device ? 4 * kMiB : 0;
  options.shards = 4;
  options.expected_keys = 16;
  return options;
}

// How many sets and deletes the newest state of an image says to be under way.
uint64_t hands_in(const std::vector<char>& image) {
  namespace form = lunar::kv::media;
  form::Superblock super;
  lunar::media::ImageHeader headers[2];
  form::Root root;
  memcpy(&super, image.data(), sizeof super);
  for (uint64_t i = 0; i < 2; ++i)
    memcpy(&headers[i], image.data() + form::kFrontRootsAt + i * form::kBlockBytes,
           sizeof headers[i]);
  const uint64_t newest = headers[0].sequence > headers[1].sequence ? 0 : 1;
  memcpy(&root, image.data() + form::kFrontRootsAt + newest * form::kBlockBytes + sizeof *headers,
         sizeof root);
  const uint64_t link = form::kHeadBytes + ((root.first - 1) << super.segment_bits);
  uint64_t hands = 0;
  memcpy(&hands,
         image.data() + link + sizeof(form::StateLink) +
             super.segment_count * sizeof(form::SegmentEntry),
         sizeof hands);
  return hands;
}

std::string value_of_version(uint64_t version) {
  std::string value;
  kv_test::fill(&value, 0, version, kLong + version % 7);
  memcpy(value.data(), &version, sizeof version);
  return value;
}

// Of "a" the value of one version, whole.
void check_version(Store* store, const char* key) {
  const std::string found = kv_test::value_of(store, key);
  uint64_t version = 0;
  if (found == "none") return;
  memcpy(&version, found.data(), sizeof version);
  if (found != value_of_version(version)) FAIL("a mixture of values");
}

// Sets and deletes two keys until told to end.
struct Writer {
  std::atomic<bool> over{false};
  std::thread thread;
  explicit Writer(Store* store) {
    thread = std::thread([this, store] {
      for (uint64_t version = 1; !over; ++version) {
        if (store->set({"a", 1}, bytes_of(value_of_version(version))) != 0) FAIL("set");
        if (version % 3 == 0 && store->del({"b", 1}) < -ENOENT) FAIL("del");
        if (version % 3 != 0 && store->set({"b", 1}, bytes_of(value_of_version(version))) != 0)
          FAIL("set");
      }
    });
  }
  ~Writer() {
    over = true;
    thread.join();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
};

}  // namespace

TEST_CASE(
    "kv-pieces: a state of a moment within sets and deletes leaves no piece without its head") {
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    std::vector<char> memory(kBytes);
    MemoryDevice device(memory.data(), kBytes);
    Store* store = kv_test::open_store(options_of(&device, Contents::kNew, durability));
    unsigned in_hand = 0;
    {
      const Writer writer(store);
      for (unsigned i = 0; i < 40; ++i) {
        REQUIRE(store->flush() == 0);
        std::vector<char> image = device.snapshot();
        in_hand += hands_in(image) != 0 ? 1 : 0;
        MemoryDevice copy(image.data(), kBytes);
        StoreOptions options = options_of(&copy, Contents::kKept);
        options.read_only = true;
        Store* found = kv_test::open_store(options);
        kv_test::check_store(found);  // as many pieces as heads lead to
        for (const char* key : {"a", "b"}) check_version(found, key);
        Sweep sweep;
        sweep.on_damage = [](void*, const Damage&) {};
        kv::CheckReport report;
        REQUIRE(found->sweep(sweep, &report) == 0);
        CHECK(report.damages == 0);
        found->close();
      }
    }
    CHECK(in_hand != 0);
    kv_test::check_store(store);
    store->close();
  }
}

// The state of a moment within the delete names one piece.
TEST_CASE(
    "kv-pieces: an open deletes what is left of a pair whose damaged head said that it is "
    "shorter") {
  const std::string value(3 * kMiB, 'x');
  unsigned in_hand = 0;
  for (unsigned round = 0; round < 100 && in_hand < 3; ++round) {
    std::vector<char> memory(kBytes);
    MemoryDevice device(memory.data(), kBytes);
    Store* store = kv_test::open_store(options_of(&device, Contents::kNew));
    REQUIRE(store->set({"the key", 7}, bytes_of(value)) == 0);
    REQUIRE(store->set({"behind", 6}, {}) == 0);  // so that the head's end is certain
    REQUIRE(store->flush() == 0);
    store->close();
    char* key = static_cast<char*>(memmem(memory.data(), memory.size(), "the key", 7));
    REQUIRE(key);
    const uint64_t length = 1;
    memcpy(key + 8 + offsetof(Pieces, value_bytes), &length, sizeof length);
    store = kv_test::open_store(options_of(&device, Contents::kKept));
    std::atomic<bool> over{false};
    std::thread writer([&] {
      if (store->set({"the key", 7}, {"new", 3}) != 0) FAIL("set");
      over = true;
    });
    while (!over) {
      REQUIRE(store->flush() == 0);
      std::vector<char> image = device.snapshot();
      if (hands_in(image) == 0) continue;
      ++in_hand;
      MemoryDevice copy(image.data(), kBytes);
      Store* found = kv_test::open_store(options_of(&copy, Contents::kKept));
      CHECK(kv_test::value_of(found, "the key") == "new");
      CHECK(found->pieces() == 0);
      kv_test::check_store(found);
      found->close();
    }
    writer.join();
    CHECK(store->pieces() == 0);
    store->close();
  }
  CHECK(in_hand != 0);
}

TEST_CASE("kv-pieces: nothing that goes over keys meets a piece, and a get meets one version") {
  for (const bool on_device : {false, true}) {
    std::vector<char> memory(kBytes);
    MemoryDevice device(memory.data(), kBytes);
    Store* store =
        kv_test::open_store(options_of(on_device ? &device : nullptr, Contents::kScratch));
    {
      const Writer writer(store);
      char key[100];
      for (unsigned i = 0; i < 150; ++i) {
        CHECK(store->count() <= 2);
        if (const int64_t length = store->random(key, sizeof key); length != -ENOENT)
          CHECK(length == 1);
        Walk* walk = nullptr;
        REQUIRE(Walk::open(store, &walk) == 0);
        for (int64_t length; (length = walk->next(key, sizeof key)) != -ENOENT;) CHECK(length == 1);
        walk->close();
        for (const char* name : {"a", "b"}) {
          std::string value(kLong + 10, 0);
          const int64_t length = store->get({name, 1}, value.data(), value.size(), 0);
          if (length == -ENOENT) continue;
          uint64_t version = 0;
          memcpy(&version, value.data(), sizeof version);
          REQUIRE(length == static_cast<int64_t>(kLong + version % 7));
          value.resize(static_cast<uint64_t>(length));
          if (value != value_of_version(version)) FAIL("a mixture of values");
        }
      }
    }
    kv_test::check_store(store);
    store->close();
  }
}

TEST_CASE("kv-pieces: clear() takes the pieces of a set under way with it") {
  for (const bool on_device : {false, true}) {
    std::vector<char> memory(kBytes);
    MemoryDevice device(memory.data(), kBytes);
    Store* store =
        kv_test::open_store(options_of(on_device ? &device : nullptr, Contents::kScratch));
    {
      const Writer writer(store);
      for (unsigned i = 0; i < 300; ++i) {
        REQUIRE(store->clear() == 0);
        check_version(store, "none");
        sys::sleep_ns(i % 10 * 100'000);
      }
    }
    kv_test::check_store(store);
    REQUIRE(store->clear() == 0);
    CHECK(store->pieces() == 0);
    CHECK(store->count() == 0);
    kv_test::check_store(store);
    store->close();
  }
}

TEST_CASE("kv-pieces: a set that finds no room leaves the old value, and no piece") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    std::vector<char> memory(kBytes);
    MemoryDevice device(memory.data(), kBytes);
    Store* store = kv_test::open_store(options_of(&device, Contents::kNew, durability));
    const std::string old(3 * kMiB, 'o');
    REQUIRE(store->set({"key", 3}, bytes_of(old)) == 0);
    const uint64_t pieces = store->pieces();
    // The last ones are not refused before they are written.
    uint64_t length = 5 * kMiB, refused = 0;
    for (; store->set({"key", 3}, bytes_of(std::string(length, 'm'))) == -ENOSPC;
         length -= 30'000, ++refused) {
      CHECK(store->pieces() == pieces);
      CHECK((kv_test::value_of(store, "key") == old));  // not printed
      kv_test::check_store(store);
    }
    CHECK(refused > 5);
    CHECK(length > 3 * kMiB);
    CHECK((kv_test::value_of(store, "key") == std::string(length, 'm')));
    CHECK(store->set({"another", 7}, bytes_of(std::string(2 * kMiB, 'a'))) == 0);
    CHECK(store->del({"key", 3}) == static_cast<int64_t>(length));
    CHECK(store->set({"key", 3}, bytes_of(old)) == 0);
    kv_test::check_store(store);
    store->close();
  }
}

TEST_CASE("kv-pieces: a part of a value is read from the pieces that it lies in") {
  std::vector<char> memory(kBytes);
  MemoryDevice device(memory.data(), kBytes);
  Store* store = kv_test::open_store(options_of(&device, Contents::kNew));
  const std::string value = value_of_version(1), other(1000, 'o');
  REQUIRE(store->set({"key", 3}, bytes_of(value)) == 0);
  for (uint64_t key = 0; key < 1000; ++key)
    REQUIRE(store->set({&key, sizeof key}, bytes_of(other)) == 0);
  REQUIRE(store->flush() == 0);
  store->close();
  store = kv_test::open_store(options_of(&device, Contents::kKept));
  REQUIRE(store->exists({"key", 3}) == static_cast<int64_t>(value.size()));
  char part[10'000];
  for (const uint64_t at : {uint64_t{0}, uint64_t{4000}, uint64_t{123'456}, value.size() - 5000}) {
    const uint64_t before = store->device_ios();
    REQUIRE(store->get({"key", 3}, part, sizeof part, at) == static_cast<int64_t>(value.size()));
    CHECK(memcmp(part, value.data() + at, std::min<uint64_t>(sizeof part, value.size() - at)) == 0);
    CHECK(store->device_ios() - before <= 5);  // head, and pieces of 4000 bytes
  }
  store->close();
}
