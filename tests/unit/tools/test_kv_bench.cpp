// SPDX-License-Identifier: Apache-2.0
// `lunar bench kv`: a value that is not the one that was written is noticed; ratios, medians and targets are what they
// say.
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/catch.h"
#include "tools/bench/kv/kv_content.h"
#include "tools/bench/kv/kv_pace.h"
#include "tools/bench/kv/kv_plot.h"
#include "tools/bench/kv/kv_report.h"

using namespace lunar::tools;

namespace {

bool near(double a, double b) { return std::fabs(a - b) < 1e-9 * std::fmax(1, std::fabs(b)); }

KvResult row(const std::string& system, const std::string& experiment, const std::string& workload,
             const std::vector<double>& rates) {
  KvResult result;
  result.system = system;
  result.experiment = experiment;
  result.workload = workload;
  for (const double rate : rates) {
    KvRun run;
    run.ops_per_s = rate;
    run.mean_ns = 1e9 / rate;
    run.p99_ns = 5e9 / rate;
    run.cores = 1.5;
    run.ops_per_core_s = rate / run.cores;
    run.bytes_per_s = 32 * rate;
    result.runs.push_back(run);
  }
  result.median = median_of(result.runs);
  return result;
}

const KvTarget& target(const std::vector<KvTarget>& targets, const std::string& name) {
  const auto found = std::find_if(targets.begin(), targets.end(), [&](const KvTarget& t) { return t.name == name; });
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
    std::copy(later.begin(), later.begin() + 24, value.begin());  // torn: the head of one version, the rest of another
    CHECK(content.check(41, value.data(), static_cast<int64_t>(bytes)) == 0);
  }
}

TEST_CASE("keys of different numbers differ") {
  const KvContent content(1, 24);
  std::set<KvKey> keys;
  for (uint64_t number = 0; number < 10'000; ++number) keys.insert(content.key(number));
  CHECK(keys.size() == 10'000);
}

TEST_CASE("a run of a store survives the pipe between bench and child") {
  KvRun run, back;
  run.ops_per_s = 1.25e6;
  run.ios = 77;
  run.index_bytes = 14.5;
  REQUIRE(parse_kv_run(format_kv_run(run), &back));
  for (const RunField& field : kRunFields) CHECK(back.*field.member == run.*field.member);
  for (const KvRunField& field : kKvRunFields) CHECK(back.*field.member == run.*field.member);
  CHECK_FALSE(parse_kv_run("error none", &back));
}

TEST_CASE("ratios of the key/value bench are medians of the rounds' ratios") {
  KvReport report;
  report.results.push_back(row("lunar", "cold", "uniform", {100, 200, 330}));
  report.results.push_back(row("rocksdb", "cold", "uniform", {50, 50, 300}));
  report.results.push_back(row("rocksdb", "cold", "zipf", {50, 50, 300}));
  const auto ratios = kv_ratios(report);
  REQUIRE(ratios.count("rocksdb") == 1);
  CHECK(near(ratios.at("rocksdb").at("cold_uniform_ops"), 2));
  CHECK(near(ratios.at("rocksdb").at("cold_uniform_ops_min"), 1.1));
  CHECK(near(ratios.at("rocksdb").at("cold_uniform_ops_max"), 4));
  CHECK(ratios.at("rocksdb").count("cold_zipf_ops") == 0);
  CHECK(ratios.count("lunar") == 0);
}

TEST_CASE("targets of the key/value bench: figure, bound, and what was not measured") {
  KvReport report;
  report.results.push_back(row("lunar", "memory", "get_async", {800e3, 950e3, 900e3}));
  report.results.push_back(row("lunar", "cold", "uniform", {100, 200, 330}));
  report.results.push_back(row("rocksdb", "cold", "uniform", {50, 50, 300}));
  report.results.push_back(row("raw", "cold", "uniform", {200, 200, 200}));
  report.results.push_back(row("lunar", "cold", "uniform_1", {1e4, 1e4, 1e4}));
  report.results.push_back(row("raw", "cold", "uniform_1", {2e4, 1e4, 12500}));
  report.results.push_back(row("lunar", "scan", "next_file", {10, 10, 10}));
  report.results.push_back(row("lunar", "scan", "next_many_file", {500, 1500, 900}));
  const std::vector<KvTarget> targets = kv_targets(report);
  CHECK(near(target(targets, "memory_get_ops").figure(), 900e3));
  CHECK(target(targets, "memory_get_ops").met());
  CHECK(near(target(targets, "cold_uniform_rocksdb").figure(), 2));
  CHECK(near(target(targets, "cold_raw").figure(), 1));
  CHECK(near(target(targets, "cold_one_us").figure(), 20));  // 50, 0 and 20 us
  CHECK_FALSE(target(targets, "cold_one_us").met());
  CHECK(near(target(targets, "next_many_file").figure(), 90));
  CHECK_FALSE(target(targets, "next_many_file").met());
  CHECK(target(targets, "ycsb_a_rocksdb").rounds.empty());
  CHECK(target(targets, "load_flush_lmdb").rounds.empty());
}

TEST_CASE("CPUs of a paced run count where it kept its pace") {
  KvReport report;
  report.results.push_back(row("lunar", "memory", "get_paced", {908e3, 300e3, 905e3}));
  report.results[0].runs[1].cores = 0.5;
  CHECK(target(kv_targets(report), "memory_paced_cores").rounds == std::vector<double>{1.5, 1.5});
  report.results[0] = row("lunar", "memory", "get_paced", {300e3});
  CHECK(target(kv_targets(report), "memory_paced_cores").rounds.empty());
  CHECK_FALSE(target(kv_targets(report), "memory_paced_ops").met());
}

TEST_CASE("a pace allows what was allowed, and no pace everything") {
  KvPace pace;
  pace.begin(true);
  CHECK_FALSE(pace.take());
  pace.allow(2);
  CHECK(pace.take());
  CHECK(pace.take());
  CHECK_FALSE(pace.take());
  pace.allow(1);
  CHECK(pace.take());
  pace.begin(false);
  for (int i = 0; i < 100; ++i) CHECK(pace.take());
}

TEST_CASE("overwrites: the slowest of a thousand in milliseconds, and bytes written a byte set") {
  KvReport report;
  report.results.push_back(row("lunar", "overwrite", "group_80_t16", {1000, 1000, 1000}));
  const double p999_ns[] = {9e6, 12e6, 11e6}, written[] = {2.5, 2.6, 2.7};
  for (size_t i = 0; i < 3; ++i) {
    report.results[0].runs[i].p999_ns = p999_ns[i];
    report.results[0].runs[i].amplification = written[i];
  }
  const std::vector<KvTarget> targets = kv_targets(report);
  CHECK(near(target(targets, "overwrite_group_80_t16_ms").figure(), 11));
  CHECK_FALSE(target(targets, "overwrite_group_80_t16_ms").met());
  CHECK(near(target(targets, "overwrite_group_80_t16_wa").figure(), 2.6));
  CHECK_FALSE(target(targets, "overwrite_group_80_t16_wa").met());
  CHECK(target(targets, "overwrite_flush_70_t1_wa").rounds.empty());
}

TEST_CASE("the pictures of the key/value bench hold its figures") {
  KvReport report;
  report.results.push_back(row("lunar", "cold", "uniform", {123457}));
  report.results.push_back(row("lunar", "paper", "file_24_get_t1_qd32", {765432}));
  std::vector<std::string> files;
  const std::string script = plot_script(report, "/there", &files);
  CHECK(script.find("123457") != std::string::npos);
  CHECK(script.find("t1_qd32 765432") != std::string::npos);
  CHECK(files == std::vector<std::string>{"/there/kv-cold.svg", "/there/kv-cold-p99.svg", "/there/kv-paper-get.svg",
                                          "/there/kv-paper-get-cpus.svg"});  // no IO/s were counted
}
