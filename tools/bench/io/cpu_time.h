// SPDX-License-Identifier: Apache-2.0
// CPU time of the whole machine, for work that is done in short bursts.
//
// The user, system, irq and softirq columns of /proc/stat are samples on most kernels: the thread that runs when the
// tick comes is charged the whole tick. A program that wakes, works 10 us and sleeps again is seldom seen, and
// interrupts that hit an idle CPU hardly ever; here that hid up to 40 % of what blocking reads cost, and nothing of
// what batches cost. The idle and iowait columns of a tickless kernel are clocked instead, to the nanosecond, with
// interrupts taken out. So:
//
//   total  = elapsed x CPUs - idle - iowait - steal
//   kernel = total - user - nice
//
// The article's way (system + irq + softirq, as sampled) is kept next to them.
// Threading: free functions. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace lunar::tools {

// The first line of /proc/stat in seconds since boot, all CPUs together.
struct CpuTimes {
  double user = 0;          // user and nice
  double kernel_ticks = 0;  // system, irq and softirq
  double idle = 0;          // idle, iowait and steal
};
std::optional<CpuTimes> parse_cpu_times(std::string_view text, long ticks_per_second);
CpuTimes read_cpu_times();

struct CpuUse {
  double total_s = 0, kernel_s = 0;
  double kernel_ticks_s = 0;
  double user_s = 0;
};
CpuUse cpu_between(const CpuTimes& before, const CpuTimes& after, double elapsed_s, long cpus);

// User-mode seconds of a process, all its threads (/proc/PID/stat); 0 when it is gone.
std::optional<double> parse_process_user_seconds(std::string_view text, long ticks_per_second);
double process_user_seconds(int pid);

}  // namespace lunar::tools
