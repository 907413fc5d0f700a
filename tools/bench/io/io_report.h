// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench superpipe`, `stripe` and `window`: medians over rounds, ratios, the JSON object and the
// table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tools/bench/common_options.h"
#include "tools/bench/io/io_run.h"
#include "tools/bench/report_parts.h"

namespace lunar::tools {

struct IoOptions : CommonOptions {
  std::string bench;  // "superpipe", "stripe", "window"
  uint64_t size_bytes = 1 << 30;
  std::vector<unsigned> depths{1, 16, 128};
  std::vector<std::string> workloads{"read", "mixed", "write"};
  std::vector<std::string> systems;
  unsigned threads = 16;  // of the blocking backends
  unsigned batch = 0;     // 0: batch_of(depth)
};

struct IoResult {
  std::string system, workload;  // superpipe: "read"; window: "read4k", "write64k"
  unsigned threads = 1, depth = 1;
  size_t unit_bytes = 4096;
  unsigned rounds = 0, noisy = 0;  // runs that count, and how many of them were disturbed (quietest_rounds)
  IoRun median;                    // quantity by quantity over the rounds
  double spread = 0;               // (max - min) / median of ops_per_s
  double cpu_spread = 0;           // the same of kiops_per_cpu
  std::vector<IoRun> runs;         // that count, round by round
};

// What cblk_read adds to a read of the device (cblk_cost.h): medians over rounds.
struct CblkCost {
  std::string raw;  // the baseline; "": not measured
  double raw_p50_ns = 0, cblk_p50_ns = 0;
  double over_p50_ns = 0, over_mean_ns = 0;
  double over_least_ns = 0, over_most_ns = 0;  // over_p50_ns of single rounds
  uint64_t reads = 0;                          // of each backend, in all
  unsigned rounds = 0;
};

struct IoReport {
  IoOptions options;
  CblkCost cblk;
  std::string device_kind;
  std::vector<IoResult> results;
  std::vector<std::string> fio_commands;
  std::map<std::string, std::string> skipped;
  std::vector<std::string> failures;
};

// A run during which others had more than this share of all CPUs in user mode is noisy.
constexpr double kNoisyShare = 0.03;
bool noisy_run(const IoRun& run, long cpus);
// The `count` rounds of which the most disturbed run of any backend was disturbed least, by what others used, never by
// what was measured: their numbers, in order. `runs`: of each backend, round by round (of one that was lost, fewer).
std::vector<size_t> quietest_rounds(const std::vector<std::vector<IoRun>>& runs, size_t count);
IoRun median_of(const std::vector<IoRun>& runs);
// Medians and spreads of the runs of one backend.
IoResult io_result(const std::string& system, const std::string& workload, const std::vector<IoRun>& runs);

// Of each baseline: "lunar" divided by it. Against one that is measured at the same depth WORKLOAD_qdDEPTH_QUANTITY;
// against blocking threads WORKLOAD_tTHREADS_QUANTITY, with Lunar's greatest depth; of the window bench
// WORKLOAD_qdDEPTH_QUANTITY and the names of the contract (window_ops, window_cpu: greatest depth; window_mean: least).
// Others are compared as well, their names before the quantity: "fio" has WORKLOAD_qd1_nospin_QUANTITY (Lunar's
// without spinning) and WORKLOAD_qdDEPTH_cblk_QUANTITY (the block library's), "legacy" WORKLOAD_tTHREADS_fio_QUANTITY
// (fio's own, at its greatest depth), "members" and "one" of the stripe bench WORKLOAD_qdDEPTH_stripe_QUANTITY and
// WORKLOAD_qdDEPTH_raid0_QUANTITY.
// "raw" has two that are no quotients: cblk_read_us_over (of the p50s) and cblk_read_us_over_mean, microseconds.
std::map<std::string, Ratios> io_ratios(const IoReport& report);
std::string report_json(const IoReport& report);
std::string report_table(const IoReport& report);

}  // namespace lunar::tools
