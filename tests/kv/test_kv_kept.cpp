// SPDX-License-Identifier: Apache-2.0
// A store that is kept: its content after an open, and the images that an open refuses.
#include <errno.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/kv/image_map.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::value_of;
namespace form = lunar::kv::media;

namespace {

constexpr uint64_t kBytes = 4 * kMiB;

struct Backing : kv_test::Bed {
  Backing() : Bed(kBytes) {}
  int refused() {
    const int status = try_open(Contents::kExisting);
    CHECK(store == nullptr);
    CHECK(why.text[0] != 0);
    return status;
  }
  void make(uint64_t keys) {
    open(Contents::kNew);
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key = "key " + std::to_string(i);
      REQUIRE(store->set(bytes_of(key), bytes_of(key)) == 0);
    }
    REQUIRE(store->flush() == 0);
    close();
  }
  void damage(uint64_t at) { memory[at] = static_cast<char>(memory[at] ^ 1); }
};

}  // namespace

TEST_CASE("a store that is kept comes back as its last flush found it") {
  Backing bed;
  Store* store = bed.open(Contents::kNew);
  REQUIRE(store->set({"a", 1}, {"1", 1}) == 0);
  REQUIRE(store->set({nullptr, 0}, {nullptr, 0}) == 0);
  const std::string large(300'000, 'x');
  REQUIRE(store->set({"large", 5}, bytes_of(large)) == 0);
  REQUIRE(store->flush() == 0);
  REQUIRE(store->set({"a", 1}, {"2", 1}) == 0);  // after the flush
  REQUIRE(store->set({"b", 1}, {"1", 1}) == 0);
  REQUIRE(store->del({nullptr, 0}) == 0);
  store = bed.open(Contents::kExisting);
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
  store = bed.open(Contents::kExisting);
  CHECK(store->count() == 2);
  CHECK(store->exists({"large", 5}) == -ENOENT);
}

TEST_CASE("a place without a store, too small, or with too little DRAM is refused by one line") {
  Backing bed;
  CHECK(bed.refused() == -ENOENT);
  bed.make(100);
  lunar_test::MemoryDevice half(bed.memory.data(), kBytes / 2);
  bed.options.device = &half;
  CHECK(bed.refused() == -EBADMSG);
  CHECK(std::string(bed.why.text).find("it was made on") != std::string::npos);
  bed.options.device = &bed.device;
  bed.options.dram_bytes = 500'000;
  CHECK(bed.refused() == -ENOMEM);
  bed.options.device = nullptr;
  CHECK(bed.refused() == -EINVAL);
}

TEST_CASE("a flush that fails leaves the state before") {
  Backing bed;
  bed.make(100);
  unsigned failed = 0;
  for (int after = 0; after < 12; ++after) {
    Store* store = bed.open(Contents::kExisting);
    // A flush that failed may have saved its state.
    if (store->exists({"new", 3}) >= 0) {
      REQUIRE(after > 0);
      REQUIRE(store->del({"new", 3}) == 1);
      REQUIRE(store->flush() == 0);
    }
    REQUIRE(store->count() == 100);
    REQUIRE(store->set({"new", 3}, {"1", 1}) == 0);
    bed.device.fail_after = after;
    const int status = store->flush();
    bed.device.fail_after = -1;
    failed += status < 0 ? 1 : 0;
    if (after == 11) CHECK(status == 0);
  }
  // A flush must write the record, the state and the root, and flush the device before the root. It
  // fails if one of these does.
  CHECK(failed >= 4);
}

// The root's second copy is not written, and then cannot be repaired. For a while it is unknown
// which state counts, and the links of both are kept. A store that is nearly full needs the space
// of one of them.
TEST_CASE("a full store goes on after flushes whose outcome was unknown") {
  Backing bed;
  Store* store = bed.open(Contents::kNew);
  uint64_t keys = 0;
  while (store->set({&keys, sizeof keys}, {}) == 0) ++keys;
  REQUIRE(store->flush() == 0);
  int status = -EIO;
  for (int after = 0; status != 0; ++after) {
    REQUIRE(after < 100);
    bed.device.fail_after = after;
    status = store->flush();
    if (status != 0) CHECK(status == -EIO);
    bed.device.fail_after = -1;
    // A store whose flush the device refused saves nothing more until it is opened again, because
    // writes may be lost.
    if (status != 0 && store->flush() == -EIO) store = bed.open(Contents::kExisting);
    const uint64_t key = keys + static_cast<uint64_t>(after);
    for (uint64_t other = static_cast<uint64_t>(after) * 10;
         other < static_cast<uint64_t>(after) * 10 + 10; ++other)
      CHECK(store->del({&other, sizeof other}) <= 0);
    const int set = store->set({&key, sizeof key}, {});
    CHECK((set == 0 || set == -ENOSPC));
  }
  REQUIRE(store->flush() == 0);
  const uint64_t count = store->count();
  store = bed.open(Contents::kExisting);
  CHECK(store->count() == count);
  kv_test::check_store(store);
}

TEST_CASE("a store of version 1 is refused with the way out, and not touched") {
  Backing bed;
  bed.make(10);
  auto super = kv_test::read_at<form::Superblock>(bed.memory, 0);
  super.version = 1;
  kv_test::seal_superblock(&bed.memory, super);
  super = kv_test::read_at<form::Superblock>(bed.memory, 0);
  for (unsigned slot = 0; slot < 2; ++slot) {  // by which it is known where its head is gone
    const uint64_t at = super.back_offset + slot * form::kBlockBytes;
    auto root = kv_test::read_at<kv_test::ImageHeader>(bed.memory, at);
    root.super_checksum = super.checksum;
    root.checksum = XXH3_64bits(&root, offsetof(kv_test::ImageHeader, checksum));
    kv_test::write_at(&bed.memory, at, root);
  }
  const std::vector<char> whole = bed.memory;
  for (const bool wiped : {false, true})
    for (const bool salvage : {false, true}) {
      bed.memory = whole;
      if (wiped) memset(bed.memory.data(), 0, form::kHeadBytes);
      const std::vector<char> before = bed.memory;
      CHECK(bed.try_open(Contents::kExisting, salvage, salvage) == -EPROTONOSUPPORT);
      for (const char* word : {"version 1", "lunar kv dump", "lunar kv load"})
        CHECK(std::string(bed.why.text).find(word) != std::string::npos);
      CHECK(bed.memory == before);
    }
}

TEST_CASE("a store that is opened for reading changes nothing") {
  Backing bed;
  bed.make(1000);
  bed.damage(lunar::kv::media::kFrontRootsAt + 40);  // what an open for writing would repair
  const std::vector<char> before = bed.memory;
  Store* store = bed.open(Contents::kExisting, true);
  CHECK(value_of(store, "key 7") == "key 7");
  CHECK(store->set({"a", 1}, {"1", 1}) == -EROFS);
  CHECK(store->del({"key 7", 5}) == -EROFS);
  CHECK(store->compact() == -EROFS);
  CHECK(store->flush() == 0);
  bed.close();
  CHECK(bed.memory == before);
  CHECK(bed.try_open(Contents::kNew, true) == -EINVAL);
}

// The tail goes on behind the part that the state has. Later records do not belong to the state,
// and neither do records that lie in the bytes of a value.
TEST_CASE("a flush does not end the segment that is being filled") {
  Backing bed;
  Store* store = bed.open(Contents::kNew);
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
  store = bed.open(Contents::kExisting);
  CHECK(store->count() == 13);
  for (unsigned i = 0; i < 12; ++i) CHECK(value_of(store, "key " + std::to_string(i)) == "flushed");
  CHECK(value_of(store, "often") == "11");
  kv_test::check_store(store);
}

TEST_CASE("a state that is saved while a thread writes is of one moment") {
  constexpr uint64_t kKeys = 400;
  StoreOptions options = kv_test::small(nullptr);
  options.dram_bytes = 8 * kMiB;
  options.shards = 16;
  for (unsigned round = 0; round < 8; ++round) {
    options.device = kv_test::open_device("sim:24m,latency_us=300,name=moment", 0);
    options.contents = round == 0 ? Contents::kNew : Contents::kExisting;
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
    options.contents = Contents::kExisting;
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
    StoreOptions options = kv_test::small(kv_test::open_device("sim:64m", 0));
    options.dram_bytes = 6 * kMiB;
    options.shards = 8;
    Store* store = kv_test::open_store(options);
    lunar_test::Meanwhile saver(
        [&] {
          if (store->flush() != 0) FAIL("flush");
        },
        saves ? 1 : 0);
    uint64_t keys = 0;
    for (int status = 0; status == 0; ++keys) {
      const Bytes bytes{reinterpret_cast<const char*>(&keys), sizeof keys};
      status = store->set(bytes, bytes);
      CHECK((status == 0 || status == -ENOSPC));
    }
    saver.end();
    kv_test::check_store(store);
    store->close();
    return keys;
  };
  const uint64_t alone = keys_of_full_store(false), with_saves = keys_of_full_store(true);
  INFO(alone << " keys, with saves " << with_saves);
  CHECK(with_saves >= alone / 16 * 15);
}
