// SPDX-License-Identifier: Apache-2.0
// The report of a bench: rows, ratios of rounds, and their table and JSON object; and the checks
// that make a run invalid.
// Threading: plain data.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

double median(std::vector<double> values);  // pre: not empty
// The median of each quantity over the runs that have it.
RunResult median_of(const std::vector<RunResult>& runs);
std::string duration_text(double ns);
std::string number_text(double value);

// One system on one workload. Fields that a bench does not use are "" or 0.
struct BenchRow {
  std::string system, workload, experiment, place, durability;
  unsigned threads = 1;  // of the program, or connections of the clients
  unsigned depth = 1;    // operations in flight per thread or connection
  uint64_t value_bytes = 0;
  int page_cluster = -1;        // swap's setting for this workload; -1: not swap
  std::vector<RunResult> runs;  // one per round

  RunResult middle() const { return median_of(runs); }
  double spread() const;  // (most - least) / median of ops_per_s
};

// The estimator of all benches: ours / theirs for each round in which both were measured. KEY is
// the median of these ratios, KEY_min and KEY_max are the least and the greatest. (The quotient of
// two medians would belong to no round.)
using Ratios = std::map<std::string, double>;
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<double>& ours,
                      const std::vector<double>& theirs);
// "1.52x (1.49 to 1.60)" for `key`; "" if it is not there.
std::string ratio_text(const Ratios& ratios, const std::string& key);

// An aim of the store: a row of the table of targets.
struct BenchTarget {
  std::string name, what;
  double goal = 0;
  bool at_most = false;        // false: at least
  std::vector<double> rounds;  // the figure of each round; empty: not measured
  double figure() const { return median(rounds); }
  bool met() const { return at_most ? figure() <= goal : figure() >= goal; }
};

struct BenchReport {
  std::string bench;
  std::vector<std::pair<std::string, std::string>> options;  // as given, or their defaults
  std::map<std::string, double> sizes;                       // numbers that follow from them
  std::vector<BenchRow> rows;
  std::map<std::string, Ratios> ratios;  // by baseline
  std::vector<std::string> lines;        // below the table
  std::vector<BenchTarget> targets;
  std::map<std::string, std::string> notes;    // name: text
  std::map<std::string, std::string> skipped;  // system or check: reason
  std::vector<std::string> failures;           // why the run is invalid; empty: it is valid
  std::map<std::string, double> peak_bytes;    // of each system's memory cgroup

  // Adds the runs to the row of the same system, experiment and workload, or a new row.
  void add(BenchRow row, const std::vector<RunResult>& runs);
  const BenchRow* find(const std::string& system, const std::string& workload,
                       unsigned threads) const;
  // Adds the ratios of `ours` to `theirs` to ratios[baseline], with keys STEM + quantity, and a
  // line below the table.
  void compare(const std::string& baseline, const std::string& stem, const BenchRow& ours,
               const BenchRow& theirs);
  // Adds the failures of a run. Each begins with `what`.
  void check(const std::string& what, const RunResult& run);
  bool wants(const std::vector<std::string>& systems, const std::string& system) const;
  // Skips each system of `all` that is not in `systems`, unless it has another reason already.
  void skip_unasked(const std::vector<std::string>& systems, const std::vector<std::string>& all);
  // Runs `work`. If it throws, that is a failure, and the system is skipped from then on.
  void attempt(const std::string& system, const std::function<void()>& work);
};
std::string report_json(const BenchReport& report);
std::string report_table(const BenchReport& report);

// Sets counts, rate and latencies of the operations of `seconds`.
void put_latencies(RunResult* run, const Histogram& latencies, double seconds);
// The reasons why a run is invalid, one line each: wrong content, bytes that the disk did not move.
std::vector<std::string> run_failures(const RunResult& run);

}  // namespace lunar::tools
