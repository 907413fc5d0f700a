// SPDX-License-Identifier: Apache-2.0
// The benches' arithmetic: the latency histogram, the zipf generator, page content, medians, ratios
// and honesty.
#include "tests/catch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/page_content.h"
#include "tools/bench/random.h"
#include "tools/bench/report.h"
#include "tools/bench/swap_file.h"

using namespace lunar::tools;

namespace {
bool near(double a, double b, double relative) {
  return std::fabs(a - b) <= relative * std::fabs(b);
}

BenchRow row_of(const char* system, const char* workload) {
  BenchRow row;
  row.system = system;
  row.workload = workload;
  return row;
}

RunResult run_of(double rate) {
  RunResult run;
  run.seconds = 2;
  run.ops = 2 * rate;
  run.ops_per_s = rate;
  run.p99_ns = 1e9 / rate;
  return run;
}
}  // namespace

TEST_CASE("histogram buckets are in order and narrower than 1/64") {
  for (uint64_t ns : {1ull, 63ull, 64ull, 65ull, 127ull, 128ull, 1000ull, 123456ull, 99999999ull,
                      4000000000000ull}) {
    const size_t bucket = Histogram::bucket_of(ns);
    CHECK(near(Histogram::middle_of(bucket), static_cast<double>(ns), 1.0 / 64));
    CHECK(Histogram::bucket_of(ns + 1) >= bucket);
  }
}

TEST_CASE("histogram percentiles match sorted values") {
  Random random(7);
  Histogram histogram, half;
  std::vector<uint64_t> values;
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t value = 500 + random.below(uint64_t{1} << (10 + random.below(15)));
    values.push_back(value);
    sum += static_cast<double>(value);
    (i % 2 == 0 ? histogram : half).add(value);
  }
  histogram.merge(half);
  std::sort(values.begin(), values.end());
  CHECK(histogram.count() == values.size());
  CHECK(histogram.max() == values.back());
  CHECK(near(histogram.mean(), sum / static_cast<double>(values.size()), 1e-9));
  for (const double q : {0.5, 0.9, 0.99, 0.999}) {
    const auto exact = static_cast<double>(
        values[static_cast<size_t>(q * static_cast<double>(values.size())) - 1]);
    CHECK(near(histogram.percentile(q), exact, 0.02));
  }
  CHECK(Histogram().percentile(0.99) == 0);
}

TEST_CASE("zipf draws have the probabilities the formula gives") {
  constexpr uint64_t kCount = 10000, kDraws = 400000;
  const ZipfGenerator zipf(kCount, 0.99);
  Random random(11);
  std::vector<uint64_t> seen(kCount);
  for (uint64_t i = 0; i < kDraws; ++i) ++seen[zipf.rank(random)];
  double zeta = 0;
  for (uint64_t i = 1; i <= kCount; ++i) zeta += 1 / std::pow(static_cast<double>(i), 0.99);
  CHECK(near(static_cast<double>(seen[0]) / kDraws, 1 / zeta, 0.05));
  CHECK(near(static_cast<double>(seen[1]) / kDraws, std::pow(0.5, 0.99) / zeta, 0.05));
  // The cumulative share that the honesty check relies on is that of the generator itself.
  for (const uint64_t top : {uint64_t{10}, uint64_t{100}, uint64_t{2500}, uint64_t{9999}}) {
    uint64_t inside = 0;
    for (uint64_t i = 0; i < top; ++i) inside += seen[i];
    CHECK(near(static_cast<double>(inside) / kDraws, zipf.mass(top), 0.02));
  }
  CHECK(zipf.mass(0) == 0);
  CHECK(zipf.mass(kCount) == 1);
}

TEST_CASE("zipf scatters ranks over all pages without loss") {
  for (const uint64_t count :
       {uint64_t{1}, uint64_t{2}, uint64_t{97}, uint64_t{4096}, uint64_t{6000}}) {
    const ZipfGenerator zipf(count, 0.99);
    std::vector<bool> hit(count);
    for (uint64_t rank = 0; rank < count; ++rank) hit[zipf.scattered(rank)] = true;
    CHECK(std::count(hit.begin(), hit.end(), true) == static_cast<ptrdiff_t>(count));
  }
}

TEST_CASE("page content tells pages, words and versions apart") {
  const PageContent content(3, 4096);
  std::vector<uint64_t> page(512), other(512);
  content.fill(41, page.data());
  content.fill(42, other.data());
  CHECK(page[0] == content.stamp(41, 0));
  CHECK(content.stamp(41, 5) == page[0] + 5);
  CHECK(content.stamp(41, 0) != content.stamp(42, 0));
  int equal = 0, zero = 0;
  for (size_t i = 1; i < page.size(); ++i) {
    CHECK(page[i] == content.word(41, i));
    equal += page[i] == other[i];
    zero += page[i] == 0;
  }
  CHECK(equal == 0);
  CHECK(zero == 0);
}

TEST_CASE("a run's result survives the pipe between bench and child") {
  RunResult run, back;
  double value = 1.25e5;
  for (const RunField& field : kRunFields) run.*field.member = value += 4096.0;
  REQUIRE(parse_run(format_run(run), &back));
  for (const RunField& field : kRunFields) CHECK(back.*field.member == run.*field.member);
  CHECK_FALSE(parse_run("error something", &back));
  // A figure without a measurement is not sent, and stays unmeasured.
  back = RunResult();
  REQUIRE(parse_run(format_run(run_of(7)), &back));
  CHECK(back.ops_per_s == 7);
  CHECK(std::isnan(back.disk_read_bytes));
  CHECK(format_run(RunResult()).find("nan") == std::string::npos);
}

TEST_CASE("a run whose disk did not move the bytes fails, and so does the bench") {
  RunResult run;
  run.must_read_bytes = 1000 * 4096;
  run.disk_read_bytes = 990 * 4096;
  CHECK(run_failures(run).empty());
  run.disk_read_bytes = 980 * 4096;
  CHECK(run_failures(run).size() == 1);
  run.disk_read_bytes = kNone;  // the host does not tell: named elsewhere
  CHECK(run_failures(run).empty());
  run.must_write_bytes = 4096;
  run.disk_written_bytes = 0;
  run.mismatches = 1;
  CHECK(run_failures(run).size() == 2);
  run.error = "Input/output error";
  BenchReport report;
  report.check("lunar read", run);
  REQUIRE(report.failures.size() == 2);
  CHECK(report.failures[0] ==
        "lunar read: 1 reads did not find what was written: first: Input/output error");
  CHECK(report_table(report).find("FAILED: " + report.failures[0]) != std::string::npos);
  auto json = nlohmann::json::parse(report_json(report));
  CHECK(json["failures"].size() == 2);
}

TEST_CASE("a ratio is the median of the rounds' ratios, not the ratio of medians") {
  Ratios ratios;
  put_round_ratios(&ratios, "ops", {10, 40, 30}, {10, 10, 20});  // medians: 30 and 10
  CHECK(ratios.at("ops") == 1.5);
  CHECK(ratios.at("ops_min") == 1);
  CHECK(ratios.at("ops_max") == 4);
  put_round_ratios(&ratios, "p99", {3, 0, kNone}, {2, 5, 1});  // measured in the first round alone
  CHECK(ratios.at("p99") == 1.5);
  put_round_ratios(&ratios, "none", {0}, {5});
  CHECK(ratios.count("none") == 0);
  CHECK(ratio_text(ratios, "ops") == "1.500x (1.000 to 4.000)");
  CHECK(ratio_text(ratios, "none").empty());
}

TEST_CASE("two rows are compared quantity by quantity; what was not measured is not claimed") {
  BenchReport report;
  report.add(row_of("lunar", "get"), {run_of(100), run_of(200), run_of(330)});
  report.add(row_of("swap", "get"), {run_of(50), run_of(50), run_of(300)});
  const BenchRow *ours = report.find("lunar", "get", 1), *theirs = report.find("swap", "get", 1);
  REQUIRE(ours != nullptr);
  REQUIRE(theirs != nullptr);
  CHECK(report.find("lunar", "get", 2) == nullptr);
  CHECK(report.find("lunar", "set", 1) == nullptr);
  report.compare("swap", "get_", *ours, *theirs);
  const Ratios& ratios = report.ratios.at("swap");
  CHECK(near(ratios.at("get_ops"), 2, 1e-9));
  CHECK(near(ratios.at("get_ops_min"), 1.1, 1e-9));
  CHECK(near(ratios.at("get_ops_max"), 4, 1e-9));
  CHECK(near(ratios.at("get_p99"), 0.5, 1e-9));
  CHECK(ratios.count("get_mean") == 0);
  CHECK(ratios.count("get_time") == 0);
  CHECK(report_table(report).find("lunar/swap get_: 2.000x (1.100 to 4.000) op/s") !=
        std::string::npos);
  report.compare("none", "get_", BenchRow(), *theirs);
  CHECK(report.ratios.count("none") == 0);
  CHECK(report.lines.size() == 1);
}

TEST_CASE("medians are taken quantity by quantity, over the runs that have it") {
  std::vector<RunResult> runs(3);
  runs[0].ops = 1, runs[1].ops = 9, runs[2].ops = 5;
  runs[0].p99_ns = 7, runs[1].p99_ns = 3, runs[2].p99_ns = 8;
  runs[0].job_s = 3, runs[2].job_s = 7;
  CHECK(median_of(runs).ops == 5);
  CHECK(median_of(runs).p99_ns == 7);
  CHECK(median_of(runs).job_s == 5);
  CHECK(std::isnan(median_of(runs).space));
  runs.pop_back();
  CHECK(median_of(runs).ops == 5);
}

TEST_CASE("JSON of every bench: rows with what was measured, ratios, targets, reasons") {
  BenchReport report;
  report.bench = "fault";
  report.options = {{"dram", "16m"}};
  report.sizes = {{"dram_bytes", 16 << 20}};
  report.skipped["swap"] = "a \"reason\"";
  report.notes["device"] = "file";
  report.peak_bytes["lunar"] = 4096;
  report.ratios["swap"] = {{"uniform_t1_ops", 1.5}};
  report.targets = {{"most", "what", 10, true, {9, 12, 11}},
                    {"least", "what", 10, false, {9, 12, 11}},
                    {"none", "what", 1, false, {}}};
  report.add(row_of("lunar", "uniform"), {run_of(100), run_of(150)});
  report.add(row_of("lunar", "uniform"), {run_of(50)});  // the same row
  auto json = nlohmann::json::parse(report_json(report));
  CHECK(json["bench"] == "fault");
  CHECK(json["host"]["cpus"] >= 1);
  CHECK(json["options"]["dram"] == "16m");
  CHECK(json["sizes"]["dram_bytes"] == 16 << 20);
  CHECK(json["skipped"]["swap"] == "a \"reason\"");
  CHECK(json["notes"]["device"] == "file");
  CHECK(json["ratios"]["swap"]["uniform_t1_ops"] == 1.5);
  CHECK(json["memory_peak_bytes"]["lunar"] == 4096);
  CHECK(json["failures"].empty());
  REQUIRE(json["results"].size() == 1);
  auto& row = json["results"][0];
  CHECK(row["ops_per_s"] == 100);
  CHECK(row["spread"] == 1);
  CHECK(row["rounds"] == 3);
  CHECK(row["rounds_ops_per_s"].size() == 3);
  for (const char* absent :
       {"disk_read_bytes", "job_s", "experiment", "page_cluster", "value_bytes"})
    CHECK(!row.contains(absent));
  auto& targets = json["targets"];
  REQUIRE(targets.size() == 3);
  CHECK(targets[0]["at_most"] == 10);
  CHECK(targets[0]["figure"] == 11);
  CHECK(targets[0]["met"] == false);
  CHECK(targets[1]["at_least"] == 10);
  CHECK(targets[1]["met"] == true);
  CHECK(targets[2]["measured"] == false);
  CHECK(!targets[2].contains("figure"));
  const std::string table = report_table(report);
  CHECK(table.find("skipped: swap: a \"reason\"") != std::string::npos);
  CHECK(table.find("not measured") != std::string::npos);
  CHECK(table.find("page-cluster") == std::string::npos);  // no row has it
}

TEST_CASE("a swap header is what swapon expects") {
  const std::string page = swap_header(64 << 20, 4096);
  REQUIRE(page.size() == 4096);
  CHECK(page.substr(4086) == "SWAPSPACE2");
  uint32_t words[3];
  memcpy(words, &page[1024], sizeof words);
  CHECK(words[0] == 1);
  CHECK(words[1] == (64u << 20) / 4096 - 1);
  CHECK(words[2] == 0);
}
