// SPDX-License-Identifier: Apache-2.0
// One backend of `lunar bench redis`: a redis-server in a memory cgroup, the data it holds, and the clients that load
// it.
// Threading: one thread (during a save a second one asks for its progress). May not be used by runtime/ (it allocates).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/redis/load_generator.h"
#include "tools/bench/redis/redis_report.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/cgroup.h"
#include "tools/support/redis_server.h"

namespace lunar::tools {

class RedisBackend {
 public:
  static constexpr unsigned kLoadPipeline = 16;
  struct Setup {
    std::string system;  // "lunar", "run", "swap"
    std::string redis_server, directory, disk_stat;
    std::vector<std::string> wrapper, further;  // before and after redis-server's own words
    uint64_t limit_bytes = 0, dram_bytes = 0;
    bool swap = false;                  // its cgroup may swap
    std::optional<CgroupPlace> cgroup;  // none: no limit but its own
    unsigned connections = 50;
    DataKind kind = DataKind::kStrings;
    uint64_t data_bytes = 0, seed = 1;
    size_t value_bytes = 1024;
  };
  struct Plan {
    unsigned pipeline = 1;
    double seconds = 1, warm_seconds = 0.1, rate = 2000;
    uint64_t seed = 1;
  };
  using Say = std::function<void(const std::string&)>;

  // Starts the server, empty. Throws std::runtime_error with the end of its log.
  RedisBackend(const Setup& setup, SetupJournal& journal);
  ~RedisBackend();
  RedisBackend(const RedisBackend&) = delete;
  RedisBackend& operator=(const RedisBackend&) = delete;

  const std::string& system() const { return setup_.system; }
  std::string redis_version() { return server_->info("server", "redis_version"); }
  // Both throw std::runtime_error when the server is lost, with the reason.
  RedisRun load(const Say& say);
  RedisRun run(const RedisWorkload& workload, const Plan& plan);
  uint64_t peak_bytes() const { return cgroup_ ? cgroup_->peak_bytes() : 0; }

 private:
  struct Counters;
  struct Saving;
  void start();
  void end();
  Counters count() const;
  LoadCounts drive(LoadPlan plan, RedisRun* run);
  std::function<bool(unsigned, Request*)> chooser(const RedisWorkload& workload, Random* random);
  uint64_t hot_keys(const RedisWorkload& workload) const;
  uint64_t hot_key(uint64_t index, uint64_t count) const;
  void warm_hot_keys(uint64_t count);
  double missed_reads(const RedisWorkload& workload, double draws, unsigned outstanding);
  [[noreturn]] void lost(const std::string& why);

  Setup setup_;
  SetupJournal& journal_;
  std::string recorded_;
  std::unique_ptr<MemoryCgroup> cgroup_;
  std::unique_ptr<RedisServer> server_;
  Dataset data_;
  std::unique_ptr<LoadGenerator> generator_;
  std::unique_ptr<ZipfGenerator> zipf_;
};

}  // namespace lunar::tools
