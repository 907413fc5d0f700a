// SPDX-License-Identifier: Apache-2.0
// A persistent store whose index has filled the DRAM budget: a refused set costs nothing, and the
// next open must succeed with the same budget.
#include <errno.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using lunar_test::in_parallel;

namespace {

constexpr uint64_t kBytes = 120 * kMiB;
constexpr unsigned kRefusalsMost = 200;  // other chains of the index may still have gaps

// Its close() flushes nothing, as a kill would.
struct Place : kv_test::Bed {
  explicit Place(uint64_t dram_bytes) : Bed(kBytes) {
    options.dram_bytes = dram_bytes;
    options.expected_keys = 1000;
    options.shards = 16;
  }
};

std::string name(uint64_t key) { return "key " + std::to_string(key); }
bool is_deleted(uint64_t key) { return kv_test::mix(key) % 100 < 30; }

// Sets new keys until the index has no room for most of them. Returns the number after the last
// one. The look-ups fill the read cache, for whose memory the index has to ask, so it does not grow
// as it would alone.
uint64_t fill(Store* store, uint64_t first) {
  unsigned refused = 0;
  for (; refused < kRefusalsMost; ++first) {
    const int status = store->set(bytes_of(name(first)), {});
    if (status != 0) REQUIRE(status == -ENOSPC);
    refused = status == 0 ? 0 : refused + 1;
    for (unsigned i = 0; i < 3; ++i)
      (void)store->exists(bytes_of(name(kv_test::mix(3 * first + i) % (first + 1))));
  }
  // the index is full, not the log
  REQUIRE(store->bytes_in_use() < store->bytes_allocated() / 4 * 3);
  return first;
}

// Deletes keys and sets new ones in their place, so that all gaps of the index are used.
void churn(Store* store, uint64_t end, unsigned times) {
  kv_test::Random random(end);
  for (unsigned i = 0; i < times; ++i) {
    const int64_t deleted = store->del(bytes_of(name(random.below(end))));
    if (deleted < 0) REQUIRE(deleted == -ENOENT);
    const int status = store->set(bytes_of(name(end + i)), {});
    if (status != 0) REQUIRE(status == -ENOSPC);
  }
}

void opens_again(Place& place) {
  const uint64_t keys = place.store->count();
  Store* store = place.open(Contents::kExisting);
  CHECK(store->count() == keys);
  CHECK(store->dram_used() <= place.options.dram_bytes);
  CHECK(store->validate(&place.why) == 0);
}

constexpr uint64_t kBudgets[] = {4'200'000, 4'400'000, 5'300'000};

void check_full_index(uint64_t dram, bool deletes) {
  Place place(dram);
  Store* store = place.open(Contents::kNew);
  const uint64_t end = fill(store, 0);
  if (deletes) churn(store, end, 60'000);
  REQUIRE(store->flush() == 0);
  opens_again(place);
}

// share: of the keys that are set before the state is saved, in percent. Each durable set takes a
// block, so most of the keys are set before.
void check_durable_sets(uint64_t dram, uint64_t share) {
  Place place(dram);
  Store* store = place.open(Contents::kNew);
  const uint64_t end = fill(store, 0);
  for (uint64_t key = end / 100 * share; key < end; ++key) (void)store->del(bytes_of(name(key)));
  REQUIRE(store->flush() == 0);
  store = place.open(Contents::kExisting, Durability::kEach);
  churn(store, fill(store, end), 1000);
  opens_again(place);
}

}  // namespace

TEST_CASE("kv-reopen: a full index opens again with the same DRAM, also after many deletes") {
  check_full_index(kBudgets[0], false);
  check_full_index(kBudgets[1], true);
}

TEST_CASE("kv-reopen: a full index of durable sets opens again after a kill with the same DRAM") {
  check_durable_sets(kBudgets[0], 89);
  check_durable_sets(kBudgets[1], 93);
}

TEST_CASE("kv-reopen: full indexes of more sizes open again", "[.full]") {
  for (const uint64_t dram : kBudgets) {
    for (const bool deletes : {false, true}) check_full_index(dram, deletes);
    for (const uint64_t share : {uint64_t{93}, uint64_t{89}}) check_durable_sets(dram, share);
  }
}

TEST_CASE("kv-reopen: a set that a full index refuses takes no space of the log") {
  Place place(kBudgets[0]);
  Store* store = place.open(Contents::kNew);
  uint64_t key = fill(store, 0);
  const uint64_t before = store->bytes_in_use(), ios = store->device_ios();
  const std::string value(3000, 'v'), large(300'000, 'l');
  uint64_t inlined = 0, apart = 0;
  for (unsigned i = 0; i < 4000; ++i)
    inlined += store->set(bytes_of(name(++key)), bytes_of(value)) == 0 ? 1 : 0;
  for (unsigned i = 0; i < 20; ++i)
    apart += store->set(bytes_of(name(++key)), bytes_of(large)) == 0 ? 1 : 0;
  CHECK(inlined < 400);
  CHECK(store->bytes_in_use() <= before + inlined * 3200 + apart * 6 * 64 * kKiB + 2 * 64 * kKiB);
  CHECK(store->device_ios() <= ios + inlined + apart * 5 + 20);
  // A key that is there needs no room in the index, but the pieces of a large value do.
  REQUIRE(store->set(bytes_of(name(0)), bytes_of(value)) == 0);
  const int rc = store->set(bytes_of(name(1)), bytes_of(large));
  CHECK((rc == 0 || rc == -ENOSPC));
}

namespace {

constexpr unsigned kThreads = 16;  // the sets of many threads share a commit, and so a block

// Returns how many sets were refused for another reason than a full index.
unsigned set_until_full(Store* store, uint64_t first) {
  std::atomic<unsigned> failed{0};
  in_parallel(kThreads, [&](unsigned number) {
    unsigned refused = 0;
    for (uint64_t key = first + number; refused < 30; key += kThreads) {
      const int status = store->set(bytes_of(name(key)), {});
      refused = status == 0 ? 0 : refused + 1;
      if (status != 0 && status != -ENOSPC) ++failed;
    }
  });
  return failed;
}

// Deletes leave gaps in chains that took all memory; a replay finds the chains without gaps, and
// splits buckets for the memory that this leaves, which the chains of other shards need then.
void check_full_before_durable_sets(uint64_t dram) {
  Place place(dram);
  Store* store = place.open(Contents::kNew);
  uint64_t end = 0;
  for (unsigned refused = 0; refused < kRefusalsMost; ++end)
    refused = store->set(bytes_of(name(end)), {}) == 0 ? 0 : refused + 1;
  REQUIRE(store->flush() == 0);
  store = place.open(Contents::kExisting, Durability::kGroup);
  in_parallel(kThreads, [&](unsigned number) {
    for (uint64_t key = number; key < end; key += kThreads)
      if (is_deleted(key)) (void)store->del(bytes_of(name(key)));
  });
  REQUIRE(store->flush() == 0);
  const uint64_t left = store->count();
  CHECK(set_until_full(store, end) == 0);
  CHECK(store->count() > left);
  opens_again(place);
}

}  // namespace

TEST_CASE("kv-reopen: an index that was full before the first durable set opens again") {
  check_full_before_durable_sets(kBudgets[0]);
}
TEST_CASE("kv-reopen: larger indexes that were full before the first durable set open again",
          "[.full]") {
  for (const uint64_t dram : {kBudgets[1], kBudgets[2]}) check_full_before_durable_sets(dram);
}

namespace {

// Walks over the store until `ends`, at least once. Returns how many of the keys below `full` that
// stay did not come exactly once.
unsigned walk_until(Store* store, uint64_t full, const std::atomic<bool>& ends) {
  unsigned wrong = 0;
  do {
    std::vector<unsigned char> times(full, 0);
    Walk* walk = nullptr;
    if (Walk::open(store, &walk) != 0) return 1;
    char key[64];
    for (int64_t length; (length = walk->next(key, sizeof key - 1)) != -ENOENT;) {
      if (length < 0) return 1;
      key[length] = 0;
      const uint64_t number = strtoull(key + strlen("key "), nullptr, 10);
      if (number < full) ++times[number];
    }
    walk->close();
    for (uint64_t number = 0; number < full; ++number)
      if (!is_deleted(number)) wrong += times[number] == 1 ? 0 : 1;
  } while (!ends);
  return wrong;
}

}  // namespace

// Readers take no lock: they and walks must find every key that stays while chains are shortened.
TEST_CASE("kv-reopen: space that deletes leave in a full index serves new keys of other chains") {
  Place place(kBudgets[1]);
  Store* store = place.open(Contents::kNew);
  uint64_t full = 0, end = 0;  // all keys below `full` were accepted
  for (unsigned refused = 0; refused < kRefusalsMost; ++end) {
    refused = store->set(bytes_of(name(end)), {}) == 0 ? 0 : refused + 1;
    if (full == 0 && refused != 0) full = end;
  }
  const uint64_t keys = store->count();
  for (uint64_t key = 0; key < end; ++key)
    if (is_deleted(key)) (void)store->del(bytes_of(name(key)));
  const uint64_t left = store->count();
  std::atomic<bool> ends{false};
  std::atomic<unsigned> missed{0};
  std::thread reader([&] {
    for (uint64_t key = 0; !ends; key = (key + 1) % full)
      if (!is_deleted(key) && store->exists(bytes_of(name(key))) != 0) ++missed;
  });
  std::thread walker([&] { missed += walk_until(store, full, ends); });
  unsigned refused = 0, sets = 0;
  for (; store->count() < left + (keys - left) / 2; ++sets)
    refused += store->set(bytes_of(name(end + sets)), {}) == 0 ? 0 : 1;
  ends = true;
  reader.join();
  walker.join();
  CHECK(missed == 0);
  CHECK(refused < sets / 100);
  ErrorText why;
  CHECK(store->validate(&why) == 0);
  CHECK(store->dram_used() <= place.options.dram_bytes);
}
