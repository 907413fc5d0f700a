// SPDX-License-Identifier: Apache-2.0
// What the reports of all benches share: medians, ratios of rounds, the common objects of the JSON, times for people,
// and the rule by which a run does not count.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/run_result.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

double median(std::vector<double> values);  // pre: not empty
std::string duration_text(double ns);
void write_host(JsonWriter& json);
// "skipped", "memory_peak_bytes" and "failures", and the end of the report's object.
void write_end(JsonWriter& json, const std::map<std::string, std::string>& skipped,
               const std::map<std::string, double>& peak_bytes, const std::vector<std::string>& failures);
// The "ratios" object; baselines without any are left out.
using Ratios = std::map<std::string, double>;
void write_ratios(JsonWriter& json, const std::map<std::string, Ratios>& of_baselines);
// The table's last lines: what was skipped, what failed.
std::string end_lines(const std::map<std::string, std::string>& skipped, const std::vector<std::string>& failures);

// The one estimator of all benches: ours / theirs of each round in which both were measured; the median of these as
// KEY, the least and the most as KEY_min and KEY_max. (The quotient of two medians is a third figure, of no round.)
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<double>& ours,
                      const std::vector<double>& theirs);
template <class Run, class Quantity>
void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<Run>& ours,
                      const std::vector<Run>& theirs, Quantity quantity) {
  const auto values = [&](const std::vector<Run>& runs) {
    std::vector<double> out;
    for (const Run& run : runs) out.push_back(run.*quantity);
    return out;
  };
  put_round_ratios(ratios, key, values(ours), values(theirs));
}
// "1.52x (1.49 to 1.60)" of what stands under `key`; "" where nothing does.
std::string ratio_text(const Ratios& ratios, const std::string& key);
// STEMops, mean, p50, p99, p999 and cpu.
template <class Run>
void put_run_ratios(Ratios* ratios, const std::string& stem, const std::vector<Run>& ours,
                    const std::vector<Run>& theirs) {
  put_round_ratios(ratios, stem + "ops", ours, theirs, &RunResult::ops_per_s);
  put_round_ratios(ratios, stem + "mean", ours, theirs, &RunResult::mean_ns);
  put_round_ratios(ratios, stem + "p50", ours, theirs, &RunResult::p50_ns);
  put_round_ratios(ratios, stem + "p99", ours, theirs, &RunResult::p99_ns);
  put_round_ratios(ratios, stem + "p999", ours, theirs, &RunResult::p999_ns);
  put_round_ratios(ratios, stem + "cpu", ours, theirs, &RunResult::cpu_us_per_op);
}

// Quantity by quantity; zeros of no runs.
RunResult median_of(const std::vector<RunResult>& runs);
// The same of a run with further fields of its own.
template <class Run, class Fields>
Run median_of(const std::vector<Run>& runs, const Fields& own_fields) {
  Run result;
  static_cast<RunResult&>(result) = median_of(std::vector<RunResult>(runs.begin(), runs.end()));
  for (const auto& field : own_fields) {
    std::vector<double> values;
    for (const Run& run : runs) values.push_back(run.*field.member);
    result.*field.member = values.empty() ? 0 : median(values);
  }
  return result;
}

// (max - min) / `middle` of a quantity; 0 where `middle` is.
template <class Run, class Quantity>
double spread_of(const std::vector<Run>& runs, Quantity quantity, double middle) {
  const auto [low, high] = std::minmax_element(runs.begin(), runs.end(),
                                               [&](const Run& a, const Run& b) { return a.*quantity < b.*quantity; });
  return middle > 0 ? ((*high).*quantity - (*low).*quantity) / middle : 0;
}

// Counts, rate and latencies of what was done in so many seconds.
void put_latencies(RunResult* run, const Histogram& latencies, double seconds);

// What makes one run invalid, one line each: wrong stamps, bytes the disk did not move.
std::vector<std::string> run_failures(const RunResult& run);

}  // namespace lunar::tools
