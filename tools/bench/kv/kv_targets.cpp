// SPDX-License-Identifier: Apache-2.0
// What the key/value store is to show, each with its figure in this run: of all figures the median of the rounds; a
// ratio is that of one round.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include "tools/bench/kv/kv_report.h"

namespace lunar::tools {

namespace {

class Targets {
 public:
  explicit Targets(const KvReport& report) : report_(report) {}
  std::vector<KvTarget> take() { return std::move(targets_); }

  void at_least(const std::string& name, const std::string& what, double goal, std::vector<double> rounds) {
    targets_.push_back({name, what, goal, false, std::move(rounds)});
  }
  void at_most(const std::string& name, const std::string& what, double goal, std::vector<double> rounds) {
    targets_.push_back({name, what, goal, true, std::move(rounds)});
  }
  std::vector<double> figures(const std::string& experiment, const std::string& workload, double KvRun::* quantity,
                              const std::string& system = "lunar") const {
    std::vector<double> out;
    for (const KvResult& one : report_.results) {
      if (one.system != system || one.experiment != experiment || one.workload != workload) continue;
      for (const KvRun& run : one.runs) out.push_back(run.*quantity);
    }
    return out;
  }
  // CPUs of the rounds that had so many operations a second: fewer take less, and show nothing.
  std::vector<double> cores_at(const std::string& experiment, const std::string& workload, double ops_per_s) const {
    const std::vector<double> rates = figures(experiment, workload, &KvRun::ops_per_s);
    std::vector<double> cores = figures(experiment, workload, &KvRun::cores), out;
    for (size_t i = 0; i < rates.size(); ++i)
      if (rates[i] >= ops_per_s) out.push_back(cores[i]);
    return out;
  }
  static std::vector<double> pairwise(const std::vector<double>& a, const std::vector<double>& b,
                                      double (*of)(double, double)) {
    std::vector<double> out;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i)
      if (a[i] > 0 && b[i] > 0) out.push_back(of(a[i], b[i]));
    return out;
  }
  std::vector<double> against(const std::string& system, const std::string& experiment, const std::string& workload,
                              double KvRun::* quantity) const {
    return pairwise(figures(experiment, workload, quantity), figures(experiment, workload, quantity, system), divided);
  }
  static double divided(double a, double b) { return a / b; }
  static std::vector<double> scaled(std::vector<double> values, double factor) {
    for (double& value : values) value *= factor;
    return values;
  }

 private:
  const KvReport& report_;
  std::vector<KvTarget> targets_;
};

constexpr double KvRun::* kOps = static_cast<double KvRun::*>(&RunResult::ops_per_s);
constexpr double KvRun::* kMean = static_cast<double KvRun::*>(&RunResult::mean_ns);
constexpr double KvRun::* kP99 = static_cast<double KvRun::*>(&RunResult::p99_ns);
constexpr double KvRun::* kP999 = static_cast<double KvRun::*>(&RunResult::p999_ns);

void memory_targets(Targets& targets) {
  targets.at_least("memory_get_ops", "memory, 4000-byte values, 20 threads, depth 32: get/s", 900e3,
                   targets.figures("memory", "get_async", kOps));
  targets.at_least("memory_paced_ops", "the same, no more asked for than 1% above the aim: get/s", 900e3,
                   targets.figures("memory", "get_paced", kOps));
  targets.at_most("memory_paced_cores", "the same, of rounds that kept that rate: CPUs", 1.8,
                  targets.cores_at("memory", "get_paced", 900e3));
  targets.at_least("shard_get", "memory, 128-byte values, one thread, synchronous: get/s a core", 2e6,
                   targets.figures("memory", "shard_get", &KvRun::ops_per_core_s));
  targets.at_least("shard_set", "the same: set/s a core", 1.2e6,
                   targets.figures("memory", "shard_set", &KvRun::ops_per_core_s));
  targets.at_least("sync_get", "memory, 4000-byte values, 20 threads, synchronous: get/s", 600e3,
                   targets.figures("memory", "get_sync", kOps));
  targets.at_least("sync_set", "the same: set/s", 600e3, targets.figures("memory", "set_sync", kOps));
}

void file_targets(Targets& targets) {
  targets.at_least("cold_raw", "cold 4 KiB gets, depth 128: get/s over reads of a raw io_uring", 0.92,
                   targets.against("raw", "cold", "uniform", kOps));
  targets.at_least("cold_fio", "the same over fio", 0.92, targets.against("fio", "cold", "uniform", kOps));
  const auto beyond = [&](const char* system) {
    return Targets::pairwise(targets.figures("cold", "uniform_1", kMean),
                             targets.figures("cold", "uniform_1", kMean, system),
                             [](double a, double b) { return (a - b) / 1e3; });
  };
  targets.at_most("cold_one_us", "cold 4 KiB gets, depth 1: mean time over that of a raw read, us", 4, beyond("raw"));
  targets.at_most("cold_one_fio_us", "the same over fio's reads, us", 4, beyond("fio"));
  for (const char* level : {"flush", "group", "each"}) {
    const std::string workload = fmt::format("load_{}", level);
    for (const char* system : {"rocksdb", "lmdb"}) {
      const std::vector<double> rounds = targets.against(system, "load", workload, kOps);
      if (!rounds.empty() || workload == "load_flush")
        targets.at_least(fmt::format("{}_{}", workload, system),
                         fmt::format("writes of new 8/24-byte pairs, durable at {}: over {}", level, system),
                         system[0] == 'r' ? 3 : 5, rounds);
    }
  }
  for (const char* draw : {"uniform", "zipf"}) {
    for (const char* system : {"rocksdb", "rocksdb-lz4", "lmdb"})
      targets.at_least(fmt::format("cold_{}_{}", draw, system),
                       fmt::format("gets of data larger than DRAM, {}, 128 in flight: over {}", draw, system),
                       draw[0] == 'u' ? 1.5 : 1.3, targets.against(system, "cold", draw, kOps));
  }
}

void overwrite_targets(Targets& targets) {
  for (const KvOverwrite& one : kv_overwrites()) {
    const std::string what = fmt::format("uniform overwrites, {}% full, threads: {}, durable at {}", one.full_percent,
                                         one.threads, one.durability);
    const std::vector<double> slowest = targets.figures("overwrite", one.workload(), kP999);
    targets.at_most(fmt::format("overwrite_{}_ms", one.workload()), what + ": p99.9, ms", 10,
                    Targets::scaled(slowest, 1e-6));
    targets.at_most(fmt::format("overwrite_{}_wa", one.workload()), what + ": bytes written a byte set", 1.5,
                    targets.figures("overwrite", one.workload(), &KvRun::amplification));
  }
}

void ycsb_targets(Targets& targets) {
  for (const char* mix : {"a", "b", "c", "d", "f"}) {
    for (const char* system : {"rocksdb", "rocksdb-lz4"}) {
      targets.at_least(fmt::format("ycsb_{}_{}", mix, system), fmt::format("YCSB {}: op/s over {}", mix, system), 1.3,
                       targets.against(system, "ycsb", mix, kOps));
      targets.at_most(fmt::format("ycsb_{}_p99_{}", mix, system), fmt::format("YCSB {}: p99 over {}", mix, system), 0.8,
                      targets.against(system, "ycsb", mix, kP99));
    }
  }
}

void other_targets(Targets& targets) {
  for (const char* place : {"memory", "file"}) {
    const auto keys = [&](const char* way) { return targets.figures("scan", fmt::format("{}_{}", way, place), kOps); };
    targets.at_least(fmt::format("next_many_{}", place), fmt::format("{}: keys/s by nextN(1000) over next", place), 100,
                     Targets::pairwise(keys("next_many"), keys("next"), Targets::divided));
  }
  targets.at_least("scan_sequential", "all keys of 4 KiB values by nextN(1000): bytes/s over a raw sequential read",
                   0.8, targets.against("raw", "scan", "all_file", &KvRun::bytes_per_s));
  targets.at_least("growth_ops", "cold gets of three times the data with the same DRAM: op/s over those of once", 0.95,
                   Targets::pairwise(targets.figures("growth", "data_3x", kOps),
                                     targets.figures("growth", "data_1x", kOps), Targets::divided));
  targets.at_least("growth_ios", "the same: IO/s over those of once", 0.95,
                   Targets::pairwise(targets.figures("growth", "data_3x", &KvRun::ios_per_s),
                                     targets.figures("growth", "data_1x", &KvRun::ios_per_s), Targets::divided));
  targets.at_most("index_bytes", "bytes of DRAM an entry, pairs in the log not counted", 12,
                  targets.figures("index", "load", &KvRun::index_bytes));
}

}  // namespace

std::vector<KvTarget> kv_targets(const KvReport& report) {
  Targets targets(report);
  memory_targets(targets);
  file_targets(targets);
  overwrite_targets(targets);
  ycsb_targets(targets);
  other_targets(targets);
  return targets.take();
}

}  // namespace lunar::tools
