// SPDX-License-Identifier: Apache-2.0
// One system of `lunar bench redis`: a redis-server, or several that share the keys, in one memory
// cgroup; their data, and their clients. Connection i is for shard i % shards, key k is on shard k
// % shards. In a replica stage each server has a plain master outside of the cgroup, and the
// clients send to the master.
// Threading: one thread. During a job of the servers, a second thread follows it.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/redis/load_generator.h"
#include "tools/bench/redis/workloads.h"
#include "tools/bench/run_result.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/redis_server.h"

namespace lunar::tools {

class RedisBackend {
 public:
  struct Setup {
    std::string system;  // "lunar", "run", "swap"
    std::string redis_server, directory, disk_stat;
    struct Words {
      std::vector<std::string> wrapper, further;  // before and after redis-server and its arguments
    };
    std::vector<Words> shards;
    uint64_t limit_bytes = 0, dram_bytes = 0;
    bool swap = false;                  // its cgroup may swap
    std::optional<CgroupPlace> cgroup;  // none: it has no cgroup
    unsigned connections = 50;
    const RedisStage* stage = &kPlainStage;
    uint64_t data_bytes = 0, seed = 1;
    size_t value_bytes = 1024;
    bool compressible = false;
    bool reads_disk = true;  // false: swapped pages may stay in DRAM (zram, zswap)
  };
  struct Plan {
    unsigned pipeline = 1;
    double seconds = 1, warm_seconds = 0.1, rate = 2000;
    uint64_t seed = 1;
  };
  using Say = std::function<void(const std::string&)>;

  // Starts the empty servers. Throws std::runtime_error with the end of a log.
  RedisBackend(const Setup& setup, SetupJournal& journal);
  ~RedisBackend();
  RedisBackend(const RedisBackend&) = delete;
  RedisBackend& operator=(const RedisBackend&) = delete;

  const std::string& system() const { return setup_.system; }
  std::string redis_version() { return servers_[0]->info("server", "redis_version"); }
  unsigned load_pipeline() const;
  // Both throw std::runtime_error with the reason if a server is lost.
  RunResult load(const Say& say);
  RunResult run(const RedisWorkload& workload, const Plan& plan);
  uint64_t peak_bytes() const { return cgroup_ ? cgroup_->group.peak_bytes() : 0; }

 private:
  struct Counters;
  class Job;
  using Servers = std::vector<std::unique_ptr<RedisServer>>;
  using Choose = std::function<bool(unsigned connection, Request*)>;
  void start();
  void start_server(const std::string& name, const Setup::Words& words, bool in_cgroup,
                    Servers* into);
  void follow_master(unsigned shard);
  double catch_up();
  void end();
  Counters count() const;
  LoadCounts drive(LoadPlan plan, RunResult* run);
  void send_each(LoadPlan plan, uint64_t first, uint64_t step,
                 const std::function<Request(uint64_t index, unsigned shard)>& request,
                 uint64_t end, RunResult* run);
  Choose chooser(const RedisBase& what, Random* random);
  void prepare(const RedisBase& what, double warm_seconds);
  void make_due(double warm_seconds);
  void put_must_move(const RedisBase& what, const LoadCounts& counts, unsigned outstanding,
                     RunResult* run);
  void check_replica(RunResult* run);
  uint64_t shards() const { return servers_.size(); }
  uint64_t keys_of_shard() const { return data_.keys() / setup_.shards.size(); }
  uint64_t keys() const { return keys_of_shard() * shards(); }
  uint64_t key_of(uint64_t index, uint64_t shard) const {
    return index * shards() + shard % shards();
  }
  uint64_t hot_keys(const RedisBase& what) const;  // per shard
  uint64_t hot_index(uint64_t index, uint64_t count) const {
    return index * (keys_of_shard() / count);
  }
  double missed_reads(const RedisBase& what, double draws, unsigned outstanding);
  std::vector<uint16_t> ports(const Servers& servers) const;
  [[noreturn]] void lost(const std::string& why);

  Setup setup_;
  SetupJournal& journal_;
  std::optional<RecordedCgroup> cgroup_;
  Servers masters_, servers_;
  Dataset data_;
  double load_seconds_ = 0, due_ = 0;  // due_: wall clock time at which keys expire
  std::vector<uint64_t> new_keys_;     // number of keys added to each shard
  std::unique_ptr<LoadGenerator> generator_;
  std::unique_ptr<ZipfGenerator> zipf_;
};

}  // namespace lunar::tools
