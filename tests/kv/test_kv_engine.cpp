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

TEST_CASE("kv: a value comes back, whole, cut, and from an offset") {
  Opened kv;
  REQUIRE(kv.set("key", "0123456789abcdef") == 0);
  CHECK(kv.get("key") == "0123456789abcdef");
  for (const uint64_t offset : {0, 1, 7, 8, 9, 15, 16, 17, 1000}) {
    for (const uint64_t bytes : {0, 1, 3, 8, 9, 15, 16, 40}) {
      char buffer[48];
      memset(buffer, '.', sizeof buffer);
      REQUIRE(kv.store->get({"key", 3}, buffer, bytes, offset) == 16);
      const std::string text = "0123456789abcdef",
                        wanted = offset < 16 ? text.substr(offset, bytes) : "";
      CHECK(std::string(buffer, wanted.size()) == wanted);
      CHECK(std::string(buffer + wanted.size(), 48 - wanted.size()) ==
            std::string(48 - wanted.size(), '.'));
    }
  }
  char byte = '.';
  CHECK(kv.store->get({"key", 3}, &byte, 1, UINT64_MAX) == 16);
  CHECK(byte == '.');
}

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

TEST_CASE("kv: keys and values of no length are keys and values") {
  Opened kv;
  CHECK(kv.exists("") == -ENOENT);
  CHECK(kv.set("", "of nothing") == 0);
  CHECK(kv.set("empty", "") == 0);
  CHECK(kv.get("") == "of nothing");
  CHECK(kv.exists("empty") == 0);
  CHECK(kv.store->count() == 2);
  CHECK(kv.store->bytes_actual() == 15);
  CHECK(kv.del("") == 10);
  CHECK(kv.del("") == -ENOENT);
  CHECK(kv.del("empty") == 0);
  CHECK(kv.store->count() == 0);
  CHECK(kv.store->bytes_actual() == 0);
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

TEST_CASE("kv: a value is replaced by a shorter, a longer and a large one") {
  Opened kv;
  const std::string large(300'000, 'L'), other(299'000, 'M');
  for (int round = 0; round < 50; ++round) {
    for (const std::string& value :
         {std::string("short"), std::string(200, 'x'), std::string(190, 'y'), large, other,
          std::string(), std::string(5000, 'z')}) {
      REQUIRE(kv.set("key", value) == 0);
      REQUIRE(kv.get("key") == value);
      REQUIRE(kv.store->count() == 1);
      REQUIRE(kv.store->bytes_actual() == 3 + value.size());
    }
  }
}

TEST_CASE("kv: full is an answer, and deleting makes room") {
  Opened kv(kMiB, 2 * kMiB);
  const std::string value(1000, 'v');
  std::vector<std::string> keys;
  int status = 0;
  for (int i = 0; i < 5000 && status == 0; ++i) {
    const std::string key = "key " + std::to_string(i);
    status = kv.set(key, value);
    if (status == 0) keys.push_back(key);
  }
  REQUIRE(status == -ENOSPC);
  CHECK(keys.size() * 1000 > kv.store->bytes_allocated() / 2);
  for (const std::string& key : keys) REQUIRE(kv.get(key) == value);
  CHECK(kv.set("no room", value) == -ENOSPC);
  CHECK(kv.exists("no room") == -ENOENT);
  for (size_t i = 0; i < keys.size(); i += 2)
    REQUIRE(kv.del(keys[i]) == 1000);  // every other: no segment is all dead
  for (size_t i = 0; i < keys.size(); i += 2) {
    if (i / 2 < keys.size() / 4) REQUIRE(kv.set(keys[i], value) == 0);
  }
  CHECK(kv.store->cleaned_bytes() > 0);
  for (size_t i = 1; i < keys.size(); i += 2) REQUIRE(kv.get(keys[i]) == value);
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

TEST_CASE("kv: a large value takes what deletes have left in many segments") {
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

TEST_CASE(
    "kv: a walk cut into steps sees every key that stays, however the index grows meanwhile") {
  Opened kv(8 * kMiB);
  for (int i = 0; i < 300; ++i) REQUIRE(kv.set("staying " + std::to_string(i), "v") == 0);
  Walk* walk = nullptr;
  REQUIRE(Walk::open(kv.store, &walk) == 0);
  std::vector<int> seen(300);
  char key[64];
  for (int step = 0;; ++step) {
    const int64_t peeked = walk->peek();
    const int64_t length = walk->next(key, sizeof key - 1);
    REQUIRE(length == peeked);
    if (length == -ENOENT) break;
    key[length] = 0;
    int number;
    if (sscanf(key, "staying %d", &number) == 1) ++seen[static_cast<size_t>(number)];
    for (int i = 0; i < 40; ++i)
      REQUIRE(kv.set("new " + std::to_string(step % 300 * 40 + i), "") == 0);
  }
  walk->close();
  CHECK(std::count(seen.begin(), seen.end(), 1) == 300);
}

TEST_CASE("kv: a walk cuts a key that is longer than the buffer and tells its length") {
  Opened kv;
  REQUIRE(kv.set(std::string(100, 'k'), "v") == 0);
  Walk* walk = nullptr;
  REQUIRE(Walk::open(kv.store, &walk) == 0);
  char key[8] = ".......";
  CHECK(walk->next(key, 4) == 100);
  CHECK(std::string(key) == "kkkk...");
  CHECK(walk->next(key, 4) == -ENOENT);
  CHECK(walk->next(key, 4) == -ENOENT);
  walk->close();
}

TEST_CASE("kv: random comes to every key, and to none in an empty store") {
  Opened kv;
  char key[8];
  CHECK(kv.store->random(key, sizeof key) == -ENOENT);
  for (char c = 'a'; c < 'k'; ++c) REQUIRE(kv.set(std::string(1, c), "v") == 0);
  std::vector<int> seen(10);
  for (int i = 0; i < 5000; ++i) {
    REQUIRE(kv.store->random(key, sizeof key) == 1);
    ++seen[static_cast<size_t>(key[0] - 'a')];
  }
  CHECK(std::count(seen.begin(), seen.end(), 0) == 0);
  REQUIRE(kv.set("longer than it takes", "v") == 0);
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

TEST_CASE("kv: operations are counted") {
  Opened kv;
  REQUIRE(kv.set("a", "1") == 0);
  CHECK(kv.get("a") == "1");  // exists and get
  CHECK(kv.del("a") == 1);
  CHECK(kv.del("a") == -ENOENT);
  CHECK(kv.store->operations() == 5);
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

TEST_CASE("kv: ids of large pairs begin where nobody can know") {
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

TEST_CASE("kv: what to clean is found among many segments as fast as among few") {
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
