// SPDX-License-Identifier: Apache-2.0
// `lunar bench redis`: redis-server with the Lunar module, under `lunar run`, and with kernel swap
// on a file of the same disk, each in a memory cgroup of the same limit.
//
//   a stage is a kind of data and its size:   start all servers -> load all -> workloads, taking
//                                             turns A B C A B C
//
// Files are written whole before any clock starts. Swap runs at the better of vm.page-cluster 0 and
// 3 for each workload. Every reply is checked. A run whose disk did not move the bytes that the
// work needs fails the bench. The limit is --dram plus --allowance (code, buffers, page tables) for
// all; only the server on swap may swap. The setup is undone at the end and on a signal, and after
// kill -9 by the next run (bench/setup_journal.h).
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <stdexcept>

#include "base/units.h"
#include "tools/bench/bench_host.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/benches.h"
#include "tools/bench/progress.h"
#include "tools/bench/redis/redis_backend.h"
#include "tools/bench/redis/redis_options.h"
#include "tools/bench/swap_file.h"
#include "tools/support/host.h"

namespace lunar::tools {

namespace {

class RedisBench {
 public:
  explicit RedisBench(const RedisOptions& options) : options_(options) {
    const uint64_t shards = options_.shards;
    limit_bytes_ = options_.dram_bytes + options_.allowance_bytes;
    const uint64_t footprint =
        (redis_footprint(options_.data_bytes, options_.value_bytes) / kMiB + 64 * shards) * kMiB;
    masters_bytes_ = replicas() ? footprint * options_.systems.size() : 0;
    swap_bytes_ = footprint / 2 * 3 + 64 * kMiB;
    // A fork reserves as much as its parent has. Of a LUN file of fixed size the first process gets
    // half, and a child an eighth.
    lun_bytes_ = 9 * footprint / 4;
    lun_file_bytes_ = forks() ? 17 * footprint / 2 : 2 * lun_bytes_;
  }
  BenchReport run();

 private:
  bool forks() const {
    return std::any_of(options_.workloads.begin(), options_.workloads.end(),
                       [](const std::string& name) {
                         return known_redis_workload(name).base->job == SideJob::kSave;
                       });
  }
  bool replicas() const {
    return std::any_of(
        options_.workloads.begin(), options_.workloads.end(),
        [](const std::string& name) { return known_redis_workload(name).base->stage->replica; });
  }
  bool wants(const std::string& system) const { return report_.wants(options_.systems, system); }
  void check_host();
  void check_space() const;
  void prepare_files();
  std::vector<std::string> prepare_luns(const std::string& system);
  RedisBackend::Setup setup_of(const std::string& system, const RedisStage& stage, bool fits) const;
  RedisBackend::Setup::Words words_of(const std::string& system, unsigned shard) const;
  void run_stage(const RedisStage& stage, bool fits, const std::vector<RedisWorkload>& workloads);
  void run_workload(const RedisWorkload& workload);
  using Runs = std::map<std::string, std::vector<RunResult>>;  // by system
  void try_workload(RedisBackend& backend, const RedisWorkload& workload, Runs* runs,
                    int* page_cluster);
  RunResult measure_run(RedisBackend& backend, const RedisWorkload& workload, double seconds);
  void check_result(const RedisBackend& backend, const std::string& workload, const RunResult& run);
  void add_result(const std::string& system, const std::string& workload, unsigned pipeline,
                  int page_cluster, const std::vector<RunResult>& runs);

  RedisOptions options_;
  BenchReport report_;
  uint64_t limit_bytes_ = 0, swap_bytes_ = 0, lun_bytes_ = 0, lun_file_bytes_ = 0,
           masters_bytes_ = 0, runs_ = 0;
  Progress progress_;
  // Destroyed from the last to the first: servers, then the files and the swap that they use.
  BenchHost host_;
  std::optional<WorkDirectory> work_directory_;
  std::vector<std::unique_ptr<RecordedFile>> lun_files_;
  std::map<std::string, std::vector<std::string>> luns_;  // of each Lunar system, one per shard
  std::unique_ptr<SwapFile> swap_file_;
  std::vector<std::unique_ptr<RedisBackend>> backends_;
};

void RedisBench::check_host() {
  host_ = check_bench_host(options_.lun, limit_bytes_ * options_.systems.size() + masters_bytes_);
  report_.skipped = host_.skipped;
  if (std::string& module = options_.module; module.empty()) {
    std::string tried;
    module = find_own_library("adapters/redis/liblunar-redis.so", "redis/modules/liblunar-redis.so",
                              &tried);
    if (module.empty())
      report_.skipped["lunar"] = "liblunar-redis.so is not there (looked at " + tried + ")";
  }
  report_.skip_unasked(options_.systems, {"lunar", "run", "swap"});
}

// Makes one file per shard if --lun is a directory. Otherwise returns --lun itself, which serves
// one server at a time.
std::vector<std::string> RedisBench::prepare_luns(const std::string& system) {
  struct stat info{};
  if (stat(options_.lun.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    if (luns_.empty() && options_.shards == 1) return {options_.lun};
    report_.skipped[system] =
        "--lun " + options_.lun + " serves one server at a time: give a directory";
    return {};
  }
  std::vector<std::string> paths;
  for (unsigned i = 0; i < options_.shards; ++i) {
    lun_files_.push_back(make_lun_file(host_, fmt::format("{}-{}", system, i),
                                       lun_file_bytes_ / options_.shards, progress_));
    paths.push_back(lun_files_.back()->path());
  }
  return paths;
}

void RedisBench::check_space() const {
  uint64_t wanted = wants("swap") && options_.swap != "zram" ? swap_bytes_ : 0;
  for (const char* system : {"lunar", "run"})
    wanted += wants(system) ? lun_file_bytes_ + options_.shards * kLunOverheadBytes : 0;
  if (forks())
    wanted += options_.systems.size() * redis_footprint(options_.data_bytes, options_.value_bytes);
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(host_.directory, error);
  if (!error && space.available < wanted) {
    throw std::runtime_error(
        fmt::format("{} has {} MiB free, {} are needed: use a smaller --data, fewer --systems, or "
                    "another --lun DIR",
                    host_.directory, space.available / kMiB, wanted / kMiB));
  }
}

void RedisBench::prepare_files() {
  check_space();
  work_directory_.emplace(*host_.journal,
                          fmt::format("{}/lunar-bench-{}-redis", host_.directory, getpid()));
  for (const char* system : {"lunar", "run"}) {
    if (!wants(system)) continue;
    if (std::vector<std::string> luns = prepare_luns(system); !luns.empty())
      luns_[system] = std::move(luns);
  }
  if (!wants("swap")) return;
  progress_.say(fmt::format("making {} MiB of swap ({})", swap_bytes_ / kMiB, options_.swap));
  try {
    const SwapKind kind = options_.swap == "zram"    ? SwapKind::kZram
                          : options_.swap == "zswap" ? SwapKind::kZswap
                                                     : SwapKind::kFile;
    swap_file_ = std::make_unique<SwapFile>(
        kind, fmt::format("{}/lunar-bench-{}.swap", host_.directory, getpid()), swap_bytes_,
        *host_.journal, check_interrupted);
    report_.notes["swap_state"] = swap_file_->state();
  } catch (const std::runtime_error& error) { report_.skipped["swap"] = error.what(); }
}

RedisBackend::Setup RedisBench::setup_of(const std::string& system, const RedisStage& stage,
                                         bool fits) const {
  RedisBackend::Setup setup;
  setup.system = system;
  setup.redis_server = options_.redis_server;
  setup.directory = work_directory_->path();
  setup.disk_stat = host_.disk_stat;
  setup.limit_bytes = limit_bytes_;
  setup.dram_bytes = options_.dram_bytes;
  setup.swap = system == "swap";
  setup.cgroup = host_.cgroup;
  setup.connections = options_.connections;
  setup.stage = &stage;
  setup.data_bytes = stage_data_bytes(options_, stage.kind, fits);
  setup.value_bytes = options_.value_bytes;
  setup.seed = options_.seed;
  setup.compressible = options_.compressible;
  setup.reads_disk = system != "swap" || options_.swap == "file";
  for (unsigned i = 0; i < options_.shards; ++i) setup.shards.push_back(words_of(system, i));
  return setup;
}

RedisBackend::Setup::Words RedisBench::words_of(const std::string& system, unsigned shard) const {
  RedisBackend::Setup::Words words;
  if (system == "swap") return words;
  const std::string dram = fmt::format("{}", options_.dram_bytes / options_.shards),
                    size = fmt::format("{}", lun_bytes_ / options_.shards),
                    lun = luns_.at(system)[shard];
  if (system == "run") {
    words.wrapper = {
        own_directory() + "/lunar", "run", "--dram", dram, "--lun", lun, "--size", size};
    for (const auto& [name, value] : lunar_options(options_.lunar_options))
      words.wrapper.push_back(fmt::format("--{}={}", name, value));
    words.wrapper.push_back("--");
  } else {
    words.further = {"--loadmodule", options_.module, "dram", dram, "lun", lun, "size", size};
    for (const auto& [name, value] : lunar_options(options_.lunar_options))
      words.further.insert(words.further.end(), {name, value});
  }
  return words;
}

void RedisBench::check_result(const RedisBackend& backend, const std::string& workload,
                              const RunResult& run) {
  // Other programs may also use the disk, so the bytes that the server itself read must be enough.
  // (For a save the child of the server reads.)
  RunResult checked = run;
  if (run.server_read_bytes >= 0 && std::isnan(run.job_s)) {
    checked.disk_read_bytes = std::min(run.disk_read_bytes, run.server_read_bytes);
  }
  report_.check(backend.system() + " " + workload, checked);
}

RunResult RedisBench::measure_run(RedisBackend& backend, const RedisWorkload& workload,
                                  double seconds) {
  progress_.say(fmt::format("{} {}: {} ...", progress_.count(), workload.name, backend.system()));
  RedisBackend::Plan how;
  how.pipeline = options_.pipeline;
  how.seconds = seconds;
  how.warm_seconds = 0.1 * seconds;
  how.rate = options_.rate;
  how.seed = options_.seed * 1000 + ++runs_;
  const RunResult result = backend.run(workload, how);
  check_result(backend, workload.name, result);
  return result;
}

void RedisBench::add_result(const std::string& system, const std::string& workload,
                            unsigned pipeline, int page_cluster,
                            const std::vector<RunResult>& runs) {
  BenchRow row;
  row.system = system;
  row.workload = workload;
  row.threads = options_.connections;
  row.depth = pipeline;
  row.page_cluster = page_cluster;
  report_.add(row, runs);
}

// The runs before the measured ones are the warm-up, and determine page-cluster for swap. A job of
// the servers is long and needs no warm-up, so its trials count.
void RedisBench::try_workload(RedisBackend& backend, const RedisWorkload& workload, Runs* runs,
                              int* page_cluster) {
  const double seconds = options_.seconds / 2;
  const bool job = workload.base->job != SideJob::kNone;
  if (backend.system() == "swap" &&
      !workload.fits) {  // page-cluster does not matter for data that fits
    const RunResult better = swap_file_->at_better_page_cluster(
        [&] { return measure_run(backend, workload, seconds); }, page_cluster);
    if (job) (*runs)["swap"].push_back(better);
  } else if (!job) {
    (void)measure_run(backend, workload, workload.fits ? seconds : 2 * seconds);
  }
}

void RedisBench::run_workload(const RedisWorkload& workload) {
  Runs runs;
  int page_cluster = -1;
  const auto each = [&](const auto& work) {
    for (const auto& backend : backends_)
      report_.attempt(backend->system(), [&] { work(*backend); });
    std::erase_if(backends_, [&](const auto& backend) {
      return report_.skipped.count(backend->system()) != 0;
    });
  };
  each([&](RedisBackend& backend) { try_workload(backend, workload, &runs, &page_cluster); });
  for (unsigned round = 0; round < options_.rounds; ++round) {
    each([&](RedisBackend& backend) {
      std::vector<RunResult>& done = runs[backend.system()];
      if (done.size() <= round) done.push_back(measure_run(backend, workload, options_.seconds));
    });
  }
  for (const auto& backend : backends_) {
    add_result(backend->system(), workload.name, workload.pipelined ? options_.pipeline : 1,
               backend->system() == "swap" ? page_cluster : -1, runs[backend->system()]);
  }
}

void RedisBench::run_stage(const RedisStage& stage, bool fits,
                           const std::vector<RedisWorkload>& workloads) {
  const std::string name = load_workload_name(stage, fits);
  for (const std::string& system : options_.systems) {
    if (!wants(system)) continue;
    report_.attempt(system, [&] {
      progress_.say(fmt::format("starting and loading {}", system));
      auto backend = std::make_unique<RedisBackend>(setup_of(system, stage, fits), *host_.journal);
      report_.notes["redis_version"] = backend->redis_version();
      const RunResult load =
          backend->load([&](const std::string& text) { progress_.follow(text); });
      check_result(*backend, name, load);
      add_result(system, name, backend->load_pipeline(), -1, {load});
      backends_.push_back(std::move(backend));
    });
  }
  for (const RedisWorkload& workload : workloads) run_workload(workload);
  for (const auto& backend : backends_) {
    double& peak = report_.peak_bytes[backend->system()];
    peak = std::max(peak, static_cast<double>(backend->peak_bytes()));
  }
  if (swap_file_ && options_.swap != "file") {
    double& held = report_.peak_bytes[options_.swap + ", outside of the limit"];
    held = std::max(held, static_cast<double>(swap_file_->memory_bytes()));
  }
  progress_.say("stopping the servers");
  backends_.clear();
}

BenchReport RedisBench::run() {
  check_host();
  prepare_files();
  // In the order of --workloads.
  std::vector<std::pair<std::pair<const RedisStage*, bool>, std::vector<RedisWorkload>>> stages;
  for (const std::string& name : options_.workloads) {
    const RedisWorkload workload = known_redis_workload(name);
    const std::pair<const RedisStage*, bool> key{workload.base->stage, workload.fits};
    auto found = std::find_if(stages.begin(), stages.end(),
                              [&](const auto& stage) { return stage.first == key; });
    if (found == stages.end()) found = stages.insert(stages.end(), {key, {}});
    found->second.push_back(workload);
    for (const std::string& system : options_.systems) {
      const bool swaps = system == "swap" && !workload.fits,
                 job = workload.base->job != SideJob::kNone;
      if (wants(system)) progress_.total += options_.rounds + (swaps ? 2 : 1) - (job ? 1 : 0);
    }
  }
  for (const auto& [key, workloads] : stages) run_stage(*key.first, key.second, workloads);
  progress_.clear();
  for (const auto& [name, ours, baseline] :
       {std::array{"swap", "lunar", "swap"}, std::array{"run", "lunar", "run"},
        std::array{"run_over_swap", "run", "swap"}}) {
    for (const BenchRow& one : report_.rows) {
      const BenchRow* other =
          one.system == ours ? report_.find(baseline, one.workload, one.threads) : nullptr;
      if (other != nullptr)
        report_.compare(name, fmt::format("{}_t{}_", one.workload, one.threads), one, *other);
    }
  }
  return std::move(report_);
}

}  // namespace

int redis_bench_main(int argc, char** argv) {
  Flags flags(
      "redis-server with Lunar against redis-server with kernel swap, on the same disk and memory "
      "limit",
      "lunar bench redis", true);
  RedisOptions options;
  return run_bench(
      flags, options, [&] { parse_redis_options(flags, options, argc, argv); },
      [&] { return RedisBench(options).run(); });
}

}  // namespace lunar::tools
