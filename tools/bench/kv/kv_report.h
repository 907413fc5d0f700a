// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench kv`: medians over rounds, ratios, what is aimed at, the JSON object and the tables.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tools/bench/common_options.h"
#include "tools/bench/kv/kv_run.h"
#include "tools/bench/report_parts.h"

namespace lunar::tools {

inline constexpr const char* kKvExperiments[] = {"memory", "paper", "load",   "cold", "overwrite",
                                                 "ycsb",   "scan",  "growth", "index"};
inline constexpr const char* kKvSystems[] = {"lunar", "rocksdb", "rocksdb-lz4", "lmdb", "raw", "fio"};

struct KvOptions : CommonOptions {
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  std::vector<std::string> experiments, systems, durability{"flush"};
  std::vector<unsigned> threads{1, 20}, depths{1, 32};  // of the paper's experiment
  std::vector<unsigned> values{24, 4096};               // likewise
  std::string htc = "both", library, plot;
};

// One row. A system whose calls are synchronous has `threads` calls in flight, else threads * depth.
struct KvResult {
  std::string system, experiment, workload;
  std::string place;       // "memory", "file", "lun"
  std::string durability;  // of writes: "none", "flush", "group", "each"
  uint64_t value_bytes = 0;
  unsigned threads = 1, depth = 1;
  bool async = false, htc = false;
  KvRun median;             // quantity by quantity over the rounds
  double spread = 0;        // (max - min) / median of ops_per_s
  std::vector<KvRun> runs;  // round by round
};

// A row of the table of what the store must show.
struct KvTarget {
  std::string name, what;
  double goal = 0;
  bool at_most = false;        // or at least
  std::vector<double> rounds;  // the figure of each round; empty: not measured
  double figure() const { return median(rounds); }
  bool met() const { return at_most ? figure() <= goal : figure() >= goal; }
};

// The stores of `overwrite`, each by so many threads.
struct KvOverwrite {
  const char* durability;
  unsigned full_percent, threads;
  std::string workload() const;
};
std::vector<KvOverwrite> kv_overwrites();

struct KvReport {
  KvOptions options;
  std::vector<KvResult> results;
  std::map<std::string, std::string> skipped;  // system, experiment or check: reason
  std::vector<std::string> failures;           // why the run does not count; empty when it does
  std::map<std::string, double> peak_bytes;    // the highest of each system's memory cgroups
};

KvRun median_of(const std::vector<KvRun>& runs);
// Lunar / baseline, keys EXPERIMENT_WORKLOAD_QUANTITY (put_round_ratios).
std::map<std::string, Ratios> kv_ratios(const KvReport& report);
std::vector<KvTarget> kv_targets(const KvReport& report);
std::string report_json(const KvReport& report);
std::string report_table(const KvReport& report);

}  // namespace lunar::tools
