// SPDX-License-Identifier: Apache-2.0
// See redis_backend.h.
//
// What the disk must have moved is bounded from below without asking the server. Memory of L bytes holds at most L/D of
// D bytes of equally likely values (for zipf: the mass of as many of the hottest), and what the server may know of
// coming requests is at most what is outstanding; each read that misses reads a page at least. What was loaded beyond
// L was written; a save reads what does not lie in memory and writes every value.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/redis/redis_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "tools/bench/report_parts.h"
#include "tools/support/clock.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {
constexpr unsigned kWritePercent = 10;    // of mixed, hash, zset and save
constexpr uint64_t kHotShareOfDram = 16;  // hot keys hold a 16th of --dram, scattered over all keys
// of paced: few, so that at its rate each is asked for more often than a cold one
constexpr uint64_t kPacedShareOfDram = 256;
constexpr double kPageBytes = 4096;  // the least a miss reads, whatever the page size here
constexpr double kSaveSecondsMax = 900;

double now_seconds() { return static_cast<double>(now_ns()) / 1e9; }
}  // namespace

// What the clock frames: read before and after.
struct RedisBackend::Counters {
  double machine_cpu = 0, cpu = 0;
  std::optional<DiskBytes> disk;
  std::optional<uint64_t> server_read;
};

// Starts a BGSAVE when it is made and ends the run when that is done.
struct RedisBackend::Saving {
  explicit Saving(RedisServer& server) : server_(server), thread_([this] { follow(); }) {}
  ~Saving() {
    abandoned_.store(true);
    thread_.join();
  }
  // pre: done. Throws std::runtime_error when the save failed.
  void finish(RedisRun* run) {
    if (!error_.empty()) throw std::runtime_error("BGSAVE: " + error_);
    run->bgsave_s = seconds_;
    run->fork_us = std::stod("0" + server_.info("stats", "latest_fork_usec"));
  }
  std::atomic<bool> done{false};

 private:
  void follow() {
    try {
      const double start = now_seconds();
      (void)server_.command({"BGSAVE"});
      while (server_.info("persistence", "rdb_bgsave_in_progress") != "0" && !abandoned_.load()) {
        if (now_seconds() - start > kSaveSecondsMax) throw std::runtime_error("not done in time");
        usleep(10'000);
      }
      seconds_ = now_seconds() - start;
      if (server_.info("persistence", "rdb_last_bgsave_status") != "ok") error_ = "failed\n" + server_.log_tail();
    } catch (const std::exception& error) { error_ = error.what(); } catch (const Interrupted&) {
      error_ = "interrupted";
    }
    done.store(true, std::memory_order_release);
  }
  RedisServer& server_;
  std::atomic<bool> abandoned_{false};
  double seconds_ = 0;
  std::string error_;
  std::thread thread_;  // last: it uses the others
};

RedisBackend::RedisBackend(const Setup& setup, SetupJournal& journal)
    : setup_(setup), journal_(journal), data_(setup.kind, setup.data_bytes, setup.value_bytes, setup.seed) {
  try {
    start();
  } catch (...) {
    end();
    throw;
  }
}

RedisBackend::~RedisBackend() { end(); }

void RedisBackend::start() {
  ServerSetup server;
  if (setup_.cgroup) {
    const std::string name = fmt::format("lunar-bench-{}-{}", getpid(), setup_.system);
    recorded_ = fmt::format("cgroup {}/{}", setup_.cgroup->mount, name);
    journal_.record(recorded_);
    cgroup_ = std::make_unique<MemoryCgroup>(*setup_.cgroup, name, setup_.limit_bytes, setup_.swap);
    server.cgroup_procs = cgroup_->procs_path();
  }
  server.redis_server = setup_.redis_server;
  server.wrapper = setup_.wrapper;
  server.further = setup_.further;
  server.directory = setup_.directory;
  server.name = setup_.system;
  server.dump = setup_.system + ".rdb";
  server.saves = false;
  server_ = std::make_unique<RedisServer>(server);
  generator_ = std::make_unique<LoadGenerator>(server_->port(), setup_.connections, data_);
}

void RedisBackend::end() {
  generator_.reset();
  server_.reset();
  cgroup_.reset();  // with a child that may still save
  if (!recorded_.empty()) journal_.forget(recorded_);
  unlink(fmt::format("{}/{}.rdb", setup_.directory, setup_.system).c_str());
}

void RedisBackend::lost(const std::string& why) {
  check_interrupted();
  const bool out_of_memory = cgroup_ && cgroup_->oom_kills() > 0;
  throw std::runtime_error(fmt::format("{}: {}{}\n{}", setup_.system, why,
                                       out_of_memory ? "; killed for passing its memory limit (--allowance)" : "",
                                       server_->log_tail()));
}

RedisBackend::Counters RedisBackend::count() const {
  Counters counters;
  counters.disk = read_disk(setup_.disk_stat);
  counters.server_read = process_read_bytes(server_->pid());
  counters.machine_cpu = machine_cpu_seconds();
  counters.cpu = process_cpu_seconds(server_->pid());
  return counters;
}

// Runs the plan and frames it with the counters. Group 0's latencies are the run's.
LoadCounts RedisBackend::drive(LoadPlan plan, RedisRun* run) {
  Counters before, after;
  const auto start_too = plan.on_start;
  plan.on_start = [&] {
    if (start_too) start_too();
    before = count();
  };
  plan.on_end = [&] { after = count(); };
  LoadCounts counts;
  try {
    counts = generator_->run(plan);
  } catch (const std::runtime_error& error) { lost(error.what()); }
  const Histogram& latencies = counts.latencies[0];
  put_latencies(run, latencies, counts.seconds);
  run->cpu_s = after.cpu - before.cpu;
  run->machine_cpu_s = after.machine_cpu - before.machine_cpu;
  const auto all = static_cast<double>(latencies.count() + counts.latencies[1].count());
  run->cpu_us_per_op = all > 0 ? run->machine_cpu_s * 1e6 / all : 0;
  run->generator_cpu_s = counts.cpu_s;
  if (before.disk && after.disk) {
    run->disk_read_bytes = static_cast<double>(after.disk->read - before.disk->read);
    run->disk_written_bytes = static_cast<double>(after.disk->written - before.disk->written);
  }
  if (before.server_read && after.server_read) {
    run->server_read_bytes = static_cast<double>(*after.server_read - *before.server_read);
  }
  run->mismatches = static_cast<double>(counts.mismatches);
  run->first_mismatch = counts.first_mismatch;
  return counts;
}

RedisRun RedisBackend::load(const Say& say) {
  uint64_t next = 0;
  LoadPlan plan;
  plan.pipeline = kLoadPipeline;
  plan.next = [&](unsigned, Request* request) {
    if (next == data_.keys()) return false;
    *request = data_.load(next++);
    return true;
  };
  plan.on_progress = [&](uint64_t done) {
    say(fmt::format("loading {}: {}% of {} MiB", setup_.system, done * 100 / data_.keys(), data_.data_bytes() >> 20));
  };
  RedisRun run;
  (void)drive(plan, &run);
  run.must_write_bytes =
      std::fmax(0, static_cast<double>(data_.data_bytes()) - static_cast<double>(setup_.limit_bytes));
  return run;
}

uint64_t RedisBackend::hot_keys(const RedisWorkload& workload) const {
  const uint64_t share = workload.base == "paced" ? kPacedShareOfDram : kHotShareOfDram;
  return std::clamp<uint64_t>(setup_.dram_bytes / share / data_.key_bytes(), 1, data_.keys());
}
uint64_t RedisBackend::hot_key(uint64_t index, uint64_t count) const { return index * (data_.keys() / count); }

void RedisBackend::warm_hot_keys(uint64_t count) {
  uint64_t next = 0;
  Random random(1);
  LoadPlan plan;
  plan.pipeline = 4;
  plan.next = [&](unsigned, Request* request) {
    if (next == count) return false;
    *request = data_.read(hot_key(next++, count), random);
    return true;
  };
  RedisRun ignored;
  (void)drive(plan, &ignored);
}

std::function<bool(unsigned, Request*)> RedisBackend::chooser(const RedisWorkload& workload, Random* random) {
  const auto uniform = [this, random] { return random->below(data_.keys()); };
  const std::string& base = workload.base;
  const auto hot = [this, random, count = hot_keys(workload)] { return hot_key(random->below(count), count); };
  if (base == "get") {
    return [=, this](unsigned, Request* request) { return *request = data_.read(uniform(), *random), true; };
  }
  if (base == "zipf") {
    if (!zipf_) zipf_ = std::make_unique<ZipfGenerator>(data_.keys(), kZipfTheta);
    return [=, this](unsigned, Request* request) {
      return *request = data_.read(zipf_->scattered(zipf_->rank(*random)), *random), true;
    };
  }
  if (base == "hot") {
    return [=, this](unsigned, Request* request) { return *request = data_.read(hot(), *random), true; };
  }
  if (base == "hotcold" || base == "paced") {
    return [=, this, first = setup_.connections / 2](unsigned connection, Request* request) {
      return *request = data_.read(connection < first ? hot() : uniform(), *random), true;
    };
  }
  const uint64_t writes = base == "set" ? 100 : base == "half" ? 50 : kWritePercent;
  return [=, this](unsigned, Request* request) {  // mixed, half, set, hash, zset, save
    uint64_t key = uniform();
    while (base == "set" && data_.writing(key)) key = uniform();
    const bool write = random->below(100) < writes && !data_.writing(key);
    return *request = write ? data_.write(key) : data_.read(key, *random), true;
  };
}

double RedisBackend::missed_reads(const RedisWorkload& workload, double draws, unsigned outstanding) {
  if (workload.base == "hot") return 0;
  const double memory = static_cast<double>(setup_.limit_bytes) + outstanding * kPageBytes;
  const double hit = workload.base == "zipf" ? zipf_->mass(static_cast<uint64_t>(memory) / data_.key_bytes())
                                             : std::fmin(1, memory / static_cast<double>(data_.data_bytes()));
  draws = std::fmax(0, draws - outstanding);  // may have been read before the clock started
  // Three standard deviations down: chance must not fail an honest short run.
  return std::fmax(0, draws * (1 - hit) - 3 * std::sqrt(draws * hit * (1 - hit)));
}

RedisRun RedisBackend::run(const RedisWorkload& workload, const Plan& how) {
  const bool paced = workload.base == "paced", hotcold = paced || workload.base == "hotcold",
             save = workload.base == "save";
  if (hotcold || workload.base == "hot") warm_hot_keys(hot_keys(workload));
  Random random(how.seed);
  RedisRun run;
  std::unique_ptr<Saving> saving;
  LoadPlan plan;
  plan.pipeline = workload.pipelined ? how.pipeline : 1;
  plan.warm_seconds = how.warm_seconds;
  plan.next = chooser(workload, &random);
  if (hotcold) plan.first_group = setup_.connections / 2;
  if (paced || save) plan.rate = how.rate;  // the same work on every backend
  if (save) {
    // The run lasts as long as the save; its flag exists from the start of the clock on.
    plan.on_start = [&] { saving = std::make_unique<Saving>(*server_); };
    plan.is_over = [&] { return saving && saving->done.load(std::memory_order_acquire); };
  } else {
    plan.seconds = how.seconds;
  }
  const LoadCounts counts = drive(plan, &run);
  const unsigned outstanding = setup_.connections * plan.pipeline;
  const double data = static_cast<double>(data_.data_bytes()), limit = static_cast<double>(setup_.limit_bytes);
  if (save) {
    saving->finish(&run);
    run.must_read_bytes = std::fmax(0, data - limit);
    run.must_write_bytes = data;
  } else {
    const double draws = hotcold ? static_cast<double>(counts.latencies[1].count()) : static_cast<double>(counts.reads);
    run.must_read_bytes = missed_reads(workload, draws, outstanding) * kPageBytes;
  }
  if (hotcold) {
    run.cold_ops_per_s = static_cast<double>(counts.latencies[1].count()) / counts.seconds;
    run.cold_p99_ns = counts.latencies[1].percentile(0.99);
  }
  return run;
}

}  // namespace lunar::tools
