// SPDX-License-Identifier: Apache-2.0
// See kv_options.h.
#include <fmt/format.h>

#include "tools/bench/kv/kv_options.h"

namespace lunar::tools {

namespace {

class Targets {
 public:
  explicit Targets(const BenchReport& report) : report_(report) {}
  std::vector<BenchTarget> take() { return std::move(targets_); }
  void at_least(const std::string& name, const std::string& what, double goal,
                std::vector<double> rounds) {
    targets_.push_back({name, what, goal, false, std::move(rounds)});
  }
  void at_most(const std::string& name, const std::string& what, double goal,
               std::vector<double> rounds) {
    targets_.push_back({name, what, goal, true, std::move(rounds)});
  }
  std::vector<double> figures(const std::string& experiment, const std::string& workload,
                              double RunResult::* quantity, const std::string& system = "lunar",
                              double factor = 1) const {
    std::vector<double> out;
    for (const BenchRow& one : report_.rows)
      if (one.system == system && one.experiment == experiment && one.workload == workload)
        for (const RunResult& run : one.runs) out.push_back(run.*quantity * factor);
    return out;
  }
  // Lunar's figures divided by those of `system`, round by round.
  std::vector<double> against(const std::string& system, const std::string& experiment,
                              const std::string& workload, double RunResult::* quantity) const {
    const std::vector<double> ours = figures(experiment, workload, quantity),
                              theirs = figures(experiment, workload, quantity, system);
    std::vector<double> out;
    for (size_t i = 0; i < ours.size() && i < theirs.size(); ++i)
      if (ours[i] > 0 && theirs[i] > 0) out.push_back(ours[i] / theirs[i]);
    return out;
  }

 private:
  const BenchReport& report_;
  std::vector<BenchTarget> targets_;
};

}  // namespace

std::string KvOverwrite::workload() const {
  return fmt::format("{}_{}_t{}", durability, full_percent, threads);
}

std::vector<KvOverwrite> kv_overwrites() {
  std::vector<KvOverwrite> all;
  for (const char* durability : {"flush", "group"})
    for (const unsigned full_percent : {70, 80})
      for (const unsigned threads : {1, 16}) all.push_back({durability, full_percent, threads});
  return all;
}

std::vector<BenchTarget> kv_targets(const BenchReport& report) {
  Targets all(report);
  const auto ops = &RunResult::ops_per_s;
  all.at_least("memory_get_ops", "memory, 4000-byte values, depth 32: get/s", 900e3,
               all.figures("memory", "get_async", ops));
  all.at_least("memory_sync_get", "the same by 20 threads, synchronous: get/s", 600e3,
               all.figures("memory", "get_sync", ops));
  all.at_least("memory_sync_set", "the same: set/s", 600e3, all.figures("memory", "set_sync", ops));
  all.at_most("index_bytes", "bytes of DRAM per entry, without the pairs in the log", 12,
              all.figures("index", "load", &RunResult::index_bytes));
  all.at_least("cold_fio", "cold 4 KiB gets, depth 128: get/s over fio's reads", 0.92,
               all.against("fio", "cold", "uniform", ops));
  all.at_most("cold_one_fio", "the same one by one: mean over that of fio's reads", 1.05,
              all.against("fio", "cold", "uniform_1", &RunResult::mean_ns));
  for (const char* level : {"flush", "group", "each"}) {
    const std::string workload = fmt::format("load_{}", level);
    for (const std::string system : {"rocksdb", "lmdb"}) {
      const std::vector<double> rounds = all.against(system, "load", workload, ops);
      if (!rounds.empty() || workload == "load_flush")
        all.at_least(
            workload + "_" + system,
            fmt::format("writes of new 8/24-byte pairs, durable at {}: over {}", level, system),
            system == "rocksdb" ? 3 : 5, rounds);
    }
  }
  for (const std::string draw : {"uniform", "zipf"})
    for (const char* system : {"rocksdb", "rocksdb-lz4", "lmdb"})
      all.at_least(
          fmt::format("cold_{}_{}", draw, system),
          fmt::format("gets of data larger than DRAM, {}, 128 in flight: over {}", draw, system),
          draw == "uniform" ? 1.5 : 1.3, all.against(system, "cold", draw, ops));
  for (const KvOverwrite& one : kv_overwrites()) {
    const std::string name = "overwrite_" + one.workload(),
                      what = fmt::format("uniform overwrites, {}% full, {} threads, durable at {}",
                                         one.full_percent, one.threads, one.durability);
    all.at_most(name + "_ms", what + ": p99.9, ms", 10,
                all.figures("overwrite", one.workload(), &RunResult::p999_ns, "lunar", 1e-6));
    all.at_most(name + "_wa", what + ": bytes written per byte set", 1.5,
                all.figures("overwrite", one.workload(), &RunResult::amplification));
  }
  for (const char* mix : {"a", "b", "c", "d", "f"}) {
    for (const char* system : {"rocksdb", "rocksdb-lz4"}) {
      all.at_least(fmt::format("ycsb_{}_{}", mix, system),
                   fmt::format("YCSB {}: op/s over {}", mix, system), 1.3,
                   all.against(system, "ycsb", mix, ops));
      all.at_most(fmt::format("ycsb_{}_p99_{}", mix, system),
                  fmt::format("YCSB {}: p99 over {}", mix, system), 0.8,
                  all.against(system, "ycsb", mix, &RunResult::p99_ns));
    }
  }
  return all.take();
}

}  // namespace lunar::tools
