// SPDX-License-Identifier: Apache-2.0
// A stage: stores that take turns, each in a child process in a memory cgroup of the same limit,
// with the same pairs, on files of the same disk. Their results become rows of the report.
// Threading: one thread.
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

// The setup of the bench on the machine, its report and its progress.
class KvGround {
 public:
  // Throws std::runtime_error if the bench cannot run at all.
  explicit KvGround(const KvOptions& options);

  BenchReport report;
  const KvOptions& options() const { return options_; }
  SetupJournal& journal() { return *host_.journal; }
  const BenchHost& host() const { return host_; }
  // True if the system or experiment is requested and not skipped.
  bool has(const std::string& system) const { return report.wants(options_.systems, system); }
  bool wants(const char* experiment) const {
    return report.wants(options_.experiments, experiment);
  }
  bool kept() const { return kept_; }  // Lunar's store is persistent, and a flush makes it durable
  bool knows_levels() const { return knows_levels_; }  // the library obeys LUNAR_KV_DURABILITY
  const std::string& fio() const { return fio_; }      // path of fio; "": not installed
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

// A workload of a stage. In each round every system runs it.
struct KvStep {
  std::string workload, mix = "get";
  KvDraw draw = KvDraw::kUniform;
  // depth above 1: asynchronous calls for Lunar, threads * depth threads for the others
  unsigned threads = 1, depth = 1;
  double seconds = 0, warm_share = 0.1;  // warm_share: length of the warm-up, as a share of seconds
};

struct KvStageSetup {
  std::string experiment;
  bool in_memory = false;
  size_t value_bytes = 4096;
  uint64_t keys = 0, keys_more = 0;  // to load; to insert later
  uint64_t dram_bytes = 0;
  unsigned load_threads = 2;
  unsigned full_percent = 0;  // share of pairs in Lunar's place; 0: it has enough space
  std::string durability = "flush";
  // fio reads a file of as many values, uniformly, and does not check them.
  std::vector<std::string> systems;
};

class KvStage {
 public:
  KvStage(KvGround& ground, KvStageSetup setup);
  ~KvStage();
  void load_all();  // makes new stores with all pairs for later runs; adds no rows
  // Loads new stores in each round, as row `workload`. The stores of the last round stay.
  void measure_loads(const std::string& workload, unsigned rounds);
  void measure(const KvStep& step, unsigned rounds);
  void churn(const KvStep& step, uint64_t writes);  // at least `writes` per system; adds no rows

 private:
  RunResult run(const std::string& system, const KvStep& step);
  RunResult run_fio(const KvStep& step);
  void add_row(const std::string& system, const KvStep& step, const std::vector<RunResult>& runs);
  void each(const std::function<void(const std::string& system)>& work);
  // Replaces the store by a new one.
  RunResult load(const std::string& system, const std::string& workload);
  void start(const std::string& system);
  void stop(const std::string& system);
  std::string place_of(const std::string& system) const;
  uint64_t memory_limit(const std::string& system) const;
  RunResult send_order(const std::string& system, const std::string& workload,
                       const std::string& line, double seconds_max);
  KvGround& ground_;
  KvStageSetup setup_;
  std::map<std::string, std::unique_ptr<SystemUnderTest>> stores_;
};

}  // namespace lunar::tools
