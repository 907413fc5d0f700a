// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench fault`: medians over rounds, ratios, the JSON object and the table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "tools/bench/memory_report.h"

namespace lunar::tools {

struct FaultOptions : MemoryOptions {
  FaultOptions() { systems = {"lunar", "swap"}; }
  std::vector<unsigned> threads{1, 16};
  unsigned write_percent = 30;
};

using FaultResult = MemoryResult<RunResult>;
using FaultReport = MemoryReport<FaultOptions, FaultResult>;

// Lunar divided by `baseline`, keys WORKLOAD_tTHREADS_QUANTITY (put_round_ratios).
Ratios ratios_against(const FaultReport& report, const std::string& baseline);
std::string report_json(const FaultReport& report);
std::string report_table(const FaultReport& report);

}  // namespace lunar::tools
