// SPDX-License-Identifier: Apache-2.0
// A store that is kept: what an open finds, and what it refuses.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/store.h"
#include "superpipe/registry.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::value_of;

namespace {

constexpr uint64_t kBytes = 4 * kMiB;

struct Backing {
  std::vector<char> memory = std::vector<char>(kBytes);
  std::vector<lunar_test::MemoryDevice*> devices;
  ErrorText why;
  Durability durability = Durability::kFlush;
  ~Backing() {
    for (auto* device : devices) delete device;
  }
  int open(Contents contents, Store** store, uint64_t bytes = kBytes,
           uint64_t dram_bytes = 4 * kMiB) {
    devices.push_back(new lunar_test::MemoryDevice(memory.data(), bytes));
    StoreOptions options;
    options.device = devices.back();
    options.contents = contents;
    options.log_bytes = 0;
    options.dram_bytes = dram_bytes;
    options.shards = 4;
    options.expected_keys = 16;
    options.durability = durability;
    return Store::open(options, store, &why);
  }
  Store* must_open(Contents contents) {
    Store* store = nullptr;
    const int status = open(contents, &store);
    INFO(why.text);
    REQUIRE(status == 0);
    return store;
  }
  int refused(uint64_t bytes = kBytes, uint64_t dram_bytes = 4 * kMiB) {
    Store* store = nullptr;
    const int status = open(Contents::kKept, &store, bytes, dram_bytes);
    CHECK(store == nullptr);
    CHECK(why.text[0] != 0);
    return status;
  }
  void make(uint64_t keys) {
    Store* store = must_open(Contents::kNew);
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key = "key " + std::to_string(i);
      REQUIRE(store->set(bytes_of(key), bytes_of(key)) == 0);
    }
    REQUIRE(store->flush() == 0);
    store->close();
  }
  void damage(uint64_t at) { memory[at] = static_cast<char>(memory[at] ^ 1); }
};

}  // namespace

TEST_CASE("a store that is kept comes back as its last flush found it") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew);
  REQUIRE(store->set({"a", 1}, {"1", 1}) == 0);
  REQUIRE(store->set({nullptr, 0}, {nullptr, 0}) == 0);
  const std::string large(300'000, 'x');
  REQUIRE(store->set({"large", 5}, bytes_of(large)) == 0);
  REQUIRE(store->flush() == 0);
  REQUIRE(store->set({"a", 1}, {"2", 1}) == 0);  // after the flush
  REQUIRE(store->set({"b", 1}, {"1", 1}) == 0);
  REQUIRE(store->del({nullptr, 0}) == 0);
  store->close();
  store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 3);
  CHECK(value_of(store, "a") == "1");
  CHECK(value_of(store, "b") == "none");
  CHECK(store->exists({nullptr, 0}) == 0);
  CHECK(store->bytes_actual() == 2 + 5 + large.size());
  std::string read(large.size(), 0);
  CHECK(store->get({"large", 5}, read.data(), read.size(), 0) ==
        static_cast<int64_t>(large.size()));
  CHECK(read == large);
  REQUIRE(store->del({"large", 5}) == static_cast<int64_t>(large.size()));
  REQUIRE(store->flush() == 0);
  REQUIRE(store->flush() == 0);
  store->close();
  store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 2);
  CHECK(store->exists({"large", 5}) == -ENOENT);
  store->close();
}

TEST_CASE("an empty store that was never flushed is there") {
  Backing backing;
  backing.must_open(Contents::kNew)->close();
  Store* store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 0);
  store->close();
}

TEST_CASE("formatting ends the store that was there") {
  Backing backing;
  backing.make(100);
  backing.must_open(Contents::kNew)->close();
  Store* store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 0);
  store->close();
}

TEST_CASE("what is no store, of another version, or too small is refused by one line") {
  Backing backing;
  CHECK(backing.refused() == -ENOENT);
  backing.make(100);
  CHECK(backing.refused(kBytes / 2) == -EBADMSG);
  CHECK(std::string(backing.why.text).find("it was made on") != std::string::npos);
  CHECK(backing.refused(kBytes, 500'000) == -ENOMEM);
  StoreOptions options;
  options.contents = Contents::kKept;
  Store* store = nullptr;
  CHECK(Store::open(options, &store, &backing.why) == -EINVAL);
}

TEST_CASE("one damaged superblock or root is survived, two are reported") {
  Backing backing;
  backing.make(100);
  backing.damage(20);
  Store* store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 100);
  store->close();
  backing.damage(lunar::kv::media::kSecondSuperAt + 20);
  CHECK(backing.refused() == -EBADMSG);
  backing.damage(20);
  backing.damage(lunar::kv::media::kFrontRootsAt + 40);
  store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 100);
  store->close();
}

TEST_CASE(
    "one damaged block of the saved state costs nothing, two are reported, wherever they are") {
  Backing backing;
  backing.make(5000);
  const std::vector<char> sound = backing.memory;
  unsigned refused = 0, whole = 0;
  for (uint64_t at = lunar::kv::media::kHeadBytes + 100; at < kBytes - lunar::kv::media::kTailBytes;
       at += 2048) {
    Store* store = nullptr;
    backing.memory = sound;
    backing.damage(at);
    backing.damage(at + 4096);
    const int two = backing.open(Contents::kKept, &store);
    CHECK((two == 0 || two == -EBADMSG));
    refused += two < 0 ? 1 : 0;
    if (two == 0) store->close();
    backing.memory = sound;
    backing.damage(at);
    REQUIRE(backing.open(Contents::kKept, &store) == 0);
    ++whole;
    unsigned right = 0, damaged = 0;
    for (uint64_t i = 0; i < 5000; i += 7) {
      char buffer[100];
      const std::string key = "key " + std::to_string(i);
      const int64_t length = store->get(bytes_of(key), buffer, sizeof buffer, 0);
      if (length == -EBADMSG) {
        ++damaged;
        continue;
      }
      if (length == static_cast<int64_t>(key.size()) && memcmp(buffer, key.data(), key.size()) == 0)
        ++right;
    }
    CHECK(right + damaged == 715);
    CHECK(damaged <= 1);
    store->close();
  }
  CHECK(refused >= 16);  // 5000 entries are 40 KiB
  CHECK(whole > refused);
}

TEST_CASE("a set or delete ends the damage of its key's record, which gets report until then") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    for (const uint64_t spot : {uint64_t{0}, uint64_t{30}, uint64_t{300}}) {  // of key and value
      Backing backing;
      Store* store = backing.must_open(Contents::kNew);
      for (char i = 'a'; i <= 'z'; ++i)
        REQUIRE(store->set(bytes_of("the key " + std::string(1, i)),
                           bytes_of(std::string(1000, i))) == 0);
      REQUIRE(store->flush() == 0);
      store->close();
      for (const char* key : {"the key c", "the key k"}) {
        const auto at =
            std::search(backing.memory.begin(), backing.memory.end(), key, key + strlen(key));
        REQUIRE(at != backing.memory.end());
        at[static_cast<int64_t>(spot)] ^= 1;
      }
      backing.durability = durability;
      store = backing.must_open(Contents::kKept);
      CHECK(store->exists({"the key c", 9}) == -EBADMSG);
      CHECK(store->exists({"the key c", 9}) == -EBADMSG);
      CHECK(store->set({"the key c", 9}, {"new", 3}) == 0);
      CHECK(value_of(store, "the key c") == "new");
      CHECK(store->damaged_replaced() == 1);
      if (spot == 0) {  // in the key: whose record it is cannot be read
        CHECK(store->del({"the key k", 9}) == -EBADMSG);
        CHECK(store->set({"the key k", 9}, bytes_of(std::string(1000, 'n'))) == 0);
      }
      CHECK(store->del({"the key k", 9}) == 1000);
      CHECK(store->exists({"the key k", 9}) == -ENOENT);
      CHECK(store->del({"the key k", 9}) == -ENOENT);
      CHECK(store->damaged_replaced() == 2);
      CHECK(store->count() == 25);
      CHECK(store->validate(&backing.why) == 0);
      if (durability == Durability::kFlush) REQUIRE(store->flush() == 0);
      store->close();
      store = backing.must_open(Contents::kKept);
      CHECK(store->count() == 25);
      CHECK(value_of(store, "the key c") == "new");
      CHECK(value_of(store, "the key k") == "none");
      CHECK(value_of(store, "the key d") == std::string(1000, 'd'));
      store->close();
    }
  }
}

TEST_CASE("a flush that fails leaves the state before") {
  Backing backing;
  backing.make(100);
  for (int after = 0; after < 12; ++after) {
    Store* store = backing.must_open(Contents::kKept);
    // that of the flush that failed last, or the one before
    if (store->exists({"new", 3}) >= 0) {
      REQUIRE(after > 0);
      REQUIRE(store->del({"new", 3}) == 1);
      REQUIRE(store->flush() == 0);
    }
    REQUIRE(store->count() == 100);
    REQUIRE(store->set({"new", 3}, {"1", 1}) == 0);
    backing.devices.back()->fail_after = after;
    const int status = store->flush();
    backing.devices.back()->fail_after = -1;
    store->close();
    if (after == 11) CHECK(status == 0);
  }
}

// The root's second copy is not written, and then cannot be repaired: which state counts is not
// known for a while, and the links of both are kept. A store that is nearly full needs those of one
// of them back.
TEST_CASE("a full store goes on after flushes whose outcome was unknown") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew);
  uint64_t keys = 0;
  while (store->set({&keys, sizeof keys}, {}) == 0) ++keys;
  REQUIRE(store->flush() == 0);
  int status = -EIO;
  for (int after = 0; status != 0; ++after) {
    REQUIRE(after < 100);
    backing.devices.back()->fail_after = after;
    status = store->flush();
    if (status != 0) CHECK(status == -EIO);
    backing.devices.back()->fail_after = -1;
    // One that the device refused to flush is not trusted again: what it has not kept may be lost.
    if (status != 0 && store->flush() == -EIO) {
      store->close();
      store = backing.must_open(Contents::kKept);
    }
    const uint64_t key = keys + static_cast<uint64_t>(after);
    for (uint64_t other = static_cast<uint64_t>(after) * 10;
         other < static_cast<uint64_t>(after) * 10 + 10; ++other)
      CHECK(store->del({&other, sizeof other}) <= 0);
    const int set = store->set({&key, sizeof key}, {});
    CHECK((set == 0 || set == -ENOSPC));
  }
  REQUIRE(store->flush() == 0);
  const uint64_t count = store->count();
  store->close();
  store = backing.must_open(Contents::kKept);
  CHECK(store->count() == count);
  kv_test::check_store(store);
  store->close();
}

TEST_CASE("a store of version 1 is refused with the way out, and not touched") {
  namespace form = lunar::kv::media;
  Backing backing;
  backing.make(10);
  form::Superblock super;
  memcpy(&super, backing.memory.data(), sizeof super);
  super.version = 1;
  super.checksum = XXH3_64bits(&super, offsetof(form::Superblock, checksum));
  for (const uint64_t at : {uint64_t{0}, form::kSecondSuperAt})
    memcpy(backing.memory.data() + at, &super, sizeof super);
  for (unsigned slot = 0; slot < 2; ++slot) {  // by which it is known where its head is gone
    char* at = backing.memory.data() + super.back_offset + slot * form::kBlockBytes;
    lunar::media::ImageHeader root;
    memcpy(&root, at, sizeof root);
    root.super_checksum = super.checksum;
    root.checksum = XXH3_64bits(&root, offsetof(lunar::media::ImageHeader, checksum));
    memcpy(at, &root, sizeof root);
  }
  const std::vector<char> whole = backing.memory;
  for (const bool wiped : {false, true})
    for (const bool salvage : {false, true}) {
      backing.memory = whole;
      if (wiped) memset(backing.memory.data(), 0, form::kHeadBytes);
      const std::vector<char> before = backing.memory;
      lunar_test::MemoryDevice device(backing.memory.data(), kBytes);
      StoreOptions options;
      options.device = &device;
      options.contents = Contents::kKept;
      options.dram_bytes = 4 * kMiB;
      options.read_only = options.salvage = salvage;
      Store* store = nullptr;
      CHECK(Store::open(options, &store, &backing.why) == -EPROTONOSUPPORT);
      for (const char* word : {"version 1", "lunar kv dump", "lunar kv load"})
        CHECK(std::string(backing.why.text).find(word) != std::string::npos);
      CHECK(backing.memory == before);
    }
}

TEST_CASE("a store that is opened for reading changes nothing") {
  Backing backing;
  backing.make(1000);
  backing.damage(lunar::kv::media::kFrontRootsAt + 40);  // what an open for writing would repair
  const std::vector<char> before = backing.memory;
  lunar_test::MemoryDevice device(backing.memory.data(), kBytes);
  StoreOptions options;
  options.device = &device;
  options.contents = Contents::kKept;
  options.dram_bytes = 4 * kMiB;
  options.read_only = true;
  Store* store = nullptr;
  REQUIRE(Store::open(options, &store, &backing.why) == 0);
  CHECK(value_of(store, "key 7") == "key 7");
  CHECK(store->set({"a", 1}, {"1", 1}) == -EROFS);
  CHECK(store->del({"key 7", 5}) == -EROFS);
  CHECK(store->compact() == -EROFS);
  CHECK(store->flush() == 0);
  store->close();
  CHECK(backing.memory == before);
  options.contents = Contents::kNew;
  CHECK(Store::open(options, &store, &backing.why) == -EINVAL);
}

TEST_CASE("what a deleted large pair took is not in use after a flush") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew);
  const std::string large(700'000, 'l');
  REQUIRE(store->set({"a", 1}, {"1", 1}) == 0);
  REQUIRE(store->flush() == 0);
  const uint64_t before = store->bytes_in_use();
  REQUIRE(store->set({"large", 5}, bytes_of(large)) == 0);
  REQUIRE(store->flush() == 0);
  CHECK(store->bytes_in_use() > large.size());
  REQUIRE(store->del({"large", 5}) == 700'000);
  REQUIRE(store->flush() == 0);
  CHECK(store->bytes_in_use() < before + large.size() / 2);
  store->close();
}

// The tail goes on behind what the state has of it. What is set there is not the state's, also in
// the bytes of a value.
TEST_CASE("a flush does not end the segment that is being filled") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew);
  const auto set = [&](const std::string& key, const std::string& value) {
    REQUIRE(store->set(bytes_of(key), bytes_of(value)) == 0);
  };
  for (unsigned i = 0; i < 12; ++i) {
    set("key " + std::to_string(i), "flushed");
    set("often", std::to_string(i));
    REQUIRE(store->flush() == 0);
  }
  CHECK(store->bytes_in_use() <= 3 * 64 * kKiB);  // the tail, two states
  for (unsigned i = 0; i < 12; ++i) set("key " + std::to_string(i), "later!!");
  for (unsigned i = 0; i < 200; ++i)
    set("more " + std::to_string(i), std::string(3000, 'm'));  // the tail is written
  store->close();
  store = backing.must_open(Contents::kKept);
  CHECK(store->count() == 13);
  for (unsigned i = 0; i < 12; ++i) CHECK(value_of(store, "key " + std::to_string(i)) == "flushed");
  CHECK(value_of(store, "often") == "11");
  kv_test::check_store(store);
  store->close();
}

TEST_CASE("compaction gives back what was deleted, and loses nothing") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew);
  const std::string value(500, 'v');
  for (uint64_t key = 0; key < 4000; ++key)
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
  for (uint64_t key = 0; key < 4000; ++key) {
    if (key % 4 != 0) REQUIRE(store->del({&key, sizeof key}) == 500);
  }
  REQUIRE(store->flush() == 0);
  const uint64_t before = store->bytes_in_use();
  REQUIRE(store->compact() == 0);
  CHECK(store->bytes_in_use() < before / 2);
  const uint64_t after = store->bytes_in_use();
  REQUIRE(store->compact() == 0);
  CHECK(store->bytes_in_use() == after);
  store->close();
  store = backing.must_open(Contents::kKept);
  kv_test::check_store(store);
  CHECK(store->count() == 1000);
  for (uint64_t key = 0; key < 4000; key += 4) CHECK(store->exists({&key, sizeof key}) == 500);
  store->close();
}

TEST_CASE("a state that is saved while a thread writes is of one moment") {
  constexpr uint64_t kKeys = 400;
  StoreOptions options;
  options.contents = Contents::kNew;
  options.log_bytes = 0;
  options.dram_bytes = 8 * kMiB;
  options.shards = 16;
  options.expected_keys = 16;
  for (unsigned round = 0; round < 8; ++round) {
    options.device = kv_test::open_device("sim:24m,latency_us=300,name=moment", 0);
    options.contents = round == 0 ? Contents::kNew : Contents::kKept;
    Store* store = kv_test::open_store(options);
    std::atomic<bool> over{false};
    std::atomic<uint64_t> passes{0};
    std::thread writer(
        [&] {  // each pass a version more; now and then a key of another length, or a new one
          for (uint64_t version = round * uint64_t{100'000} + 1; !over.load();
               ++version, ++passes) {
            for (uint64_t i = 0; i < kKeys; ++i) {
              std::string value = std::to_string(version) + " ";
              value.resize(20 + (version + i) % 50 * 2, 'x');
              if (store->set(bytes_of("key " + std::to_string(i)), bytes_of(value)) != 0)
                FAIL("set");
              if (version % 8 == 0 && i % 40 == 0)
                (void)store->set(bytes_of(std::to_string(version * kKeys + i)), bytes_of(value));
            }
          }
        });
    while (passes.load() < 2) sys::yield_cpu();
    REQUIRE(store->flush() == 0);
    over.store(true);
    writer.join();
    kv_test::check_store(store);
    store->close();
    options.contents = Contents::kKept;
    options.device = kv_test::open_device("sim:24m,name=moment", 0);
    store = kv_test::open_store(options);
    kv_test::check_store(store);
    uint64_t before = 0, changes = 0;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t version = std::stoull(value_of(store, "key " + std::to_string(i)));
      if (before != 0 && version != before) ++changes;
      CHECK((before == 0 || version == before || version + 1 == before));
      before = version;
    }
    CHECK(changes <= 1);
    store->close();
  }
}

TEST_CASE("saves while a thread writes cost no key its place") {
  const auto keys_of_full_store = [](bool saves) {
    StoreOptions options;
    options.device = kv_test::open_device("sim:64m", 0);
    options.contents = Contents::kNew;
    options.log_bytes = 0;
    options.dram_bytes = 6 * kMiB;
    options.shards = 8;
    options.expected_keys = 16;
    Store* store = kv_test::open_store(options);
    std::atomic<bool> over{false};
    std::thread saver([&] {
      while (saves && !over.load())
        if (store->flush() != 0) FAIL("flush");
    });
    uint64_t keys = 0;
    for (int status = 0; status == 0; ++keys) {
      const Bytes bytes{reinterpret_cast<const char*>(&keys), sizeof keys};
      status = store->set(bytes, bytes);
      CHECK((status == 0 || status == -ENOSPC));
    }
    over.store(true);
    saver.join();
    kv_test::check_store(store);
    store->close();
    return keys;
  };
  const uint64_t alone = keys_of_full_store(false), with_saves = keys_of_full_store(true);
  INFO(alone << " keys, with saves " << with_saves);
  CHECK(with_saves >= alone / 16 * 15);
}
