// SPDX-License-Identifier: Apache-2.0
// What a set takes: uniform overwrites of a store in a file that is so full, by so many threads,
// while it may be flushed every so often. Prints percentiles; a program to measure with, no test.
//   kv_latency FILE [--percent N] [--threads N] [--seconds N] [--value N] [--log-mib N] [--dram-mib
//   N]
//     [--durability 0|1|2] [--flush-ms N] [--churn TURNS] [--shards N]
// Threading: writers and one that flushes.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "sys/file.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

struct Load {
  uint64_t percent, threads, seconds, value_bytes, flush_ms;
};

// Bytes that this process had written; what is in the page cache is left out, as devices are
// written directly.
uint64_t written_bytes() {
  unsigned long bytes = 0;
  char line[100];
  FILE* file = fopen("/proc/self/io", "r");
  while (file && fgets(line, sizeof line, file) && sscanf(line, "write_bytes: %lu", &bytes) != 1)
    continue;
  if (file) fclose(file);
  return bytes;
}

void overwrite(Store* store, const Load& load, uint64_t keys, uint64_t seed,
               std::vector<uint32_t>* micros) {
  Random random(mix(seed + 2));  // sequences of neighbouring seeds are one, shifted
  std::string value(load.value_bytes, 'v');
  for (const uint64_t end = sys::now_ns() + load.seconds * 1'000'000'000; sys::now_ns() < end;) {
    const uint64_t key = random.below(keys), begun = sys::now_ns();
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
    micros->push_back(static_cast<uint32_t>((sys::now_ns() - begun) / 1000));
  }
}

}  // namespace

TEST_CASE("kv-latency") {
  REQUIRE(lunar_test::g_argc >= 2, "which file?");
  const Load load = {lunar_test::option("--percent", 80), lunar_test::option("--threads", 1),
                     lunar_test::option("--seconds", 10), lunar_test::option("--value", 4000),
                     lunar_test::option("--flush-ms", 0)};
  make_file(lunar_test::g_argv[1], lunar_test::option("--log-mib", 512) * kMiB);
  StoreOptions options;
  options.device = open_device(lunar_test::g_argv[1], 0);
  options.log_bytes = 0;
  options.contents = Contents::kNew;
  options.dram_bytes = lunar_test::option("--dram-mib", 64) * kMiB;
  options.shards = static_cast<unsigned>(lunar_test::option("--shards", options.shards));
  Store* store = open_store(options);
  const uint64_t keys = store->bytes_allocated() / (load.value_bytes + 32) * load.percent / 100;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([=] {
      const std::string value(load.value_bytes, 'v');
      for (uint64_t key = i; key < keys; key += 8)
        REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  Random random(1);
  const std::string churned(load.value_bytes, 'c');
  for (uint64_t i = 0; i < lunar_test::option("--churn", 0) * keys; ++i) {
    const uint64_t key = random.below(keys);
    REQUIRE(store->set({&key, sizeof key}, bytes_of(churned)) == 0);
  }
  REQUIRE(store->flush() == 0);
  store->close();
  options.device = open_device(lunar_test::g_argv[1], 0);
  options.contents = Contents::kKept;
  options.durability = static_cast<Durability>(lunar_test::option("--durability", 0));
  store = open_store(options);
  const uint64_t before = written_bytes();
  std::atomic<bool> over{false};
  std::thread flusher([&] {
    for (; load.flush_ms && !over; sys::sleep_ns(load.flush_ms * 1'000'000))
      REQUIRE(store->flush() == 0);
  });
  std::vector<std::vector<uint32_t>> micros(load.threads);
  for (uint64_t i = 0; i < load.threads; ++i)
    threads.emplace_back([&, i] { overwrite(store, load, keys, i, &micros[i]); });
  for (std::thread& thread : threads) thread.join();
  over = true;
  flusher.join();
  std::vector<uint32_t> all;
  for (const std::vector<uint32_t>& one : micros) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))] / 1000.0;
  };
  printf(
      "%lu sets; ms: p50 %.3f, p99 %.3f, p99.9 %.3f, p99.99 %.3f, most %.3f; cleaned %lu MiB, "
      "bytes written a byte "
      "set %.2f\n",
      all.size(), at(0.5), at(0.99), at(0.999), at(0.9999), at(1), store->cleaned_bytes() / kMiB,
      static_cast<double>(written_bytes() - before) /
          static_cast<double>(all.size() * (load.value_bytes + 8)));
  store->close();
  remove(lunar_test::g_argv[1]);
}
