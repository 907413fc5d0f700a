// SPDX-License-Identifier: Apache-2.0
// A log with more segments than a search for a victim, or for room for a large pair, looks at
// (Log::kSeenMost). It is filled, emptied in part, cleaned, compacted and opened many times, also
// after a crash. Every key is counted and many are read. Threading: one thread.
#include <errno.h>
#include <sys/mman.h>

#include <map>
#include <string>

#include "kv/inspect.h"
#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;

namespace {

constexpr uint64_t kSegment = 64 * kKiB, kSegments = Log::kSeenMost + 3000,
                   kBytes = kSegments * kSegment + 128 * kKiB;
// a large value takes two segments
constexpr uint64_t kKeys = 150'000, kOverwrites = 100'000, kSmall = 3900, kLarge = 100'000;

struct Big {
  char* memory;
  lunar_test::MemoryDevice device;
  Store* store = nullptr;
  std::map<uint64_t, uint64_t> model;  // key: version
  Durability durability;
  std::string value, found;
  explicit Big(Durability how)
      : memory(static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        device(memory, kBytes),
        durability(how) {
    open(Contents::kNew);
    REQUIRE(store->bytes_allocated() == kSegments * kSegment);
  }
  ~Big() {
    store->close();
    munmap(memory, kBytes);
  }
  Big(const Big&) = delete;
  Big& operator=(const Big&) = delete;
  void open(Contents contents, bool read_only = false) {
    if (store) store->close();
    StoreOptions options = kv_test::small(&device, contents, durability);
    if (read_only) options.durability = Durability::kFlush;
    options.read_only = read_only;
    options.dram_bytes = 32 * kMiB;
    options.expected_keys = 1 << 16;
    store = kv_test::open_store(options);
  }
  static uint64_t length_of(uint64_t key) { return key % 64 ? kSmall : kLarge; }
  // The version, and a row of bytes again and again: random bytes would take most of the time.
  static void fill(std::string* value, uint64_t key, uint64_t version) {
    kv_test::fill(value, key, version, 64);
    memcpy(value->data(), &version, sizeof version);
    for (const uint64_t length = length_of(key); value->size() < length;)
      value->append(*value, 0, length - value->size());
  }
  int set(uint64_t key, uint64_t version) {
    fill(&value, key, version);
    const int status = store->set({&key, sizeof key}, bytes_of(value));
    if (status == 0) model[key] = version;
    return status;
  }
  void del(uint64_t key) {
    REQUIRE((store->del({&key, sizeof key}) >= 0) == (model.erase(key) != 0));
  }
  void reopen() {
    REQUIRE(store->flush() == 0);
    open(Contents::kExisting);
  }
  // Every key of the model, each `every`th with its bytes.
  void check(uint64_t every) {
    kv_test::check_store(store);
    REQUIRE(store->count() == model.size());
    for (auto at = model.begin(); at != model.end(); ++at) {
      if (at->first % every == 0) REQUIRE(version_of(at->first) == at->second);
    }
  }
  // The version that the content names; 0: the key is not there.
  uint64_t version_of(uint64_t key) {
    found.resize(kLarge);
    const int64_t length = store->get({&key, sizeof key}, found.data(), found.size(), 0);
    if (length == -ENOENT) return 0;
    uint64_t version;
    memcpy(&version, found.data(), sizeof version);
    fill(&value, key, version);
    REQUIRE(length == static_cast<int64_t>(value.size()));
    REQUIRE(memcmp(value.data(), found.data(), value.size()) == 0);
    return version;
  }
  // The device fails in the middle of overwrites. After another open, each key has its last durable
  // version or the one that was being set. With kFlush it may have the version of an earlier flush,
  // and the model goes on with that one.
  void crash(kv_test::Random* random) {
    std::map<uint64_t, uint64_t> before = model;
    uint64_t key = 0, version = 1'000'000;
    device.fail_after = 20'000;
    for (int status = 0; status == 0; ++version) {
      key = random->below(kKeys);
      status = set(key, version);
    }
    device.fail_after = -1;
    open(Contents::kExisting);
    for (auto& [each, last] : model) {
      const uint64_t now = version_of(each);
      const bool durable = now == last || (each == key && now == version - 1);
      REQUIRE((durable || (durability == Durability::kFlush && now >= before[each] && now < last)));
      last = now;
    }
  }
  uint64_t damages() {
    open(Contents::kExisting, true);
    const kv::CheckReport report = kv_test::sweep_of(store, false).report;
    REQUIRE(report.records + report.large_pairs + report.pairs_lost == model.size());
    open(Contents::kExisting);
    return report.damages;
  }
};

void live_in_many_segments(Durability durability) {
  Big big(durability);
  kv_test::Random random(5);
  for (uint64_t key = 0; key < kKeys; ++key) REQUIRE(big.set(key, 1) == 0);
  big.reopen();
  big.check(10);
  for (uint64_t i = 0; i < kOverwrites; ++i) REQUIRE(big.set(random.below(kKeys), 2 + i) == 0);
  REQUIRE(big.store->cleaned_bytes() > 100 * kSegment);
  big.reopen();
  big.check(10);
  big.crash(&random);
  big.check(10);
  for (uint64_t key = 0; key < kKeys; ++key)
    if (random.below(3)) big.del(key);
  REQUIRE(big.store->compact() == 0);
  CHECK(big.store->bytes_in_use() < big.store->bytes_actual() / 4 * 5);
  big.check(10);
  CHECK(big.damages() == 0);
  big.check(10);
}

}  // namespace

TEST_CASE(
    "kv-segments: a log of very many segments is filled, overwritten, crashed, emptied, "
    "compacted") {
  live_in_many_segments(Durability::kEach);
}
TEST_CASE("kv-segments: the same without durable sets", "[.full]") {
  live_in_many_segments(Durability::kFlush);
}
