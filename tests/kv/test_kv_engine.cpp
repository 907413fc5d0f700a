// SPDX-License-Identifier: Apache-2.0
// The key/value engine, one behaviour a case.
#include <errno.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/support/refused_calls.h"

using namespace lunar;
using namespace lunar::kv;

namespace {

struct Opened {
  Store* store = nullptr;
  explicit Opened(uint64_t log_bytes = 4 * kMiB, uint64_t dram_bytes = 0, unsigned shards = 2) {
    StoreOptions options;
    options.log_bytes = log_bytes;
    options.dram_bytes = dram_bytes;
    options.shards = shards;
    options.expected_keys = 1;
    ErrorText why;
    REQUIRE(Store::open(options, &store, &why) == 0);
  }
  ~Opened() {
    ErrorText why;
    CHECK(store->validate(&why) == 0);
    INFO(why.text);
    store->close();
  }
  int set(const std::string& key, const std::string& value) {
    return store->set({key.data(), key.size()}, {value.data(), value.size()});
  }
  int64_t del(const std::string& key) { return store->del({key.data(), key.size()}); }
  int64_t exists(const std::string& key) { return store->exists({key.data(), key.size()}); }
  std::string get(const std::string& key) {
    const int64_t length = exists(key);
    if (length < 0) return "(none)";
    std::string value(static_cast<uint64_t>(length), 0);
    CHECK(store->get({key.data(), key.size()}, value.data(), value.size(), 0) == length);
    return value;
  }
};

}  // namespace

TEST_CASE("kv: a store opens where getrandom is refused") {
  bool refused = false;
  std::string value;
  std::thread([&] {
    refused = refuse_calls({SYS_getrandom});
    Opened kv;
    value = kv.set("key", "value") == 0 ? kv.get("key") : "";
  }).join();
  if (!refused) LUNAR_SKIP("seccomp", "no filters here");
  CHECK(value == "value");
}

TEST_CASE("kv: lengths that cannot be are refused, and nothing is touched") {
  Opened kv;
  char byte = 0;
  CHECK(kv.store->set({&byte, 1}, {&byte, UINT64_MAX}) == -EINVAL);
  CHECK(kv.store->set({&byte, UINT64_MAX}, {&byte, 1}) == -EINVAL);
  CHECK(kv.store->set({&byte, 1}, {&byte, kPairBytesMax + 1}) == -EINVAL);
  CHECK(kv.store->set({&byte, 1}, {&byte, kPairBytesMax}) ==
        -ENOSPC);  // legal; this store is smaller
  CHECK(kv.store->count() == 0);
}

TEST_CASE("kv: a full store accepts sets again when deletes have freed a little of each segment") {
  Opened kv(16 * kMiB, 32 * kMiB);
  const std::string value(400, 'v');
  uint64_t count = 0;
  while (kv.set("key " + std::to_string(count), value) == 0) ++count;
  const uint64_t last = count;
  for (uint64_t i = 0; i < last; i += 12)
    REQUIRE(kv.del("key " + std::to_string(i)) == 400);  // less than 1/8 of each
  uint64_t again = 0;
  while (kv.set("again " + std::to_string(again), value) == 0) ++again;
  CHECK(again > last / 12 / 3);
  for (uint64_t i = 0; i < last; ++i)
    REQUIRE(kv.exists("key " + std::to_string(i)) == (i % 12 ? 400 : -ENOENT));
  for (uint64_t i = 0; i < again; ++i) REQUIRE(kv.exists("again " + std::to_string(i)) == 400);
}

TEST_CASE("kv: a large value uses the space that deletes left in many segments") {
  Opened kv(kMiB, 2 * kMiB);  // 16 segments of 64 KiB
  const std::string small(2000, 's');
  for (int i = 0; i < 360; ++i) REQUIRE(kv.set("small " + std::to_string(i), small) == 0);
  for (int i = 0; i < 360; ++i) {
    if (i % 4) REQUIRE(kv.del("small " + std::to_string(i)) == 2000);
  }
  const std::string large(500'000, 'L');  // no segment was free
  REQUIRE(kv.set("large", large) == 0);
  CHECK(kv.get("large") == large);
  for (int i = 0; i < 360; i += 4) REQUIRE(kv.get("small " + std::to_string(i)) == small);
  CHECK(kv.set("too large", std::string(900'000, 'X')) == -ENOSPC);
  CHECK(kv.get("large") == large);
  CHECK(kv.del("large") == 500'000);
  CHECK(kv.set("large again", large) == 0);
}

TEST_CASE("kv: the DRAM budget is never exceeded") {
  const uint64_t budget = kMiB + 200 * kKiB;
  Opened kv(kMiB, budget);
  int status = 0;
  uint64_t keys = 0;
  for (; keys < 100'000 && status == 0; ++keys) {
    status = kv.set(std::to_string(keys), "");
    REQUIRE(kv.store->dram_used() <= budget);
  }
  CHECK(status == -ENOSPC);  // of the index: the log has room for twice as many
  CHECK(kv.store->count() == keys - 1);
  for (uint64_t i = 0; i + 1 < keys; ++i) REQUIRE(kv.exists(std::to_string(i)) == 0);
  ErrorText why;
  Store* none = nullptr;
  StoreOptions options;
  options.log_bytes = kMiB;
  options.dram_bytes = kMiB;
  CHECK(Store::open(options, &none, &why) == -ENOMEM);
  CHECK(none == nullptr);
  CHECK(std::string(why.text).find("DRAM") != std::string::npos);
}

TEST_CASE("kv: an entry takes at most 12 bytes of the index, however many there are") {
  Opened kv(64 * kMiB, 0, 16);
  double most = 0;
  for (uint64_t i = 0; i < 600'000; ++i) {
    const uint64_t key = i * 0x9e3779b97f4a7c15;
    REQUIRE(kv.store->set({&key, sizeof key}, {}) == 0);
    if (i < 60'000 || i % 5000 != 0) continue;
    most =
        std::max(most, static_cast<double>(kv.store->index_bytes()) / static_cast<double>(i + 1));
  }
  CHECK(most <= 12);
}

TEST_CASE("kv: memory of a reader is not used again while it reads") {
  Epochs epochs;
  uint64_t retired;
  {
    Reading before(epochs);
    retired = epochs.retire();
    CHECK_FALSE(epochs.safe(retired));
    {
      Reading after(epochs);
      CHECK_FALSE(epochs.safe(retired));
    }
    CHECK_FALSE(epochs.safe(retired));
  }
  Reading later(epochs);
  CHECK(epochs.safe(retired));
}

namespace {

// A log in DRAM without a store. Its records are never written, so it takes no memory but for its
// table.
struct BareLog {
  Budget budget;
  Epochs epochs;
  Log log;
  explicit BareLog(uint64_t segments) {
    budget.open(UINT64_MAX);
    REQUIRE(log.open({.bytes = segments * 64 * kKiB, .segment_bits = 16}, &budget, &epochs) == 0);
  }
  ~BareLog() { log.close(); }
  // Fills so many segments with 15 records each, of which so many stay alive.
  void fill(uint64_t segments, uint64_t alive) {
    const uint64_t units = log.inline_units_max(),
                   records = log.segment_bytes() / kUnitBytes / units - 1;
    for (uint64_t i = 0; i < segments * records; ++i) {
      Address address;
      if (log.allocate(units, false, {}, &address) != 0) FAIL("allocate");
      log.published(address);
      if (i % records >= alive) log.drop_live(address, units);
      if (i % records == records - 1) log.seal_tails();
    }
  }
};

uint64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

TEST_CASE("kv: ids of large pairs begin at a random number") {
  BareLog one(16), other(16);
  const uint64_t first = one.log.new_life(), second = other.log.new_life();
  CHECK((first > second ? first - second : second - first) > 1'000'000);
}

TEST_CASE("kv: a mark leads over whole blocks or is not possible") {
  const BareLog bare(16);
  alignas(Record) char memory[sizeof(Record)];
  auto* mark = reinterpret_cast<Record*>(memory);
  const auto possible = [&](uint64_t bytes) {
    fill_head(mark, 0, RecordType::kMark, sizeof(Record) / kUnitBytes, {}, bytes);
    return bare.log.possible(mark, bare.log.segment_bytes());
  };
  for (const uint64_t bytes : {0, 4096, 3 * 4096}) CHECK(possible(bytes));
  for (const uint64_t bytes : {1, 4, 8, 4095, 4104}) CHECK_FALSE(possible(bytes));
}

TEST_CASE("kv: a segment to clean is found among many as fast as among few") {
  constexpr uint64_t kFew = 20'000, kMany = 16 * kFew;
  const auto cpu_of = [](uint64_t segments) {
    const auto bare = std::make_unique<BareLog>(segments + 100);
    bare->fill(segments, 6);
    uint64_t before = 0, number = 0;
    for (unsigned i = 0; i < 100; ++i) {
      if (i == 1) before = cpu_ns();
      if (bare->log.victim(&number) != 0) FAIL("not found");
    }
    return cpu_ns() - before;
  };
  const uint64_t of_few = cpu_of(kFew), of_many = cpu_of(kMany);
  INFO(of_few << " ns, " << of_many << " ns");
  CHECK(of_many < 8 * of_few);
}
