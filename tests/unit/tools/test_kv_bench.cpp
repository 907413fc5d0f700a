// SPDX-License-Identifier: Apache-2.0
// `lunar bench kv`: a value that differs from what was written is noticed, and targets are what
// their names say.
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/catch.h"
#include "tools/bench/kv/kv_content.h"
#include "tools/bench/kv/kv_options.h"

using namespace lunar::tools;

namespace {

bool near(double a, double b) { return std::fabs(a - b) < 1e-9 * std::fmax(1, std::fabs(b)); }

void add(BenchReport* report, const std::string& system, const std::string& experiment,
         const std::string& workload, const std::vector<double>& rates) {
  BenchRow row;
  row.system = system;
  row.experiment = experiment;
  row.workload = workload;
  std::vector<RunResult> runs;
  for (const double rate : rates) {
    RunResult& run = runs.emplace_back();
    run.ops_per_s = rate;
    run.mean_ns = 1e9 / rate;
    run.p99_ns = 5e9 / rate;
  }
  report->add(row, runs);
}

const BenchTarget& target(const std::vector<BenchTarget>& targets, const std::string& name) {
  const auto found = std::find_if(targets.begin(), targets.end(),
                                  [&](const BenchTarget& t) { return t.name == name; });
  REQUIRE(found != targets.end());
  return *found;
}

}  // namespace

TEST_CASE("one changed bit of a value is noticed, wherever it is") {
  for (const size_t bytes : {size_t{24}, size_t{128}, size_t{4096}}) {
    const KvContent content(7, bytes);
    std::vector<char> value(bytes);
    content.fill(41, 3, value.data());
    REQUIRE(content.check(41, value.data(), static_cast<int64_t>(bytes)) == 3);
    for (size_t bit = 0; bit < 8 * bytes; bit += 5) {
      value[bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << bit % 8));
      CHECK(content.check(41, value.data(), static_cast<int64_t>(bytes)) == 0);
      value[bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << bit % 8));
    }
    CHECK(content.check(42, value.data(), static_cast<int64_t>(bytes)) == 0);
    CHECK(content.check(41, value.data(), static_cast<int64_t>(bytes) - 1) == 0);
    std::vector<char> later(bytes);
    content.fill(41, 4, later.data());
    CHECK(content.check(41, later.data(), static_cast<int64_t>(bytes)) == 4);
    if (bytes <= 24) continue;
    // torn: the head of one version, the rest of another
    std::copy(later.begin(), later.begin() + 24, value.begin());
    CHECK(content.check(41, value.data(), static_cast<int64_t>(bytes)) == 0);
  }
}

TEST_CASE("keys of different numbers differ") {
  const KvContent content(1, 24);
  std::set<KvKey> keys;
  for (uint64_t number = 0; number < 10'000; ++number) keys.insert(content.key(number));
  CHECK(keys.size() == 10'000);
}

TEST_CASE("targets of the key/value bench: figure, bound, and what was not measured") {
  BenchReport report;
  add(&report, "lunar", "memory", "get_async", {800e3, 950e3, 900e3});
  add(&report, "lunar", "cold", "uniform", {100, 200, 330});
  add(&report, "rocksdb", "cold", "uniform", {50, 50, 300});
  add(&report, "fio", "cold", "uniform", {200, 200, 200});
  add(&report, "lunar", "cold", "uniform_1", {1e4, 1e4, 1e4});
  add(&report, "fio", "cold", "uniform_1", {2e4, 1e4, 12500});
  add(&report, "lunar", "ycsb", "b", {130, 130, 130});
  add(&report, "rocksdb", "ycsb", "b", {100, 100, 100});
  const std::vector<BenchTarget> targets = kv_targets(report);
  CHECK(near(target(targets, "memory_get_ops").figure(), 900e3));
  CHECK(target(targets, "memory_get_ops").met());
  CHECK(near(target(targets, "cold_uniform_rocksdb").figure(), 2));
  CHECK(near(target(targets, "cold_fio").figure(), 1));
  CHECK(target(targets, "cold_fio").met());
  CHECK(near(target(targets, "cold_one_fio").figure(), 1.25));  // 2, 1 and 1.25 times as long
  CHECK_FALSE(target(targets, "cold_one_fio").met());
  CHECK(near(target(targets, "ycsb_b_rocksdb").figure(), 1.3));
  CHECK(near(target(targets, "ycsb_b_p99_rocksdb").figure(), 1 / 1.3));
  CHECK(target(targets, "ycsb_b_p99_rocksdb").met());
  CHECK(target(targets, "ycsb_a_rocksdb").rounds.empty());
  CHECK(target(targets, "load_flush_lmdb").rounds.empty());
  std::set<std::string> names;
  for (const BenchTarget& one : targets) CHECK(names.insert(one.name).second);
  CHECK(names.count("load_group_rocksdb") == 0);  // only where it was asked for
}

TEST_CASE("overwrites: the slowest of a thousand in milliseconds, and bytes written a byte set") {
  BenchReport report;
  add(&report, "lunar", "overwrite", "group_80_t16", {1000, 1000, 1000});
  const double p999_ns[] = {9e6, 12e6, 11e6}, written[] = {2.5, 2.6, 2.7};
  for (size_t i = 0; i < 3; ++i) {
    report.rows[0].runs[i].p999_ns = p999_ns[i];
    report.rows[0].runs[i].amplification = written[i];
  }
  const std::vector<BenchTarget> targets = kv_targets(report);
  CHECK(near(target(targets, "overwrite_group_80_t16_ms").figure(), 11));
  CHECK_FALSE(target(targets, "overwrite_group_80_t16_ms").met());
  CHECK(near(target(targets, "overwrite_group_80_t16_wa").figure(), 2.6));
  CHECK_FALSE(target(targets, "overwrite_group_80_t16_wa").met());
  CHECK(target(targets, "overwrite_flush_70_t1_wa").rounds.empty());
}
