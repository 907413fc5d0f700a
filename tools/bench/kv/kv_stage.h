// SPDX-License-Identifier: Apache-2.0
// Stores that take turns: each a child process in a memory cgroup of the same limit, with the same pairs, on files of
// the same disk. What they measured becomes rows of the report.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/bench_host.h"
#include "tools/bench/kv/kv_report.h"
#include "tools/bench/kv/kv_system.h"
#include "tools/bench/progress.h"
#include "tools/bench/system_under_test.h"

namespace lunar::tools {

// What the bench set up on the machine, and how far it is.
class KvGround {
 public:
  explicit KvGround(KvReport& report);  // throws std::runtime_error when the bench cannot run at all
  ~KvGround();
  KvGround(const KvGround&) = delete;
  KvGround& operator=(const KvGround&) = delete;

  KvReport& report() { return report_; }
  const KvOptions& options() const { return report_.options; }
  SetupJournal& journal() { return *host_.journal; }
  const BenchHost& host() const { return host_; }
  // Whether a system is asked for and could be measured so far.
  bool has(const std::string& system) const;
  bool wants(const char* experiment) const;
  bool kept() const { return kept_; }  // Lunar's store outlives its process, and a flush makes it durable
  bool knows_levels() const { return knows_levels_; }  // and LUNAR_KV_DURABILITY another level
  const std::string& fio() const { return fio_; }      // the program; "": not installed
  const std::string& directory() const { return directory_; }
  bool lun_is_directory() const { return lun_is_directory_; }
  void say(const std::string& text) { progress_.say(fmt::format("[{:>3.0f} s] {}", elapsed(), text)); }
  // Does it; what it throws is a failure, and the system is left out from then on.
  void attempt(const std::string& system, const std::function<void()>& work);
  uint64_t next_seed() { return options().seed * 1000 + ++runs_; }

 private:
  void check_library();
  double elapsed() const;
  KvReport& report_;
  BenchHost host_;
  Progress progress_;
  std::string directory_, recorded_, fio_;
  bool kept_ = false, knows_levels_ = false, lun_is_directory_ = false;
  uint64_t runs_ = 0, begun_ns_;
};

// One workload of a stage, in each round by each of its systems. A system's name may have a suffix, "lunar-sync": the
// same store by synchronous calls.
struct KvStep {
  std::string workload, mix = "get";
  KvDraw draw = KvDraw::kUniform;
  unsigned threads = 1, depth = 1;
  bool async = false;                    // where the system can; else threads * depth threads
  bool both = false;                     // Lunar also by synchronous calls, as "lunar-sync"
  bool fio = false;                      // raw's file also by fio, which reads it without a look at what it reads
  double seconds = 0, warm_share = 0.1;  // so much of the time before it is unmeasured
  double rate = 0;                       // KvOrder::rate
  uint64_t keys_at_once = 0;             // a scan, by so many keys a call
};

struct KvStageSetup {
  std::string experiment, label;  // label: tells the stores of a stage apart in names of files and cgroups
  bool in_memory = false;
  size_t value_bytes = 4096;
  uint64_t keys = 0, keys_more = 0;  // loaded; inserted later
  uint64_t dram_bytes = 0;
  unsigned store_threads = 20, in_flight = 400, load_threads = 2;
  unsigned full_percent = 0;  // pairs of Lunar's place; 0: it has room enough
  bool htc = false;
  std::string durability = "flush";
  std::vector<std::string> systems;
};

class KvStage {
 public:
  KvStage(KvGround& ground, KvStageSetup setup);
  ~KvStage();
  void load_all();  // new stores with all pairs, for runs to come; no rows
  // Loads from nothing, round by round, each a row `workload`; the last round's stores stay.
  void measure_loads(const std::string& workload, unsigned rounds);
  void measure(const KvStep& step, unsigned rounds);                      // rows of the same name become one
  void churn(const KvStep& step, uint64_t writes);                        // at least so many by each system; no rows
  void experiment(const std::string& name) { setup_.experiment = name; }  // of rows to come

 private:
  static std::string base_of(const std::string& system) {
    return system == "lunar-sync" ? "lunar" : system == "fio" ? "raw" : system;
  }
  KvRun run(const std::string& system, const KvStep& step);
  KvRun run_fio(const KvStep& step);
  void add_row(const std::string& system, const KvStep& step, const std::vector<KvRun>& runs);
  template <class Work>
  void each(const Work& work);
  KvRun load(const std::string& system, const std::string& workload);  // a store that is new, in place of the old
  void start(const std::string& system);
  void stop(const std::string& system);
  std::vector<std::string> child_arguments(const std::string& system) const;
  KvResult* row_of(const std::string& system, const std::string& workload);
  std::string place_of(const std::string& system) const;
  uint64_t memory_limit(const std::string& system) const;
  void check(const std::string& system, const std::string& workload, const KvRun& run);
  KvRun ask(const std::string& system, const std::string& line, double seconds_max);
  std::string order_text(const std::string& system, const KvStep& step);
  bool async(const std::string& system, const KvStep& step) const {
    return step.async && (system == "lunar" || base_of(system) == "raw");
  }
  KvGround& ground_;
  KvStageSetup setup_;
  std::map<std::string, std::unique_ptr<SystemUnderTest>> stores_;
};

}  // namespace lunar::tools
