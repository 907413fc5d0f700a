// SPDX-License-Identifier: Apache-2.0
// The engine under many threads. Each key has one writer; its versions count up, and every fifth
// version means that the key is deleted. A writer says what it begins and what is done, so a reader
// knows which versions it may see: none that was replaced before the read began, none that was
// begun after it ended, and none older than one that it has seen. This is linearizability for keys
// with one writer. Keys that all threads write must be whole, of a version that one of them wrote.
// Walkers must see every key that stays, once.
//   kv_threads [--writes N] [--writers N] [--readers N] [--walkers N] [--keys N, of a writer]
//   [--log MIB] [--dram MIB] [--segment KIB] [--device URI] [--kept PREFIX]; LUNAR_SEED= replays
//   the choices, not the interleaving. --kept: the store lies in a file of that name and this
//   process, is flushed all the time, and must come back whole; --durability 1 (group) or 2 (each):
//   by its log alone, for the last flush is left out.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

constexpr uint64_t kShared = 5, kStaying = 500, kLengthMax = 90'000;

uint64_t length_of(uint64_t key, uint64_t version) {
  const uint64_t x = mix(key << 20 ^ version);
  if (key % 50 == 1) return x % kLengthMax;  // often a large pair
  if (key % 20 == 2) return 4096 * (1 + version % 3 / 2);
  return key % 3 == 0 ? 40 + version % 2 : x % 700;  // in place, or not
}
bool is_deleted(uint64_t version) { return version % 5 == 0; }  // 0: never written

struct Progress {
  std::atomic<uint64_t> begun{0}, done{0};
};

struct Run {
  Store* store;
  std::vector<Progress> keys;
  uint64_t keys_a_writer;
  std::atomic<bool> over{false};
  std::atomic<uint64_t> writes{0}, reads{0}, walks{0}, full{0};
  Run(Store* s, uint64_t writers, uint64_t n) : store(s), keys(writers * n), keys_a_writer(n) {}
};

std::string name_of(uint64_t key) { return "key " + std::to_string(key); }

void write_one(Run& run, uint64_t key, std::string* value) {
  Progress& progress = run.keys[key];
  const uint64_t version = progress.begun.load() + 1;
  const std::string name = name_of(key);
  progress.begun.store(version);
  if (is_deleted(version)) {
    if (const int64_t got = run.store->del(bytes_of(name));
        got != static_cast<int64_t>(length_of(key, version - 1)))
      FAIL("del of " + name + " gave " + std::to_string(got));
  } else {
    fill(value, key, version, length_of(key, version));
    int status;
    // The store may be full for a moment, while dead values wait for their readers.
    while ((status = run.store->set(bytes_of(name), bytes_of(*value))) == -ENOSPC)
      run.full.fetch_add(1);
    if (status != 0) FAIL("set gave " + std::to_string(status));
  }
  progress.done.store(version);
  run.writes.fetch_add(1, std::memory_order_relaxed);
}

// One of the versions that begin at `from`, or nothing that was deleted.
void read_one(Run& run, uint64_t key, std::vector<uint64_t>* seen, std::string* buffer,
              std::string* wanted) {
  Progress& progress = run.keys[key];
  const std::string name = name_of(key);
  const uint64_t oldest = std::max(progress.done.load(), (*seen)[key]);
  const int64_t length = run.store->get(bytes_of(name), buffer->data(), buffer->size(), 0);
  const uint64_t newest = progress.begun.load();
  for (uint64_t version = oldest; version <= newest; ++version) {
    if (is_deleted(version) ? length != -ENOENT
                            : length != static_cast<int64_t>(length_of(key, version)))
      continue;
    if (!is_deleted(version)) {
      fill(wanted, key, version, length_of(key, version));
      if (memcmp(wanted->data(), buffer->data(), wanted->size()) != 0) continue;
    }
    (*seen)[key] = version;
    run.reads.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  FAIL("get of " + name + " gave " + std::to_string(length) + ", which is none of versions " +
       std::to_string(oldest) + " to " + std::to_string(newest));
}

// Values whose every word says which thread wrote them and when.
void write_shared(Run& run, uint64_t writer, Random& random) {
  const std::string name = "shared " + std::to_string(random.below(kShared));
  const uint64_t length = 8 * (1 + random.below(60));
  const std::vector<uint64_t> words(length / 8, writer << 32 | length);
  int status = 0;
  if (random.below(8))
    while ((status = run.store->set(bytes_of(name), {words.data(), length})) == -ENOSPC)
      run.full.fetch_add(1);
  else if (run.store->del(bytes_of(name)) < -ENOENT)
    status = -1;
  if (status != 0) FAIL("set or del of " + name);
}

void read_shared(Run& run, Random& random, uint64_t writers) {
  const std::string name = "shared " + std::to_string(random.below(kShared));
  uint64_t words[64];
  const int64_t length = run.store->get(bytes_of(name), words, sizeof words, 0);
  if (length == -ENOENT) return;
  if (length < 8 || length > 480) FAIL(name + " has length " + std::to_string(length));
  for (int64_t i = 0; i < length / 8; ++i) {
    if (words[i] != words[0] || (words[i] & 0xffffffff) != static_cast<uint64_t>(length) ||
        words[i] >> 32 >= writers)
      FAIL(name + " is of two writers or versions");
  }
}

void walk(Run& run) {
  Walk* walk = nullptr;
  REQUIRE(Walk::open(run.store, &walk) == 0);
  std::vector<unsigned> seen(kStaying);
  char buffer[128];
  for (;;) {
    const int64_t length = walk->next(buffer, sizeof buffer - 1);
    if (length == -ENOENT) break;
    if (length <= 0 || length >= 100) FAIL("a walk gave a key of " + std::to_string(length));
    buffer[length] = 0;
    unsigned number;
    if (sscanf(buffer, "staying %u", &number) == 1) ++seen[number];
  }
  walk->close();
  for (const unsigned times : seen) {
    if (times != 1) FAIL("a walk gave a key that stays " + std::to_string(times) + " times");
  }
  run.walks.fetch_add(1);
}

void writer(Run& run, uint64_t number, uint64_t seed) {
  Random random(seed + number);
  std::string value;
  while (!run.over.load(std::memory_order_relaxed)) {
    if (random.below(8) == 0)
      write_shared(run, number, random);
    else
      write_one(run, number * run.keys_a_writer + random.below(run.keys_a_writer), &value);
    if (random.below(4) == 0) {  // pairs that stay also move in the log
      const std::string name = "staying " + std::to_string(random.below(kStaying));
      const std::string long_value(8 + random.below(300), 's');
      if (run.store->set(bytes_of(name), bytes_of(long_value)) != 0) run.full.fetch_add(1);
    }
    if (random.below(64) == 0) {  // the index grows and the log changes under all threads
      const std::string name = "passing " + std::to_string(random.below(20'000));
      if (run.store->set(bytes_of(name), {"x", 1}) != 0) run.full.fetch_add(1);
    }
  }
}

void reader(Run& run, uint64_t number, uint64_t seed, uint64_t writers) {
  Random random(seed ^ (number + 1) << 40);
  std::vector<uint64_t> seen(run.keys.size());
  std::string buffer(kLengthMax, 0), wanted;
  while (!run.over.load(std::memory_order_relaxed)) {
    if (random.below(8) == 0)
      read_shared(run, random, writers);
    else
      read_one(run, random.below(run.keys.size()), &seen, &buffer, &wanted);
    char key[64];
    REQUIRE(random.below(32) != 0 || run.store->random(key, sizeof key) > 0,
            "random found nothing");
  }
}

void check_staying(Run& run) {
  std::vector<uint64_t> seen(run.keys.size());
  std::string buffer(kLengthMax, 0), wanted;
  for (uint64_t key = 0; key < run.keys.size(); ++key) read_one(run, key, &seen, &buffer, &wanted);
  walk(run);
}

void flusher(Run& run, uint64_t* flushes) {
  while (!run.over.load()) {
    const int status = run.store->flush();
    if (status < 0 && status != -ENOSPC) FAIL("flush gave " + std::to_string(status));
    ++*flushes;
    sys::sleep_ns(5'000'000);
  }
}

}  // namespace

TEST_CASE("kv-threads") {
  const uint64_t writes = option("--writes", 60'000), seed = tier::run_seed();
  const uint64_t writers = option("--writers", 4), readers = option("--readers", 4);
  StoreOptions options;
  const char* prefix = text_option("--kept");
  const std::string file = prefix ? prefix + ("-" + std::to_string(getpid())) : "";
  const char* kept = prefix ? file.c_str() : nullptr;
  const char* uri = kept ? kept : text_option("--device");
  options.log_bytes = option("--log", kept ? 8 : 6) * kMiB;
  if (kept) options.contents = Contents::kNew;
  if (kept) make_file(kept, options.log_bytes + kMiB);
  options.device = open_device(uri, options.log_bytes);
  options.dram_bytes = option("--dram", uri ? 5 : 12) * kMiB;
  options.segment_bytes = option("--segment", 0) * kKiB;
  options.shards = 4;
  options.expected_keys = 16;
  options.durability = static_cast<Durability>(option("--durability", 0));
  Store* store = open_store(options);
  for (uint64_t i = 0; i < kStaying; ++i) {
    const std::string name = "staying " + std::to_string(i);
    REQUIRE(store->set(bytes_of(name), bytes_of(name)) == 0);
  }
  Run run(store, writers, option("--keys", 300));
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < writers; ++i) threads.emplace_back([&, i] { writer(run, i, seed); });
  for (uint64_t i = 0; i < readers; ++i)
    threads.emplace_back([&, i] { reader(run, i, seed, writers); });
  for (uint64_t i = option("--walkers", 2); i != 0; --i)
    threads.emplace_back([&] {
      while (!run.over.load()) walk(run);
    });
  uint64_t flushes = 0;
  if (kept) threads.emplace_back([&] { flusher(run, &flushes); });
  // Until everything happened often enough, also on a slow machine.
  while (run.writes.load() < writes || (readers != 0 && run.reads.load() < writes / 4) ||
         run.walks.load() < 3 || store->cleaned_bytes() == 0)
    sys::sleep_ns(10'000'000);
  run.over.store(true);
  for (std::thread& thread : threads) thread.join();
  check_store(store);
  check_staying(run);
  printf("%lu writes, %lu reads, %lu walks, full %lu times; cleaning moved %lu KiB\n",
         run.writes.load(), run.reads.load(), run.walks.load(), run.full.load(),
         store->cleaned_bytes() / 1024);
  const int status = options.durability == Durability::kFlush ? store->flush() : 0;
  if (status < 0) FAIL("flush gave " + std::to_string(status));
  if (store->commits() != 0) printf("%lu commits\n", store->commits());
  store->close();
  if (!kept) return;
  options.contents = Contents::kExisting;
  options.device = open_device(kept, 0);
  run.store = open_store(options);
  check_store(run.store);
  check_staying(run);
  run.store->close();
  printf("flushed %lu times, and came back whole\n", flushes);
  (void)unlink(kept);
}
