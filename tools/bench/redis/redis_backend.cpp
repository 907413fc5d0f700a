// SPDX-License-Identifier: Apache-2.0
// See redis_backend.h.
//
// The bytes that the disk must have moved are bounded from below without the server's counters.
// Memory of L bytes has at most L/D of D bytes of equally likely values (for zipf: the mass of as
// many of the hottest), and the server knows of coming requests at most the outstanding ones. Each
// read that misses reads at least a page. Loaded data beyond L was written. A save reads the data
// that is not in memory, and writes every value.
#include "tools/bench/redis/redis_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "tools/bench/report.h"
#include "tools/bench/run_counters.h"
#include "tools/support/clock.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {
constexpr unsigned kLoadPipelineMax = 16;
// Per connection: requests that the server has not read yet use its memory.
constexpr uint64_t kLoadBatchBytes = 64 << 10;
constexpr uint64_t kReplicaSample = 1000;  // keys that are read from a replica after each run
constexpr double kPageBytes = 4096;        // the least that a miss reads, for all page sizes
constexpr double kJobSecondsMax = 900;
// Writing keys with an expiry may take longer than loading them.
constexpr double kDueSecondsLeast = 1, kDueSpare = 2;

// Keys expire by this clock.
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
void sleep_until_wall(double second) {
  for (double left; (left = second - wall_seconds()) > 0;) {
    check_interrupted();
    usleep(static_cast<useconds_t>(std::fmin(left, 0.1) * 1e6) + 1);
  }
}
}  // namespace

struct RedisBackend::Counters : RunCounters {
  std::optional<uint64_t> server_read;
};

// A job of the servers while clients work, on all shards at the same time. The constructor begins
// it, and its end ends the run.
class RedisBackend::Job {
 public:
  Job(SideJob what, Servers& servers, double due)
      : what_(what), servers_(servers), due_(due), thread_([this] { follow(); }) {}
  ~Job() {
    abandoned_.store(true);
    thread_.join();
  }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // pre: done(). Throws std::runtime_error if the job failed.
  void finish(RunResult* run) {
    if (!error_.empty()) throw std::runtime_error("the servers' job: " + error_);
    run->job_s = seconds_;
    if (what_ == SideJob::kSave) run->fork_us = 0;
    if (what_ == SideJob::kExpiry) run->expired_ahead = -expired_before_;
    for (auto& server : servers_) {
      if (what_ == SideJob::kSave)
        run->fork_us =
            std::fmax(run->fork_us, std::stod("0" + server->info("stats", "latest_fork_usec")));
      if (what_ == SideJob::kExpiry) run->expired_ahead += expired_ahead(*server);
    }
  }

 private:
  void begin() {
    for (auto& server : servers_) {
      if (what_ == SideJob::kSave) (void)server->command({"BGSAVE"});
      if (what_ == SideJob::kExpiry) expired_before_ += expired_ahead(*server);
    }
    if (what_ == SideJob::kExpiry) sleep_until_wall(due_);  // expiry begins by itself
  }
  // 0 without the module.
  static double expired_ahead(RedisServer& server) {
    return std::stod("0" + server.info("lunar", "lunar_gate_expired"));
  }
  bool goes_on(RedisServer& server) const {
    return what_ == SideJob::kSave
               ? server.info("persistence", "rdb_bgsave_in_progress") != "0"
               : server.info("keyspace", "db0").find("expires=0,") == std::string::npos;
  }
  void follow() {
    try {
      begin();
      const double start = now_seconds();
      for (auto& server : servers_) {
        while (goes_on(*server) && !abandoned_.load()) {
          if (now_seconds() - start > kJobSecondsMax) throw std::runtime_error("not done in time");
          usleep(10'000);
        }
        if (what_ == SideJob::kSave &&
            server->info("persistence", "rdb_last_bgsave_status") != "ok")
          error_ = "failed\n" + server->log_tail();
      }
      seconds_ = now_seconds() - start;
    } catch (const std::exception& error) { error_ = error.what(); } catch (const Interrupted&) {
      error_ = "interrupted";
    }
    done_.store(true, std::memory_order_release);
  }
  const SideJob what_;
  Servers& servers_;
  const double due_;
  double expired_before_ = 0;
  std::atomic<bool> done_{false}, abandoned_{false};
  double seconds_ = 0;
  std::string error_;
  std::thread thread_;  // last, because it uses the other members
};

RedisBackend::RedisBackend(const Setup& setup, SetupJournal& journal)
    : setup_(setup),
      journal_(journal),
      data_(setup.stage->kind, setup.data_bytes, setup.value_bytes, setup.seed, setup.compressible),
      new_keys_(setup.shards.size()) {
  try {
    start();
  } catch (...) {
    end();
    throw;
  }
}

RedisBackend::~RedisBackend() { end(); }

void RedisBackend::start_server(const std::string& name, const Setup::Words& words, bool in_cgroup,
                                Servers* into) {
  ServerSetup server;
  if (in_cgroup && cgroup_) server.cgroup_procs = cgroup_->group.procs_path();
  server.redis_server = setup_.redis_server;
  server.wrapper = words.wrapper;
  server.further = words.further;
  server.directory = setup_.directory;
  server.name = name;
  server.dump = name + ".rdb";
  server.saves = false;
  into->push_back(std::make_unique<RedisServer>(server));
}

// Connects the empty server to its empty master. Its buffer at the master is unlimited, so the
// server may fall behind.
void RedisBackend::follow_master(unsigned shard) {
  RedisServer& master = *masters_[shard];
  (void)master.command(
      {"CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0", "repl-timeout", "3600"});
  (void)servers_[shard]->command({"REPLICAOF", "127.0.0.1", fmt::format("{}", master.port())});
  while (servers_[shard]->info("replication", "master_link_status") != "up") {
    check_interrupted();
    usleep(10'000);
  }
}

void RedisBackend::start() {
  if (setup_.cgroup)
    cgroup_.emplace(journal_, *setup_.cgroup, setup_.system, setup_.limit_bytes, setup_.swap);
  for (unsigned i = 0; i < setup_.shards.size(); ++i) {
    start_server(fmt::format("{}-{}", setup_.system, i), setup_.shards[i], true, &servers_);
    if (!setup_.stage->replica) continue;
    start_server(fmt::format("{}-master-{}", setup_.system, i), {}, false, &masters_);
    follow_master(i);
  }
  const Servers& asked = masters_.empty() ? servers_ : masters_;
  generator_ = std::make_unique<LoadGenerator>(ports(asked), setup_.connections, data_);
}

std::vector<uint16_t> RedisBackend::ports(const Servers& servers) const {
  std::vector<uint16_t> all;
  for (const auto& server : servers) all.push_back(server->port());
  return all;
}

void RedisBackend::end() {
  generator_.reset();
  servers_.clear();
  masters_.clear();
  cgroup_.reset();  // also ends a child that still saves
  for (size_t i = 0; i < setup_.shards.size(); ++i)
    unlink(fmt::format("{}/{}-{}.rdb", setup_.directory, setup_.system, i).c_str());
}

void RedisBackend::lost(const std::string& why) {
  check_interrupted();
  const bool out_of_memory = cgroup_ && cgroup_->group.oom_kills() > 0;
  std::string tails;
  for (const auto& server : servers_) tails += "\n" + server->log_tail();
  throw std::runtime_error(fmt::format(
      "{}: {}{}{}", setup_.system, why,
      out_of_memory ? "; killed for passing its memory limit (--allowance)" : "", tails));
}

RedisBackend::Counters RedisBackend::count() const {
  double cpu_s = 0;
  std::optional<uint64_t> all_read = 0;
  for (const auto& server : servers_) {
    const std::optional<uint64_t> read = process_read_bytes(server->pid());
    all_read = read && all_read ? std::optional(*all_read + *read) : std::nullopt;
    cpu_s += process_cpu_seconds(server->pid());
  }
  return {read_counters(setup_.disk_stat, cpu_s), all_read};
}

// Waits until the servers have all data of their masters. Returns the time in seconds.
double RedisBackend::catch_up() {
  const double start = now_seconds();
  for (unsigned i = 0; i < masters_.size(); ++i) {
    const uint64_t wanted =
        std::stoull("0" + masters_[i]->info("replication", "master_repl_offset"));
    while (std::stoull("0" + servers_[i]->info("replication", "slave_repl_offset")) < wanted) {
      check_interrupted();
      if (now_seconds() - start > kJobSecondsMax)
        throw std::runtime_error("the replica does not catch up");
      usleep(1000);
    }
  }
  return masters_.empty() ? 0 : now_seconds() - start;
}

// Runs the plan between two readings of the counters. The run has the latencies of group 0. The
// time in which a replica catches up is part of the measured time.
LoadCounts RedisBackend::drive(LoadPlan plan, RunResult* run) {
  Counters before, after;
  double lag_s = 0;
  const auto start_too = plan.on_start;
  plan.on_start = [&] {
    if (start_too) start_too();
    before = count();
  };
  plan.on_end = [&] {
    lag_s = catch_up();
    if (!masters_.empty()) run->lag_s = lag_s;
    after = count();
  };
  LoadCounts counts;
  try {
    counts = generator_->run(plan);
  } catch (const std::runtime_error& error) { lost(error.what()); }
  const Histogram& latencies = counts.latencies[0];
  put_latencies(run, latencies, counts.seconds + lag_s);
  put_counters(run, before, after,
               static_cast<double>(latencies.count() + counts.latencies[1].count()));
  run->generator_cpu_s = counts.cpu_s;
  if (before.server_read && after.server_read)
    run->server_read_bytes = static_cast<double>(*after.server_read - *before.server_read);
  run->mismatches = static_cast<double>(counts.mismatches);
  run->error = counts.first_mismatch;
  return counts;
}

// Sends one request for each of the indices first, first + step, ... below `end` of every shard.
void RedisBackend::send_each(LoadPlan plan, uint64_t first, uint64_t step,
                             const std::function<Request(uint64_t index, unsigned shard)>& request,
                             uint64_t end, RunResult* run) {
  std::vector<uint64_t> next(shards(), first);
  plan.pipeline = load_pipeline();
  plan.next = [&](unsigned connection, Request* out) {
    const auto shard = static_cast<unsigned>(connection % shards());
    if (next[shard] >= end) return false;
    *out = request(next[shard], shard);
    next[shard] += step;
    return true;
  };
  // The analyzer does not see that std::function frees its memory.
  (void)drive(plan, run);  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
}

unsigned RedisBackend::load_pipeline() const {
  return static_cast<unsigned>(
      std::clamp<uint64_t>(kLoadBatchBytes / data_.key_bytes(), 1, kLoadPipelineMax));
}

RunResult RedisBackend::load(const Say& say) {
  LoadPlan plan;
  plan.on_progress = [&](uint64_t done) {
    say(fmt::format("loading {}: {}% of {} MiB", setup_.system, done * 100 / keys(),
                    data_.data_bytes() >> 20));
  };
  RunResult run;
  const auto request = [this](uint64_t index, unsigned shard) {
    return data_.load(key_of(index, shard));
  };
  const double start = now_seconds();
  send_each(plan, 0, 1, request, keys_of_shard(), &run);
  load_seconds_ = now_seconds() - start;
  if (setup_.reads_disk)
    run.must_write_bytes = std::fmax(
        0, static_cast<double>(data_.data_bytes()) - static_cast<double>(setup_.limit_bytes));
  return run;
}

uint64_t RedisBackend::hot_keys(const RedisBase& what) const {
  if (what.hot_share == 0) return 1;
  return std::clamp<uint64_t>(setup_.dram_bytes / what.hot_share / data_.key_bytes() / shards(), 1,
                              keys_of_shard());
}

// Makes every other key expire at one moment, after all of them are written and the clients have
// warmed up. (After DEBUG SET-ACTIVE-EXPIRE the module would leave expiry to the server.)
void RedisBackend::make_due(double warm_seconds) {
  for (double spare = kDueSpare;; spare *= 2) {
    RunResult ignored;
    due_ = wall_seconds() + warm_seconds + kDueSecondsLeast + spare * load_seconds_;
    const auto ms = static_cast<uint64_t>(due_ * 1e3);
    const auto request = [&](uint64_t index, unsigned shard) {
      return data_.load_due(key_of(index, shard), ms);
    };
    send_each({}, 1, 2, request, keys_of_shard(), &ignored);
    if (wall_seconds() + warm_seconds < due_) break;
  }
  sleep_until_wall(due_ - warm_seconds);
}

// The setup of a workload before the clock starts.
void RedisBackend::prepare(const RedisBase& what, double warm_seconds) {
  RunResult ignored;
  if (what.hot_share != 0) {
    Random random(1);
    const uint64_t count = hot_keys(what);
    const auto request = [&](uint64_t index, unsigned shard) {
      return data_.read(key_of(hot_index(index, count), shard), random);
    };
    send_each({}, 0, 1, request, count, &ignored);
  }
  if (what.job == SideJob::kExpiry) make_due(warm_seconds);
  if (what.keys == KeyChoice::kNew) {
    for (auto& server : servers_)
      (void)server->command({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory",
                             server->info("memory", "used_memory")});
  }
}

RedisBackend::Choose RedisBackend::chooser(const RedisBase& what, Random* random) {
  const auto uniform = [this, random](unsigned c) {
    return key_of(random->below(keys_of_shard()), c);
  };
  const auto hot = [this, random, count = hot_keys(what)](unsigned c) {
    return key_of(hot_index(random->below(count), count), c);
  };
  switch (what.keys) {
    case KeyChoice::kZipf:
      if (!zipf_) zipf_ = std::make_unique<ZipfGenerator>(keys_of_shard(), kZipfTheta);
      return [=, this](unsigned c, Request* request) {
        return *request = data_.read(key_of(zipf_->scattered(zipf_->rank(*random)), c), *random),
               true;
      };
    case KeyChoice::kHot:
      return [=, this](unsigned c, Request* request) {
        return *request = data_.read(hot(c), *random), true;
      };
    case KeyChoice::kHotAndCold:
      return [=, this, whole = what.whole, first = setup_.connections / 2](unsigned c,
                                                                           Request* request) {
        *request = c >= first && whole ? data_.read_whole(uniform(c))
                                       : data_.read(c < first ? hot(c) : uniform(c), *random);
        return true;
      };
    case KeyChoice::kKept:  // every other key
      return [=, this](unsigned c, Request* request) {
        const uint64_t index = random->below(keys_of_shard()) / 2 * 2;
        return *request = data_.read(key_of(index, c), *random), true;
      };
    case KeyChoice::kNew:
      return [=, this](unsigned c, Request* request) {
        const uint64_t index = keys_of_shard() + new_keys_[c % shards()]++;
        return *request = data_.load(key_of(index, c)), true;
      };
    case KeyChoice::kUniform:
      break;
  }
  return [=, this, writes = what.write_percent](unsigned c, Request* request) {
    uint64_t key = uniform(c);
    for (unsigned tries = 0; writes == 100 && data_.writing(key) && tries < 100; ++tries)
      key = uniform(c);
    const bool write = random->below(100) < writes && !data_.writing(key);
    return *request = write ? data_.write(key) : data_.read(key, *random), true;
  };
}

double RedisBackend::missed_reads(const RedisBase& what, double draws, unsigned outstanding) {
  const double memory = static_cast<double>(setup_.limit_bytes) + outstanding * kPageBytes;
  const double hit = what.keys == KeyChoice::kZipf
                         ? zipf_->mass(static_cast<uint64_t>(memory) / data_.key_bytes() / shards())
                         : std::fmin(1, memory / static_cast<double>(data_.data_bytes()));
  draws = std::fmax(0, draws - outstanding);  // these may have been read before the clock started
  // Three standard deviations less, so that chance does not fail a short run.
  return std::fmax(0, draws * (1 - hit) - 3 * std::sqrt(draws * hit * (1 - hit)));
}

void RedisBackend::put_must_move(const RedisBase& what, const LoadCounts& counts,
                                 unsigned outstanding, RunResult* run) {
  if (!setup_.reads_disk || what.keys == KeyChoice::kHot || what.job == SideJob::kExpiry) return;
  const double data = static_cast<double>(data_.data_bytes()),
               limit = static_cast<double>(setup_.limit_bytes);
  if (what.job == SideJob::kSave) {
    run->must_read_bytes = std::fmax(0, data - limit);
    run->must_write_bytes = data;
    return;
  }
  const bool groups = what.keys == KeyChoice::kHotAndCold;
  const double draws =
      groups ? static_cast<double>(counts.latencies[1].count()) : static_cast<double>(counts.reads);
  run->must_read_bytes = missed_reads(what, draws, outstanding) * kPageBytes;
}

// Reads a sample of the data from the replica itself.
void RedisBackend::check_replica(RunResult* run) {
  LoadGenerator reader(ports(servers_), setup_.connections, data_);
  Random random(static_cast<uint64_t>(run->ops) + 1);
  uint64_t left = std::min(kReplicaSample, keys());
  LoadPlan plan;
  plan.next = [&](unsigned connection, Request* request) {
    if (left == 0) return false;
    --left;
    *request = data_.read(key_of(random.below(keys_of_shard()), connection), random);
    return true;
  };
  const LoadCounts counts = reader.run(plan);
  run->mismatches += static_cast<double>(counts.mismatches);
  if (run->error.empty()) run->error = counts.first_mismatch;
}

RunResult RedisBackend::run(const RedisWorkload& workload, const Plan& how) {
  const RedisBase& what = *workload.base;
  const bool groups = what.keys == KeyChoice::kHotAndCold;
  // After a warm-up, a replica would begin behind its master.
  const double warm_seconds = what.stage->replica ? 0 : how.warm_seconds;
  prepare(what, warm_seconds);
  Random random(how.seed);
  RunResult run;
  std::unique_ptr<Job> job;
  LoadPlan plan;
  plan.pipeline = workload.pipelined ? how.pipeline : 1;
  plan.warm_seconds = warm_seconds;
  plan.next = chooser(what, &random);
  if (groups) plan.first_group = setup_.connections / 2;
  if (what.by_clock) plan.rate = how.rate;  // the same work for every system
  if (what.job != SideJob::kNone) {
    // The run lasts as long as the job, which begins with the clock.
    plan.on_start = [&] { job = std::make_unique<Job>(what.job, servers_, due_); };
    plan.is_over = [&] { return job && job->done(); };
  } else {
    plan.seconds = how.seconds;
  }
  const LoadCounts counts = drive(plan, &run);
  if (job) job->finish(&run);
  put_must_move(what, counts, setup_.connections * plan.pipeline, &run);
  if (groups) {
    run.cold_ops_per_s = static_cast<double>(counts.latencies[1].count()) / counts.seconds;
    run.cold_p99_ns = counts.latencies[1].percentile(0.99);
  }
  if (what.stage->replica) check_replica(&run);
  return run;
}

}  // namespace lunar::tools
