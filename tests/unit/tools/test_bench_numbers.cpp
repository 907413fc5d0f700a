// SPDX-License-Identifier: Apache-2.0
// What the benches count with: the latency histogram, the zipf generator, page content, medians, ratios and honesty.
#include "tests/catch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tools/bench/fault/fault_report.h"
#include "tools/bench/fault/page_sweep.h"
#include "tools/bench/histogram.h"
#include "tools/bench/page_content.h"
#include "tools/bench/random.h"
#include "tools/bench/run_result.h"
#include "tools/bench/swap_file.h"

using namespace lunar::tools;

namespace {
bool near(double a, double b, double relative) { return std::fabs(a - b) <= relative * std::fabs(b); }
}  // namespace

TEST_CASE("histogram buckets are in order and narrower than 1/64") {
  for (uint64_t ns : {1ull, 63ull, 64ull, 65ull, 127ull, 128ull, 1000ull, 123456ull, 99999999ull, 4000000000000ull}) {
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
    const auto exact = static_cast<double>(values[static_cast<size_t>(q * static_cast<double>(values.size())) - 1]);
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
  for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{97}, uint64_t{4096}, uint64_t{6000}}) {
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

TEST_CASE("walks visit every page of a pass once") {
  for (const uint64_t stride : {uint64_t{1}, uint64_t{16}}) {
    Walk walk;
    walk.low = 100;
    walk.span = 64;
    std::vector<int> visits(64);
    for (uint64_t s = 0; s < walk.steps_per_pass(stride); ++s) ++visits[walk.page(s, stride) - 100];
    CHECK(std::count(visits.begin(), visits.end(), 1) == 64);
  }
}

TEST_CASE("a run's result survives the pipe between bench and child") {
  RunResult run, back;
  run.ops = 12345;
  run.mean_ns = 1.25e5;
  run.disk_read_bytes = 4096.0 * 12345;
  REQUIRE(parse_run(format_run(run), &back));
  for (const RunField& field : kRunFields) CHECK(back.*field.member == run.*field.member);
  CHECK_FALSE(parse_run("error something", &back));
}

TEST_CASE("a run whose disk did not move the bytes fails") {
  RunResult run;
  run.must_read_bytes = 1000 * 4096;
  run.disk_read_bytes = 990 * 4096;
  CHECK(run_failures(run).empty());
  run.disk_read_bytes = 980 * 4096;
  CHECK(run_failures(run).size() == 1);
  run.disk_read_bytes = -1;  // the host does not tell: named elsewhere
  CHECK(run_failures(run).empty());
  run.mismatches = 1;
  CHECK(run_failures(run).size() == 1);
}

TEST_CASE("ratios divide Lunar by the baseline on the same quantity") {
  FaultReport report;
  for (const auto& [system, workload, rate] :
       std::vector<std::tuple<const char*, const char*, double>>{{"lunar", "uniform", 30000},
                                                                 {"swap", "uniform", 20000},
                                                                 {"lunar", "prefetch", 80000},
                                                                 {"swap", "prefetch", 40000}}) {
    RunResult run;
    run.ops_per_s = rate;
    run.p99_ns = 1e9 / rate;
    report.results.push_back({system, workload, 1, -1, run, 0, {run}});
  }
  const auto ratios = ratios_against(report, "swap");
  CHECK(ratios.at("uniform_t1_ops") == 1.5);
  CHECK(near(ratios.at("uniform_t1_p99"), 1 / 1.5, 1e-9));
  CHECK(ratios.at("prefetch_t1_ops") == 2);
  CHECK(ratios.at("prefetch_t1_ops_vs_uniform") == 4);
  const std::string json = report_json(report);
  CHECK(json.find("\"ratios\":{\"swap\":{") != std::string::npos);
  CHECK(json.find("\"uniform_t1_ops\":1.5") != std::string::npos);
}

TEST_CASE("a ratio is the median of the rounds' ratios, not the ratio of medians") {
  Ratios ratios;
  put_round_ratios(&ratios, "ops", {10, 40, 30}, {10, 10, 20});  // medians: 30 and 10
  CHECK(ratios.at("ops") == 1.5);
  CHECK(ratios.at("ops_min") == 1);
  CHECK(ratios.at("ops_max") == 4);
  put_round_ratios(&ratios, "p99", {3, 0}, {2, 5});  // not measured in the second round
  CHECK(ratios.at("p99") == 1.5);
  put_round_ratios(&ratios, "none", {0}, {5});
  CHECK(ratios.count("none") == 0);
  CHECK(ratio_text(ratios, "ops") == "1.50x (1.00 to 4.00)");
  CHECK(ratio_text(ratios, "none").empty());
}

TEST_CASE("medians are taken quantity by quantity") {
  std::vector<RunResult> runs(3);
  runs[0].ops = 1, runs[1].ops = 9, runs[2].ops = 5;
  runs[0].p99_ns = 7, runs[1].p99_ns = 3, runs[2].p99_ns = 8;
  CHECK(median_of(runs).ops == 5);
  CHECK(median_of(runs).p99_ns == 7);
  runs.pop_back();
  CHECK(median_of(runs).ops == 5);
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
