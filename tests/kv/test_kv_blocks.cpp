// SPDX-License-Identifier: Apache-2.0
// Values of whole blocks, which lie on blocks of the device: what a get reads, what damage costs,
// how much space they take.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::value_of;

namespace {

constexpr uint64_t kBlock = 4096;

struct Kept : kv_test::Bed {
  explicit Kept(uint64_t bytes = 48 * kMiB, uint64_t segment_bytes = 256 * kKiB) : Bed(bytes) {
    options.segment_bytes = segment_bytes;
    options.dram_bytes = bytes / 6;
    options.shards = 2;
  }
  static std::string key(uint64_t number) { return "key " + std::to_string(number); }
  static std::string value(uint64_t number, uint64_t bytes) {
    std::string out;
    kv_test::fill(&out, number, 1, bytes);
    return out;
  }
  void fill(uint64_t count, uint64_t bytes) const {
    for (uint64_t i = 0; i < count; ++i)
      REQUIRE(store->set(bytes_of(key(i)), bytes_of(value(i, bytes))) == 0);
    REQUIRE(store->flush() == 0);
  }
  // Gets in an order that is independent of the log's. Returns the reads of the device, and their
  // bytes.
  std::pair<uint64_t, uint64_t> get_all(uint64_t count, uint64_t bytes) {
    device.reads = device.read_bytes = 0;
    bool right = true;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t number = i * 7919 % count;
      std::string found(bytes, 0);
      right &=
          store->get(bytes_of(key(number)), found.data(), bytes, 0) == static_cast<int64_t>(bytes);
      right &= found == value(number, bytes);
    }
    CHECK(right);
    return {device.reads, device.read_bytes};
  }
  char* place_of(const std::string& content) {
    const auto at = std::search(memory.begin(), memory.end(), content.begin(), content.end());
    REQUIRE(at != memory.end());
    return &*at;
  }
  // A sweep calls `lost` of `count` pairs lost and gives the others. Salvage does the same.
  void check_lost(uint64_t count, uint64_t lost) {
    for (const bool salvage : {false, true}) {
      open(Contents::kExisting, true, salvage);
      const kv_test::Swept swept = kv_test::sweep_of(store);
      CHECK(swept.report.pairs_lost == lost);
      CHECK(swept.pairs.size() == count - lost);
      bool right = true;
      for (const auto& [one, content] : swept.pairs)
        right &= content == value(std::stoull(one.substr(4)), content.size());
      CHECK(right);
    }
  }
};

}  // namespace

TEST_CASE("kv-blocks: a cold get of whole blocks reads these, and nothing else") {
  Kept kv;
  for (const uint64_t bytes : {kBlock, 2 * kBlock}) {
    kv.open(Contents::kNew);
    const uint64_t count = 24 * kMiB / bytes;
    kv.fill(count, bytes);
    const auto [reads, read_bytes] = kv.get_all(count, bytes);
    CHECK(read_bytes >= reads * bytes / 2);
    // Some are still in frames, and the first gets made the table as large as it has to be.
    CHECK(reads <= count + count / 50);
    // The values that were read longest ago have left the cache; the table knows them, unless
    // others have replaced them.
    unsigned exact = 0;
    for (uint64_t i = 0, cold = 0; cold < 50; ++i) {
      REQUIRE(i < count);
      kv.device.reads = kv.device.read_bytes = 0;
      const std::string key = Kept::key(i);
      std::string found(bytes, 0);
      REQUIRE(kv.store->get(bytes_of(key), found.data(), bytes, 0) == static_cast<int64_t>(bytes));
      CHECK(found == Kept::value(i, bytes));
      CHECK(kv.device.reads <= 2);
      cold += kv.device.reads != 0 ? 1 : 0;
      exact += kv.device.reads == 1 && kv.device.read_bytes == bytes ? 1 : 0;
    }
    CHECK(exact >= 40);
  }
}

TEST_CASE("kv-blocks: after an open one more read shows many") {
  Kept kv;
  kv.open(Contents::kNew);
  constexpr uint64_t kCount = 6000;
  kv.fill(kCount, kBlock);
  kv.open(Contents::kExisting);
  const auto [reads, read_bytes] = kv.get_all(kCount, kBlock);
  CHECK(reads >= kCount);
  CHECK(reads <= kCount + kCount / 20);
  CHECK(read_bytes <= reads * (kBlock + kBlock / 10));
}

TEST_CASE("kv-blocks: a get in two steps reads the blocks, into the caller's buffer a part") {
  Kept kv;
  kv.open(Contents::kNew);
  kv.fill(6000, kBlock);
  char part[100];
  unsigned whole = 0;
  for (uint64_t number = 0; number < 60; ++number) {
    const std::string key = Kept::key(number), value = Kept::value(number, kBlock);
    const auto is_part = [&] { return memcmp(part, value.data() + 1000, sizeof part) == 0; };
    ColdGet get;
    REQUIRE(kv.store->cold_begin(&get, bytes_of(key), part, sizeof part, 1000) == -EINPROGRESS);
    CHECK(get.command.offset.value % kBlock == 0);
    const bool known = get.body.blocks != 0, damaged = number % 3 == 1;
    const int64_t moved = kv.device.transfer(get.command);
    if (damaged) static_cast<char*>(get.piece.iov_base)[kBlock - 1] ^= 1;
    const int64_t status = kv.store->cold_finish(&get, moved);
    if (known && !damaged) {
      CHECK(get.piece.iov_len == kBlock);
      CHECK(status == static_cast<int64_t>(kBlock));
      CHECK(is_part());
      ++whole;
      continue;
    }
    CHECK(status == -EAGAIN);  // a blocking get has to tell
    CHECK(kv.store->get(bytes_of(key), part, sizeof part, 1000) == static_cast<int64_t>(kBlock));
    CHECK(is_part());
  }
  CHECK(whole >= 20);
}

TEST_CASE(
    "kv-blocks: a value is replaced by one of its length, of others, cut and read from an offset") {
  Kept kv;
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    kv.options.durability = durability;
    kv.open(Contents::kNew);
    const std::string key = "key 1";
    std::string value;
    for (const uint64_t bytes :
         {kBlock, kBlock, 2 * kBlock, uint64_t{100}, kBlock, 3 * kBlock, uint64_t{0}, 2 * kBlock}) {
      kv_test::fill(&value, bytes, 2, bytes);
      REQUIRE(kv.store->set(bytes_of(key), bytes_of(value)) == 0);
      CHECK(value_of(kv.store, key) == value);
      REQUIRE(kv.store->set(bytes_of("another"), bytes_of(value)) == 0);
      CHECK(kv.store->exists(bytes_of(key)) == static_cast<int64_t>(bytes));
      kv_test::check_store(kv.store);
    }
    char part[10];
    kv.open(Contents::kExisting);
    if (durability == Durability::kFlush) continue;
    CHECK(kv.store->get(bytes_of(key), part, sizeof part, kBlock - 5) ==
          static_cast<int64_t>(2 * kBlock));
    CHECK(memcmp(part, value.data() + kBlock - 5, sizeof part) == 0);
    CHECK(kv.store->get(bytes_of(key), part, sizeof part, 3 * kBlock) ==
          static_cast<int64_t>(2 * kBlock));
    CHECK(kv.store->del(bytes_of(key)) == static_cast<int64_t>(2 * kBlock));
    kv_test::check_store(kv.store);
  }
}

TEST_CASE("kv-blocks: a damaged value is found out, costs no other, and a set ends it") {
  Kept kv;
  kv.open(Contents::kNew);
  constexpr uint64_t kCount = 3000;
  kv.fill(kCount, kBlock);
  char* place = kv.place_of(Kept::value(40, kBlock));
  CHECK((place - kv.memory.data()) % static_cast<int64_t>(kBlock) == 0);
  place[2000] ^= 1;
  const std::string key = Kept::key(40);
  std::string found(kBlock, 0);
  for (const bool known : {true, false}) {
    if (!known) kv.open(Contents::kExisting);
    CHECK(kv.store->get(bytes_of(key), found.data(), kBlock, 0) == -EBADMSG);
    CHECK(value_of(kv.store, Kept::key(39)) == Kept::value(39, kBlock));
  }
  kv.check_lost(kCount, 1);
  kv.open(Contents::kExisting);
  REQUIRE(kv.store->set(bytes_of(key), bytes_of(Kept::value(40, kBlock))) == 0);
  CHECK(value_of(kv.store, key) == Kept::value(40, kBlock));
  kv_test::check_store(kv.store);
}

TEST_CASE("kv-blocks: a block of their records that is gone costs these pairs alone") {
  Kept kv;
  kv.open(Contents::kNew);
  constexpr uint64_t kCount = 3000;
  kv.fill(kCount, kBlock);
  const auto at = static_cast<uint64_t>(kv.place_of(Kept::key(900)) - kv.memory.data());
  memset(kv.memory.data() + round_down(at, kBlock), 0, kBlock);
  kv.open(Contents::kExisting);
  uint64_t gone = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    std::string found(kBlock, 0);
    const std::string key = Kept::key(i);
    const int64_t length = kv.store->get(bytes_of(key), found.data(), kBlock, 0);
    const bool there = length == static_cast<int64_t>(kBlock);
    CHECK((there ? found == Kept::value(i, kBlock) : length == -EBADMSG));
    gone += there ? 0 : 1;
  }
  CHECK(gone >= 1);
  CHECK(gone <= 64);
  kv.check_lost(kCount, gone);
}

TEST_CASE("kv-blocks: the space that values of 4 KiB take") {
  Kept kv(128 * kMiB, kMiB);
  kv.open(Contents::kNew);
  constexpr uint64_t kCount = 20'000;
  kv.fill(kCount, kBlock);
  const double bytes = static_cast<double>(kv.store->bytes_in_use()), pairs = kCount * (kBlock + 9);
  WARN("bytes of segments for each byte of pairs: " << bytes / pairs);
  CHECK(bytes / pairs <= 1.04);
}

TEST_CASE("kv-blocks: the table of their places gives its memory to the index") {
  Kept kv;
  kv.open(Contents::kNew);
  kv.fill(4000, kBlock);
  (void)kv.get_all(4000, kBlock);
  uint64_t keys = 0;
  int status = 0;
  for (; status == 0; ++keys) status = kv.store->set(bytes_of("k" + std::to_string(keys)), {});
  CHECK(status == -ENOSPC);
  CHECK(kv.store->dram_used() <= kv.memory.size() / 6);
  CHECK(kv.store->index_bytes() > kv.memory.size() / 6 / 3);
  (void)kv.get_all(4000, kBlock);
}
