// SPDX-License-Identifier: Apache-2.0
// Stores that take turns: each a child process in a memory cgroup of the same limit, with the same
// pairs, on files of the same disk. What they measured becomes rows of the report.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/bench_host.h"
#include "tools/bench/kv/kv_options.h"
#include "tools/bench/kv/kv_order.h"
#include "tools/bench/progress.h"
#include "tools/bench/system_under_test.h"

namespace lunar::tools {

// What the bench set up on the machine, and how far it is.
class KvGround {
 public:
  // throws std::runtime_error when the bench cannot run at all
  explicit KvGround(const KvOptions& options);

  BenchReport report;
  const KvOptions& options() const { return options_; }
  SetupJournal& journal() { return *host_.journal; }
  const BenchHost& host() const { return host_; }
  // Whether a system or experiment is asked for and could be measured so far.
  bool has(const std::string& system) const { return report.wants(options_.systems, system); }
  bool wants(const char* experiment) const {
    return report.wants(options_.experiments, experiment);
  }
  bool kept() const {  // Lunar's store outlives its process, and a flush makes it durable
    return kept_;
  }
  bool knows_levels() const { return knows_levels_; }  // and LUNAR_KV_DURABILITY another level
  const std::string& fio() const { return fio_; }      // the program; "": not installed
  const std::string& directory() const { return directory_->path(); }
  bool lun_is_directory() const { return lun_is_directory_; }
  void say(const std::string& text);
  uint64_t next_seed() { return options_.seed * 1000 + ++runs_; }

 private:
  void check_library();
  KvOptions options_;
  BenchHost host_;
  Progress progress_;
  std::optional<WorkDirectory> directory_;
  std::string fio_;
  bool kept_ = false, knows_levels_ = false, lun_is_directory_ = false;
  uint64_t runs_ = 0, begun_ns_;
};

// One workload of a stage, in each round by each of its systems.
struct KvStep {
  std::string workload, mix = "get";
  KvDraw draw = KvDraw::kUniform;
  // depth above 1: asynchronous by Lunar, threads * depth threads elsewhere
  unsigned threads = 1, depth = 1;
  double seconds = 0, warm_share = 0.1;  // so much of the time before it is unmeasured
};

struct KvStageSetup {
  std::string experiment;
  bool in_memory = false;
  size_t value_bytes = 4096;
  uint64_t keys = 0, keys_more = 0;  // loaded; inserted later
  uint64_t dram_bytes = 0;
  unsigned load_threads = 2;
  unsigned full_percent = 0;  // pairs of Lunar's place; 0: it has room enough
  std::string durability = "flush";
  // fio reads a file of as many values, uniformly, without a look at them
  std::vector<std::string> systems;
};

class KvStage {
 public:
  KvStage(KvGround& ground, KvStageSetup setup);
  ~KvStage();
  void load_all();  // new stores with all pairs, for runs to come; no rows
  // Loads from nothing, round by round, each a row `workload`; the last round's stores stay.
  void measure_loads(const std::string& workload, unsigned rounds);
  void measure(const KvStep& step, unsigned rounds);
  void churn(const KvStep& step, uint64_t writes);  // at least so many by each system; no rows

 private:
  RunResult run(const std::string& system, const KvStep& step);
  RunResult run_fio(const KvStep& step);
  void add_row(const std::string& system, const KvStep& step, const std::vector<RunResult>& runs);
  void each(const std::function<void(const std::string& system)>& work);
  // a store that is new, in place of the old
  RunResult load(const std::string& system, const std::string& workload);
  void start(const std::string& system);
  void stop(const std::string& system);
  std::string place_of(const std::string& system) const;
  uint64_t memory_limit(const std::string& system) const;
  RunResult ask(const std::string& system, const std::string& workload, const std::string& line,
                double seconds_max);
  KvGround& ground_;
  KvStageSetup setup_;
  std::map<std::string, std::unique_ptr<SystemUnderTest>> stores_;
};

}  // namespace lunar::tools
