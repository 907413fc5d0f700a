// SPDX-License-Identifier: Apache-2.0
// Values in pieces: a state that is saved in the middle of a set or delete, clear(), a failure,
// iterations over keys, which give no pieces, and reads of a part.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/kv/image_map.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

constexpr uint64_t kBytes = 8 * kMiB, kLong = 500'000;

struct Place : kv_test::Bed {
  explicit Place(bool on_device = true) : Bed(kBytes) {
    if (on_device) return;
    options.device = nullptr;
    options.log_bytes = kBytes;
    options.dram_bytes = 0;
  }
};

uint64_t hands_in(const std::vector<char>& image) { return kv_test::ImageMap(image).hands(); }

std::string value_of_version(uint64_t version) {
  std::string value;
  kv_test::fill(&value, 0, version, kLong + version % 7);
  memcpy(value.data(), &version, sizeof version);
  return value;
}

// The key has the whole value of one version, or does not exist.
void check_version(Store* store, const char* key) {
  const std::string found = kv_test::value_of(store, key);
  uint64_t version = 0;
  if (found == "none") return;
  memcpy(&version, found.data(), sizeof version);
  if (found != value_of_version(version)) FAIL("a mixture of values");
}

// Sets and deletes two keys until told to end.
struct Writer : lunar_test::Meanwhile {
  explicit Writer(Store* store)
      : Meanwhile([store, version = uint64_t{0}]() mutable {
          ++version;
          if (store->set({"a", 1}, bytes_of(value_of_version(version))) != 0) FAIL("set");
          if (version % 3 == 0 && store->del({"b", 1}) < -ENOENT) FAIL("del");
          if (version % 3 != 0 && store->set({"b", 1}, bytes_of(value_of_version(version))) != 0)
            FAIL("set");
        }) {}
};

}  // namespace

TEST_CASE(
    "kv-pieces: a state of a moment within sets and deletes leaves no piece without its head") {
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    Place place;
    Store* store = place.open(Contents::kNew, durability);
    unsigned in_hand = 0;
    {
      const Writer writer(store);
      for (unsigned i = 0; i < 40; ++i) {
        REQUIRE(store->flush() == 0);
        Place copy;
        copy.memory = place.device.snapshot();
        in_hand += hands_in(copy.memory) != 0 ? 1 : 0;
        Store* found = copy.open(Contents::kExisting, true);
        kv_test::check_store(found);  // as many pieces as heads lead to
        for (const char* key : {"a", "b"}) check_version(found, key);
        CHECK(kv_test::sweep_of(found).damages.empty());
      }
    }
    CHECK(in_hand != 0);
    kv_test::check_store(store);
  }
}

// The state of a moment within the delete names one piece.
TEST_CASE(
    "kv-pieces: an open deletes the pieces of a pair whose damaged head says that it is shorter") {
  const std::string value(3 * kMiB, 'x');
  unsigned in_hand = 0;
  for (unsigned round = 0; round < 1000 && in_hand == 0; ++round) {
    Place place;
    Store* store = place.open(Contents::kNew);
    REQUIRE(store->set({"the key", 7}, bytes_of(value)) == 0);
    REQUIRE(store->set({"behind", 6}, {}) == 0);  // so that the head's end is certain
    REQUIRE(store->flush() == 0);
    place.close();
    char* key = static_cast<char*>(memmem(place.memory.data(), kBytes, "the key", 7));
    REQUIRE(key);
    const uint64_t length = 1;
    memcpy(key + 8 + offsetof(Pieces, value_bytes), &length, sizeof length);
    store = place.open(Contents::kExisting);
    std::atomic<bool> over{false};
    std::thread writer([&] {
      if (store->set({"the key", 7}, {"new", 3}) != 0) FAIL("set");
      over = true;
    });
    while (!over) {
      REQUIRE(store->flush() == 0);
      Place copy;
      copy.memory = place.device.snapshot();
      if (hands_in(copy.memory) == 0) continue;
      ++in_hand;
      Store* found = copy.open(Contents::kExisting);
      CHECK(kv_test::value_of(found, "the key") == "new");
      CHECK(found->pieces() == 0);
      kv_test::check_store(found);
    }
    writer.join();
    CHECK(store->pieces() == 0);
  }
  CHECK(in_hand != 0);
}

TEST_CASE("kv-pieces: an iteration over keys meets no piece, and a get meets one version") {
  for (const bool on_device : {false, true}) {
    Place place(on_device);
    Store* store = place.open(Contents::kScratch);
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
  }
}

TEST_CASE("kv-pieces: clear() takes the pieces of a set under way with it") {
  for (const bool on_device : {false, true}) {
    Place place(on_device);
    Store* store = place.open(Contents::kScratch);
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
  }
}

TEST_CASE("kv-pieces: a set that finds no room leaves the old value, and no piece") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    Place place;
    Store* store = place.open(Contents::kNew, durability);
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
  }
}

TEST_CASE("kv-pieces: a part of a value is read from the pieces that it lies in") {
  Place place;
  Store* store = place.open(Contents::kNew);
  const std::string value = value_of_version(1), other(1000, 'o');
  REQUIRE(store->set({"key", 3}, bytes_of(value)) == 0);
  for (uint64_t key = 0; key < 1000; ++key)
    REQUIRE(store->set({&key, sizeof key}, bytes_of(other)) == 0);
  REQUIRE(store->flush() == 0);
  store = place.open(Contents::kExisting);
  REQUIRE(store->exists({"key", 3}) == static_cast<int64_t>(value.size()));
  char part[10'000];
  for (const uint64_t at : {uint64_t{0}, uint64_t{4000}, uint64_t{123'456}, value.size() - 5000}) {
    const uint64_t before = store->device_ios();
    REQUIRE(store->get({"key", 3}, part, sizeof part, at) == static_cast<int64_t>(value.size()));
    CHECK(memcmp(part, value.data() + at, std::min<uint64_t>(sizeof part, value.size() - at)) == 0);
    CHECK(store->device_ios() - before <= 5);  // head, and pieces of 4000 bytes
  }
}
