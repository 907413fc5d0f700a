// SPDX-License-Identifier: Apache-2.0
// CPU time of the whole machine, for work that is done in short bursts.
//
// The user and system columns of /proc/stat are samples: the thread that runs when the tick comes
// is charged the whole tick. A program that wakes, works 10 us and sleeps again is seldom seen;
// here that hid up to 40% of what blocking reads cost, and nothing of what batches cost. The idle
// and iowait columns of a tickless kernel are clocked to the nanosecond instead. So: total =
// elapsed x CPUs - idle - iowait - steal.
// Threading: free functions. May not be used by runtime/ (it allocates).
#pragma once
#include <optional>
#include <string_view>

namespace lunar::tools {

// The first line of /proc/stat in seconds since boot, all CPUs together.
struct CpuTimes {
  double user = 0;  // user and nice
  double idle = 0;  // idle, iowait and steal
};
std::optional<CpuTimes> parse_cpu_times(std::string_view text, long ticks_per_second);
CpuTimes read_cpu_times();
// CPU seconds of the machine that were not idle.
double cpu_between(const CpuTimes& before, const CpuTimes& after, double elapsed_s, long cpus);

// User-mode seconds of a process, all its threads (/proc/PID/stat); 0 when it is gone.
std::optional<double> parse_process_user_seconds(std::string_view text, long ticks_per_second);
double process_user_seconds(int pid);

}  // namespace lunar::tools
