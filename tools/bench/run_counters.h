// SPDX-License-Identifier: Apache-2.0
// Counters that are read at the start and at the end of a measured time.
// Threading: free functions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "tools/bench/run_result.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

struct RunCounters {
  uint64_t ns = 0;
  double cpu_s = 0, machine_cpu_s = 0;
  std::optional<DiskBytes> disk;

  double seconds_until(const RunCounters& after) const {
    return static_cast<double>(after.ns - ns) / 1e9;
  }
};
// cpu_s: CPU seconds of the measured processes; by default of this process.
RunCounters read_counters(const std::string& disk_stat, std::optional<double> cpu_s = {});
// Sets CPU seconds and disk bytes between the two, and CPU per operation.
void put_counters(RunResult* run, const RunCounters& before, const RunCounters& after, double ops);

}  // namespace lunar::tools
