// SPDX-License-Identifier: Apache-2.0
// See run_counters.h.
#include "tools/bench/run_counters.h"

#include <algorithm>

#include "tools/support/clock.h"

namespace lunar::tools {

RunCounters read_counters(const std::string& disk_stat, std::optional<double> cpu_s) {
  RunCounters counters;
  counters.disk = read_disk(disk_stat);
  counters.machine_cpu_s = machine_cpu_seconds();
  counters.cpu_s = cpu_s ? *cpu_s : static_cast<double>(clock_ns(CLOCK_PROCESS_CPUTIME_ID)) / 1e9;
  counters.ns = now_ns();
  return counters;
}

void put_counters(RunResult* run, const RunCounters& before, const RunCounters& after, double ops) {
  run->cpu_s = after.cpu_s - before.cpu_s;
  run->machine_cpu_s = std::max(0.0, after.machine_cpu_s - before.machine_cpu_s);
  run->cpu_us_per_op = ops > 0 ? run->machine_cpu_s * 1e6 / ops : 0;
  if (!before.disk || !after.disk) return;
  run->disk_read_bytes = static_cast<double>(after.disk->read - before.disk->read);
  run->disk_written_bytes = static_cast<double>(after.disk->written - before.disk->written);
}

}  // namespace lunar::tools
