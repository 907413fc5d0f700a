// SPDX-License-Identifier: Apache-2.0
// The read cache under threads. While records are admitted, moved, evicted and given back, each
// copy that is found belongs to its address and life in every byte, as long as its reader stays in
// the epoch.
//   kv_cache_threads [--lookups N]; LUNAR_SEED= replays.
#include <atomic>
#include <thread>
#include <vector>

#include "kv/record_cache.h"
#include "sys/thread.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;

constexpr uint64_t kAddresses = 20'000, kHot = 300, kLives = 3, kBudgetBytes = 4 * kMiB;

struct Shared {
  Budget budget;
  Epochs epochs;
  RecordCache cache;
  std::atomic<bool> over{false};
  std::atomic<uint64_t> hits{0}, misses{0}, shrunk{0};
};

uint64_t value_bytes(uint64_t address, uint64_t life) { return mix(address ^ life << 32) % 1500; }

// A record that says in every byte where it lies and when.
void make_record(std::vector<uint64_t>* memory, uint64_t address, uint64_t life) {
  const uint64_t bytes = value_bytes(address, life), units = record_units(8, bytes);
  memory->assign(units, 0);
  auto* record = reinterpret_cast<Record*>(memory->data());
  *record = {life, 0, static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(RecordType::kPair)),
             8, static_cast<uint32_t>(bytes)};
  memcpy(record + 1, &address, 8);
  std::string value;
  fill(&value, address, life, bytes);
  memcpy(record->value(), value.data(), bytes);
}

void check_copy(Record* copy, uint64_t address, uint64_t life) {
  std::string wanted, found(1500, 0);
  fill(&wanted, address, life, value_bytes(address, life));
  uint64_t key;
  memcpy(&key, copy->key(), 8);
  const uint64_t length = value_copy_out(copy, copy->value(), 0, found.data(), found.size());
  if (key != address || length != wanted.size() || memcmp(found.data(), wanted.data(), length) != 0)
    FAIL("the copy of address " + std::to_string(address) + " in life " + std::to_string(life) +
         " is another's");
}

void read_and_admit(Shared& shared, uint64_t seed) {
  Random random(seed);
  std::vector<uint64_t> memory;
  while (!shared.over.load(std::memory_order_relaxed)) {
    const uint64_t address = 1 + random.below(random.below(3) ? kHot : kAddresses),
                   life = 1 + random.below(kLives);
    bool found = false;
    {
      const Reading guard(shared.epochs);
      if (Record* copy = shared.cache.find(Address{address}, life)) {
        check_copy(copy, address, life);
        shared.cache.note_read(copy);
        if (random.below(64) == 0) sys::yield_cpu();  // others go on
        check_copy(copy, address, life);
        found = true;
      }
    }
    (found ? shared.hits : shared.misses).fetch_add(1, std::memory_order_relaxed);
    if (found) continue;
    make_record(&memory, address, life);
    shared.cache.admit(reinterpret_cast<const Record*>(memory.data()), Address{address}, life,
                       random.below(20) == 0);
  }
}

// Takes DRAM, and later gives it back, as the index of a store does.
void take_memory(Shared& shared, uint64_t seed) {
  Random random(seed);
  while (!shared.over.load()) {
    uint64_t taken = 0;
    for (const uint64_t wanted = random.below(kBudgetBytes / 2); taken < wanted;) {
      if (shared.budget.take(4096))
        taken += 4096;
      else if (shared.cache.shrink())
        shared.shrunk.fetch_add(1);
      else
        break;
    }
    REQUIRE(shared.budget.used() <= kBudgetBytes, "more than the budget is used");
    sys::sleep_ns(200'000);
    shared.budget.give_back(taken);
    sys::sleep_ns(2'000'000);
  }
}

}  // namespace

TEST_CASE("kv-cache-threads") {
  const uint64_t lookups = option("--lookups", 300'000), seed = tier::run_seed();
  static Shared shared;
  shared.budget.open(kBudgetBytes);
  shared.cache.open(&shared.budget, &shared.epochs);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([i, seed] { read_and_admit(shared, seed + i); });
  threads.emplace_back([seed] { take_memory(shared, seed ^ 77); });
  // Until everything happened often enough, also on a slow machine.
  while (shared.hits.load() < lookups / 4 || shared.misses.load() < lookups / 4 ||
         shared.shrunk.load() < 20)
    sys::sleep_ns(5'000'000);
  shared.over.store(true);
  for (std::thread& thread : threads) thread.join();
  printf("%lu found, %lu not, %lu chunks given back, %lu copies at the end\n", shared.hits.load(),
         shared.misses.load(), shared.shrunk.load(), shared.cache.entries());
  while (shared.cache.shrink()) {}
  REQUIRE(shared.cache.bytes() == 0 && shared.cache.entries() == 0, "chunks are lost");
  shared.cache.close();
}
