// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench fault`: medians over rounds, ratios, the JSON object and the table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tools/bench/common_options.h"
#include "tools/bench/report_parts.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

struct FaultOptions : CommonOptions {
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  std::vector<unsigned> threads{1, 16};
  std::vector<std::string> workloads;
  std::vector<std::string> systems{"lunar", "swap"};
  unsigned write_percent = 30;
  std::string options;
};

struct FaultResult {
  std::string system, workload;
  unsigned threads = 1;
  int page_cluster = -1;        // swap's setting for this workload; -1: not swap
  RunResult median;             // quantity by quantity over the rounds
  double spread = 0;            // (max - min) / median of ops_per_s
  std::vector<RunResult> runs;  // round by round
};

struct FaultReport {
  FaultOptions options;
  std::vector<FaultResult> results;
  std::map<std::string, std::string> skipped;  // system or check: reason
  std::vector<std::string> failures;           // why the run does not count; empty when it does
  std::map<std::string, double> peak_bytes;    // of each system's memory cgroup
};

// Lunar divided by `baseline`, keys WORKLOAD_tTHREADS_QUANTITY (put_round_ratios).
Ratios ratios_against(const FaultReport& report, const std::string& baseline);
std::string report_json(const FaultReport& report);
std::string report_table(const FaultReport& report);

}  // namespace lunar::tools
