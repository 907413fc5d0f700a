// SPDX-License-Identifier: Apache-2.0
// The read cache of a store on a device, one behaviour a case.
#include <errno.h>

#include <string>
#include <vector>

#include "kv/store.h"
#include "lun/raw_io.h"
#include "superpipe/registry.h"
#include "tests/catch.h"

using namespace lunar;
using namespace lunar::kv;

namespace {

constexpr uint64_t kValueBytes = 1000, kPlaceBytes = 40 * kMiB, kDramBytes = 8 * kMiB;

struct Cold {  // a store, most of whose records lie on its device
  Store* store = nullptr;
  Device* device = nullptr;
  bool sound = true;
  explicit Cold(uint64_t keys, uint64_t dram_bytes = kDramBytes) {
    DeviceOptions wanted;
    ErrorText why;
    REQUIRE(device_open("sim:40m", wanted, &device, &why) == 0);
    StoreOptions options;
    options.device = device;
    options.log_bytes = kPlaceBytes;
    options.dram_bytes = dram_bytes;
    options.shards = 2;
    options.expected_keys = 1;
    REQUIRE(Store::open(options, &store, &why) == 0);
    for (uint64_t i = 0; i < keys; ++i) REQUIRE(set(i, 1) == 0);
  }
  ~Cold() {
    ErrorText why;
    CHECK((store->validate(&why) == 0) == sound);
    INFO(why.text);
    store->close();
  }
  static std::string key(uint64_t number) { return "key " + std::to_string(number) + ";"; }
  static std::string value(uint64_t number, uint64_t version, uint64_t bytes = kValueBytes) {
    std::string text = std::to_string(number) + "." + std::to_string(version) + " ";
    while (text.size() < bytes) text += text;
    return text.substr(0, bytes);
  }
  int set(uint64_t number, uint64_t version) const {
    const std::string name = key(number), text = value(number, version);
    return store->set({name.data(), name.size()}, {text.data(), text.size()});
  }
  int64_t get(uint64_t number, std::string* out) const {
    const std::string name = key(number);
    out->assign(kValueBytes, 0);
    return store->get({name.data(), name.size()}, out->data(), out->size(), 0);
  }
  bool has(uint64_t number, uint64_t version) const {
    std::string found;
    return get(number, &found) == static_cast<int64_t>(kValueBytes) &&
           found == value(number, version);
  }
  uint64_t reads_of(uint64_t from,
                    uint64_t to) const {  // commands of the device that gets of these keys take
    const uint64_t before = store->device_ios();
    bool right = true;
    for (uint64_t i = from; i < to; ++i) right &= has(i, 1);
    CHECK(right);
    return store->device_ios() - before;
  }
};

}  // namespace

TEST_CASE("kv-cache: a record that was read from the device is not read from there again") {
  const Cold kv(30'000);
  CHECK(kv.reads_of(0, 1000) == 1000);
  CHECK(kv.reads_of(0, 1000) == 0);
}

TEST_CASE("kv-cache: hot records outlive reads of all others") {
  const Cold kv(30'000);
  for (unsigned round = 0; round < 20; ++round) (void)kv.reads_of(0, 500);
  CHECK(kv.reads_of(0, 500) == 0);
  for (uint64_t i = 1000; i < 20'000; i += 100) {
    (void)kv.reads_of(i, i + 100);
    (void)kv.reads_of((i / 100 * 25) % 500, (i / 100 * 25) % 500 + 25);
  }
  CHECK(kv.reads_of(0, 500) <= 25);
}

TEST_CASE("kv-cache: sets and deletes are seen at once, also after the cleaning that they cause") {
  const Cold kv(30'000);
  (void)kv.reads_of(0, 3000);
  for (uint64_t version = 2; version < 5; ++version) {
    for (uint64_t i = 0; i < 30'000; ++i) {
      if (i % 3 == 0) continue;
      REQUIRE(kv.set(i, version) == 0);
    }
    bool right = true;
    for (uint64_t i = 0; i < 3000; ++i) right &= kv.has(i, i % 3 == 0 ? 1 : version);
    CHECK(right);
  }
  CHECK(kv.store->cleaned_bytes() != 0);
  std::string found;
  for (uint64_t i = 0; i < 3000; ++i) {
    const std::string name = Cold::key(i);
    REQUIRE(kv.store->del({name.data(), name.size()}) == static_cast<int64_t>(kValueBytes));
    REQUIRE(kv.get(i, &found) == -ENOENT);
  }
}

TEST_CASE("kv-cache: a young record that was read stays in DRAM when its frame goes") {
  const Cold kv(100);
  CHECK(kv.reads_of(0, 100) == 0);
  for (uint64_t i = 1000; i < 20'000; ++i) REQUIRE(kv.set(i, 1) == 0);
  CHECK(kv.reads_of(0, 100) == 0);
}

TEST_CASE("kv-cache: the index gets the DRAM that it wants, and the budget holds") {
  const Cold kv(20'000);
  (void)kv.reads_of(0, 20'000);
  CHECK(kv.store->dram_used() > kDramBytes / 10 * 9);
  uint64_t added = 0;
  for (int status = 0; status == 0 && added < 200'000; ++added) {
    const std::string name = "small " + std::to_string(added);
    status = kv.store->set({name.data(), name.size()}, {});
    CHECK(status == 0);
    if (added % 1000 == 0) CHECK(kv.store->dram_used() <= kDramBytes);
  }
  CHECK(kv.store->count() == 220'000);
  CHECK(kv.store->index_bytes() > kDramBytes / 4);
  CHECK(kv.reads_of(0, 2000) <= 2200);
}

TEST_CASE(
    "kv-cache: a record damaged on the device is neither returned nor kept, whichever bit it is") {
  Cold kv(30'000);
  std::vector<char> segment(kMiB);
  uint64_t damaged = 0;
  for (uint64_t at = 0; at < 24 * kMiB; at += segment.size()) {
    REQUIRE(raw_io(kv.device, Op::kRead, at, segment.data(), segment.size()) == 0);
    for (uint64_t i = 24; i + 100 < segment.size(); i += 8) {
      if (memcmp(&segment[i], "key ", 4) != 0 || memchr(&segment[i], ';', 16) == nullptr) continue;
      segment[i - 24 + damaged % 24] ^= static_cast<char>(1 << damaged / 24 % 8);  // of its header
      ++damaged;
    }
    REQUIRE(raw_io(kv.device, Op::kWrite, at, segment.data(), segment.size()) == 0);
  }
  REQUIRE(damaged > 10'000);
  kv.sound = false;
  uint64_t refused = 0;
  for (unsigned round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < 12'000; ++i) {
      std::string found;
      const int64_t length = kv.get(i, &found);
      if (length == -EBADMSG)
        ++refused;
      else if (length != static_cast<int64_t>(kValueBytes) || found != Cold::value(i, 1))
        FAIL("key " << i << " gave " << length);
    }
  }
  CHECK(refused > 10'000);
}

// 4000 bytes, their key and the record's head take 4040 or so: records one behind the other
// straddle two blocks.
TEST_CASE("kv-cache: a cold get of a pair of nearly a block reads one block", "[kv]") {
  constexpr uint64_t kKeys = 6000, kBytes = 4000;
  Cold cold(0);
  for (uint64_t i = 0; i < kKeys; ++i) {
    const std::string name = Cold::key(i), text = Cold::value(i, 1, kBytes);
    REQUIRE(cold.store->set({name.data(), name.size()}, {text.data(), text.size()}) == 0);
  }
  uint64_t reads = 0, blocks = 0;
  std::string found(kBytes, 0);
  for (uint64_t i = 0; i < kKeys; i += 7) {
    const std::string name = Cold::key(i);
    ColdGet get;
    int64_t length =
        cold.store->cold_begin(&get, {name.data(), name.size()}, found.data(), kBytes, 0);
    if (length == -EINPROGRESS) {
      ++reads;
      blocks += get.piece.iov_len / 4096;
      length = cold.store->cold_finish(&get, cold.device->transfer(get.command));
    }
    REQUIRE(length == static_cast<int64_t>(kBytes));
    REQUIRE(found == Cold::value(i, 1, kBytes));
  }
  CHECK(reads > kKeys / 7 / 2);
  CHECK(blocks <= reads + reads / 10);
}
