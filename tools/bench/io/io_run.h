// SPDX-License-Identifier: Apache-2.0
// One measurement of block I/O: what is asked for, and what came out.
// Threading: plain data.
#pragma once
#include <cstdint>
#include <string>

#include "tools/bench/run_result.h"

namespace lunar::tools {

struct IoWorkload {
  const char* name;
  unsigned read_percent;
};
inline constexpr IoWorkload kIoWorkloads[] = {{"read", 100}, {"mixed", 70}, {"write", 0}};

struct IoOrder {
  std::string system;
  unsigned read_percent = 100;
  unsigned depth = 1;  // in flight at once; of a blocking backend the number of its threads
  unsigned batch = 1;  // of an asynchronous backend: handed over and waited for at once
  double seconds = 1, warm_seconds = 0.1;
  uint64_t seed = 1;
};

// Commands handed over and responses waited for at once: 32 as fio's batches where 128 are in flight, a quarter of the
// depth where that is less, one at depths up to 7.
constexpr unsigned batch_of(unsigned depth) { return depth < 8 ? 1 : depth / 4 < 32 ? depth / 4 : 32; }

// machine_cpu_s is all that was not idle (cpu_time.h), cpu_us_per_op its share.
struct IoRun : RunResult {
  double kernel_cpu_s = 0;        // of it in the kernel
  double kernel_ticks_cpu_s = 0;  // system + irq + softirq of /proc/stat
  double other_user_cpu_s = 0;    // user mode of other processes: how noisy it was
  double kiops_per_cpu = 0;       // thousand operations a CPU second
  double kiops_per_cpu_kernel = 0;
  double kiops_per_cpu_kernel_ticks = 0;
  double reads = 0, writes = 0;
  std::string error;  // the first that an operation gave; "" none
};
struct IoRunField {
  const char* name;
  double IoRun::* member;
};
inline constexpr IoRunField kIoRunFields[] = {
    {"kiops_per_cpu", &IoRun::kiops_per_cpu},
    {"kiops_per_cpu_kernel", &IoRun::kiops_per_cpu_kernel},
    {"kiops_per_cpu_kernel_ticks", &IoRun::kiops_per_cpu_kernel_ticks},
    {"kernel_cpu_s", &IoRun::kernel_cpu_s},
    {"kernel_ticks_cpu_s", &IoRun::kernel_ticks_cpu_s},
    {"other_user_cpu_s", &IoRun::other_user_cpu_s},
    {"reads", &IoRun::reads},
    {"writes", &IoRun::writes},
};

}  // namespace lunar::tools
