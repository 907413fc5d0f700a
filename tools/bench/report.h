// SPDX-License-Identifier: Apache-2.0
// The report of every bench: rows, ratios of rounds, the one table and the one JSON object; and the
// rule by which a run does not count.
// Threading: plain data. May not be used by runtime/ (it allocates).
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
// Quantity by quantity, over the runs that have it.
RunResult median_of(const std::vector<RunResult>& runs);
std::string duration_text(double ns);
std::string number_text(double value);

// One system on one workload. What a bench does not have is "" or 0.
struct BenchRow {
  std::string system, workload, experiment, place, durability;
  unsigned threads = 1;  // of the program, or connections of the clients
  unsigned depth = 1;    // operations that each has in flight
  uint64_t value_bytes = 0;
  int page_cluster = -1;        // swap's setting for this workload; -1: not swap
  std::vector<RunResult> runs;  // that count, round by round

  RunResult middle() const { return median_of(runs); }
  double spread() const;  // (most - least) / median of ops_per_s
};

// The estimator of all benches: ours / theirs of each round in which both were measured; the median
// of these as KEY, the least and the most as KEY_min and KEY_max. (The quotient of two medians is a
// third figure, of no round.)
using Ratios = std::map<std::string, double>;
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<double>& ours,
                      const std::vector<double>& theirs);
// "1.52x (1.49 to 1.60)" of what stands under `key`; "" where nothing does.
std::string ratio_text(const Ratios& ratios, const std::string& key);

// A row of the table of what is aimed at.
struct BenchTarget {
  std::string name, what;
  double goal = 0;
  bool at_most = false;        // or at least
  std::vector<double> rounds;  // the figure of each round; empty: not measured
  double figure() const { return median(rounds); }
  bool met() const { return at_most ? figure() <= goal : figure() >= goal; }
};

struct BenchReport {
  std::string bench;
  std::vector<std::pair<std::string, std::string>> options;  // as given, or their defaults
  std::map<std::string, double> sizes;                       // what followed from them
  std::vector<BenchRow> rows;
  std::map<std::string, Ratios> ratios;  // of each baseline
  std::vector<std::string> lines;        // below the table
  std::vector<BenchTarget> targets;
  std::map<std::string, std::string> notes;    // name: text
  std::map<std::string, std::string> skipped;  // system or check: reason
  std::vector<std::string> failures;           // why the run does not count; empty when it does
  std::map<std::string, double> peak_bytes;    // the highest of each system's memory cgroups

  // Rows of one system, experiment and workload are one.
  void add(BenchRow row, const std::vector<RunResult>& runs);
  const BenchRow* find(const std::string& system, const std::string& workload,
                       unsigned threads) const;
  // Puts all ratios of `ours` to `theirs` under ratios[baseline], keys STEM + quantity, and a line
  // below the table.
  void compare(const std::string& baseline, const std::string& stem, const BenchRow& ours,
               const BenchRow& theirs);
  // Failures of a run, each with `what` before it.
  void check(const std::string& what, const RunResult& run);
  bool wants(const std::vector<std::string>& systems, const std::string& system) const;
  // Of `all`, those that are not in `systems` and have no other reason yet.
  void skip_unasked(const std::vector<std::string>& systems, const std::vector<std::string>& all);
  // Does `work`. What it throws is a failure, and the system is skipped from then on.
  void attempt(const std::string& system, const std::function<void()>& work);
};
std::string report_json(const BenchReport& report);
std::string report_table(const BenchReport& report);

// Counts, rate and latencies of what was done in so many seconds.
void put_latencies(RunResult* run, const Histogram& latencies, double seconds);
// What makes one run invalid, one line each: wrong content, bytes the disk did not move.
std::vector<std::string> run_failures(const RunResult& run);

}  // namespace lunar::tools
