// SPDX-License-Identifier: Apache-2.0
// What `lunar bench fault` and `lunar bench redis` have in common: both run systems under the same memory limit, with
// more data than DRAM. Their options, one row a system and workload, and the parts of the report that are alike.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <fmt/format.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/common_options.h"
#include "tools/bench/report_parts.h"
#include "tools/bench/run_result.h"
#include "tools/bench/size_option.h"

namespace lunar::tools {

struct MemoryOptions : CommonOptions {
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  std::vector<std::string> workloads, systems;
  std::string options;  // of Lunar's backends, NAME=VALUE,...
};

struct MemoryDefaults {
  std::string dram, quick_dram, allowance;
  std::string data_is, allowance_is;  // for --help
};

// Adds --dram, --data and --allowance to `app`; call settle() after the parse.
class MemoryFlags {
 public:
  MemoryFlags(CLI::App& app, MemoryDefaults defaults);
  void settle(MemoryOptions* options) const;

 private:
  static constexpr uint64_t kDramMin = 16 << 20;
  MemoryDefaults defaults_;
  std::string dram_, data_, allowance_;
};

template <class Run>
struct MemoryResult {
  std::string system, workload;
  unsigned threads = 1;   // of the program, or connections of the clients
  int page_cluster = -1;  // swap's setting for this workload; -1: not swap
  Run median{};           // quantity by quantity over the rounds
  double spread = 0;      // (max - min) / median of ops_per_s
  std::vector<Run> runs;  // round by round

  void put_runs(const std::vector<Run>& rounds) {  // pre: not empty
    runs = rounds;
    median = median_of(runs);
    spread = spread_of(runs, &Run::ops_per_s, median.ops_per_s);
  }
  // Of its ratios' keys.
  std::string stem() const { return fmt::format("{}_t{}_", workload, threads); }
};

template <class Options, class Result>
struct MemoryReport {
  Options options;
  std::vector<Result> results;
  std::map<std::string, std::string> skipped;  // system or check: reason
  std::vector<std::string> failures;           // why the run does not count; empty when it does
  std::map<std::string, double> peak_bytes;    // the highest of each system's memory cgroups

  const Result* find(const std::string& system, const std::string& workload, unsigned threads) const {
    for (const Result& one : results)
      if (one.system == system && one.workload == workload && one.threads == threads) return &one;
    return nullptr;
  }
  // `ours` divided by `baseline`, keys WORKLOAD_tTHREADS_QUANTITY. put_own(&ratios, one, other): further quantities.
  template <class PutOwn>
  Ratios ratios(const std::string& ours, const std::string& baseline, const PutOwn& put_own) const {
    Ratios all;
    for (const Result& one : results) {
      const Result* other = one.system == ours ? find(baseline, one.workload, one.threads) : nullptr;
      if (other == nullptr) continue;
      put_run_ratios(&all, one.stem(), one.runs, other->runs);
      put_own(&all, one, *other);
    }
    return all;
  }
};

// The options object: its beginning and its end.
void open_options(JsonWriter& json, const MemoryOptions& options);
void close_options(JsonWriter& json, const MemoryOptions& options);

template <class Value>
void write_list(JsonWriter& json, const char* key, const std::vector<Value>& values) {
  json.key(key).open('[');
  for (const Value& value : values) json.value(value);
  json.close(']');
}

// The results array. head(one): fields after the threads; tail(one): after the quantities of all runs.
template <class Result, class Head, class Tail>
void write_results(JsonWriter& json, const std::vector<Result>& results, const Head& head, const Tail& tail) {
  json.key("results").open('[');
  for (const Result& one : results) {
    json.open('{').field("system", one.system).field("workload", one.workload).field("threads", one.threads);
    head(one);
    for (const RunField& field : kRunFields) json.field(field.name, one.median.*field.member);
    tail(one);
    json.field("spread", one.spread);
    if (one.page_cluster >= 0) json.field("page_cluster", one.page_cluster);
    json.close('}');
  }
  json.close(']');
}

// A row's note: "page-cluster N", and the ratios under STEM + quantity with their labels.
std::string row_note(int page_cluster, const Ratios& ratios, const std::string& stem,
                     std::initializer_list<std::pair<const char*, const char*>> quantities);

}  // namespace lunar::tools
