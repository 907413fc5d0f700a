// SPDX-License-Identifier: Apache-2.0
// What frames a measured time: read at its start and at its end.
// Threading: free functions. May not be used by runtime/ (it allocates).
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
// cpu_s: of what is measured; by default of this process.
RunCounters read_counters(const std::string& disk_stat, std::optional<double> cpu_s = {});
// CPU and bytes of the disk between the two, CPU also for each of so many operations.
void put_counters(RunResult* run, const RunCounters& before, const RunCounters& after, double ops);

}  // namespace lunar::tools
