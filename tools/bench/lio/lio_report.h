// SPDX-License-Identifier: Apache-2.0
// What `lunar bench lio` found, as JSON (the contract of all benches) and as a table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/bench/report_parts.h"

namespace lunar::tools {

struct LioOptions {
  unsigned ios = 256;  // of a list
  uint64_t io_bytes = 32 << 10;
  uint64_t file_bytes = 0;        // of the device used; 0: chosen
  unsigned lists = 4;             // a run
  unsigned rounds = 25;           // runs of each backend
  std::string pmem;               // "": a file in /dev/shm
  std::string delegate = "auto";  // of Lunar's backend
  std::vector<std::string> systems{"lunar", "sync", "lio_listio"};
  uint64_t seed = 1;
  bool quick = false, json = false;
};

// One run of a backend: means over its lists.
struct LioRun {
  double ops_per_s = 0, mean_ns = 0, return_ns = 0, cpu_us = 0;
};

// Medians over the runs of one backend; times of one list.
struct LioResult {
  std::string system, workload;                // read_wait, read_nowait, write_wait, write_nowait
  double ops_per_s = 0;                        // I/Os, while a list was waited for, or until it was done
  double mean_ns = 0, p50_ns = 0, p99_ns = 0;  // from the call until all of the list is done
  double return_ns = 0, return_p99_ns = 0;     // from the call until it returned to its caller
  double cpu_us_per_list = 0;                  // of the process, all its threads
  double spread = 0;                           // of the runs' rates: (max - min) / median
  std::vector<LioRun> runs;                    // round by round
};

struct LioReport {
  LioOptions options;
  std::string device;  // the file or device
  std::vector<LioResult> results;
  std::map<std::string, std::string> skipped;
  std::vector<std::string> failures;
};

// lio_wait_ops (reads), lio_write_wait_ops; lio_nowait_return, lio_write_nowait_return. Against sync the latter are
// Lunar's time until the call returns, divided by the time the list takes one after the other.
Ratios lio_ratios(const LioReport& report, const std::string& baseline);
std::string lio_json(const LioReport& report);
std::string lio_table(const LioReport& report);

}  // namespace lunar::tools
