// SPDX-License-Identifier: Apache-2.0
// A store of many small pairs, 8-byte keys with 24-byte values, on a file. Two threads build it.
// After another open a walk finds each key once, random gets find the values, and a sweep checks
// every record. Some pairs are overwritten or deleted, and another open finds these changes.
//   kv_many [--pairs N] [--path DIRECTORY]
#include <errno.h>

#include <vector>

#include "kv/inspect.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

struct Value {
  uint64_t words[3];
  bool operator==(const Value&) const = default;
};

constexpr uint64_t kGets = 20'000;  // after each open

Value value_of(uint64_t key, uint64_t version) {
  return {{mix(key ^ version << 48), mix(key + 0x9e3779b97f4a7c15), version}};
}

// Keys that differ in all of their bits; the product is invertible, so a key says which it is.
uint64_t key_of(uint64_t number) { return number * 0x9e3779b97f4a7c15; }
uint64_t number_of(uint64_t key) { return key * 0xf1de83e19937733d; }  // the inverse modulo 2^64
static_assert(0x9e3779b97f4a7c15 * 0xf1de83e19937733d == 1);

class Many {
 public:
  Many(uint64_t pairs, std::string path) : pairs_(pairs), path_(std::move(path)) {}
  void build();
  void verify();
  void change();
  void sweep();

 private:
  Store* open(Contents contents, bool read_only = false);
  uint64_t version_of(uint64_t number) const { return changed_ && number % 1000 == 1 ? 2 : 1; }
  bool is_deleted(uint64_t number) const { return changed_ && number % 1000 == 2; }
  uint64_t count() const {
    uint64_t deleted = 0;
    for (uint64_t number = 0; number < pairs_; ++number) deleted += is_deleted(number) ? 1 : 0;
    return pairs_ - deleted;
  }

  uint64_t pairs_;
  std::string path_;
  bool changed_ = false;
};

// 56 bytes a record; a state of about 10 bytes a pair, twice, and room for another; the reserve for
// cleaning.
Store* Many::open(Contents contents, bool read_only) {
  if (contents == Contents::kNew) make_file(path_.c_str(), pairs_ * 108 + 64 * kMiB);
  StoreOptions options;
  options.device = open_device(path_.c_str(), 0);
  options.contents = contents;
  options.log_bytes = 0;
  options.dram_bytes = pairs_ * 14 + 64 * kMiB;
  options.expected_keys = pairs_;
  options.read_only = read_only;
  return open_store(options);
}

void Many::build() {
  Store* store = open(Contents::kNew);
  lunar_test::in_parallel(uint64_t{2}, [&](uint64_t half) {
    for (uint64_t number = half; number < pairs_; number += 2) {
      const uint64_t key = key_of(number);
      const Value value = value_of(key, 1);
      if (const int status = store->set({&key, sizeof key}, {&value, sizeof value}); status < 0)
        FAIL("set: " + std::to_string(status));
    }
  });
  REQUIRE(store->flush() >= 0);
  printf("%.2f bytes of index a pair\n",
         static_cast<double>(store->index_bytes()) / static_cast<double>(pairs_));
  store->close();
}

void Many::verify() {
  Store* store = open(Contents::kExisting);
  if (store->count() != count()) FAIL("it counts " + std::to_string(store->count()));
  Walk* walk = nullptr;
  REQUIRE(Walk::open(store, &walk) >= 0);
  std::vector<bool> seen(pairs_);
  uint64_t key = 0, found = 0;
  int64_t length = 0;
  while ((length = walk->next(&key, sizeof key)) == sizeof key) {
    const uint64_t number = number_of(key);
    REQUIRE(number < pairs_ && !is_deleted(number), "a key that is not there");
    REQUIRE(!seen[number], "a key comes twice");
    seen[number] = true;
    ++found;
  }
  if (length != -ENOENT) FAIL("walk: " + std::to_string(length));
  walk->close();
  if (found != count()) FAIL("a walk finds " + std::to_string(found));
  Random random(tier::run_seed());
  const uint64_t gets = pairs_ < kGets ? pairs_ : kGets;
  for (uint64_t i = 0; i < gets; ++i) {
    const uint64_t number = gets == pairs_ ? i : random.below(pairs_), at = key_of(number);
    Value value;
    const int64_t bytes = store->get({&at, sizeof at}, &value, sizeof value, 0);
    if (bytes != (is_deleted(number) ? -ENOENT : static_cast<int64_t>(sizeof value)))
      FAIL("get: " + std::to_string(bytes));
    if (bytes > 0 && !(value == value_of(at, version_of(number)))) FAIL("a wrong value");
  }
  store->close();
}

// Checks the index's entry, checksum, key and value of each record.
void Many::sweep() {
  struct Seen {
    const Many* many;
    uint64_t wrong = 0;
  } seen{this};
  Store* store = open(Contents::kExisting, true);
  Sweep sweep;
  sweep.context = &seen;
  sweep.on_damage = [](void*, const Damage& damage) {
    FAIL(std::string("damaged: ") + damage.what);
  };
  sweep.on_pair = [](void* context, Bytes key, Bytes value) {
    auto& to = *static_cast<Seen*>(context);
    uint64_t word = 0;
    Value got{};
    if (key.size != sizeof word || value.size != sizeof got) return false;
    memcpy(&word, key.data, sizeof word);
    memcpy(&got, value.data, sizeof got);
    to.wrong += got == value_of(word, to.many->version_of(number_of(word))) ? 0 : 1;
    return true;
  };
  kv::CheckReport report;
  const int status = store->sweep(sweep, &report);
  if (status < 0 || seen.wrong != 0)
    FAIL("sweep: " + std::to_string(status) + ", wrong " + std::to_string(seen.wrong));
  if (report.records != count()) FAIL("a sweep finds " + std::to_string(report.records));
  store->close();
}

void Many::change() {
  Store* store = open(Contents::kExisting);
  changed_ = true;
  for (uint64_t number = 0; number < pairs_; ++number) {
    const uint64_t key = key_of(number);
    const Value value = value_of(key, 2);
    REQUIRE(version_of(number) != 2 || store->set({&key, sizeof key}, {&value, sizeof value}) >= 0);
    REQUIRE(!is_deleted(number) || store->del({&key, sizeof key}) == sizeof value);
  }
  REQUIRE(store->flush() >= 0);
  store->close();
}

}  // namespace

TEST_CASE("kv-many") {
  const char* directory = text_option("--path");
  const uint64_t pairs = option("--pairs", 300'000);
  const std::string path = std::string(directory ? directory : "/var/tmp") + "/lunar-kv-many-" +
                           std::to_string(getpid());
  Many many(pairs, path);
  many.build();
  many.verify();
  many.sweep();
  many.change();
  many.verify();
  many.sweep();
  (void)unlink(path.c_str());
}
