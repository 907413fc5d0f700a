// SPDX-License-Identifier: Apache-2.0
// `lunar bench fault`: what a page fault costs with Lunar and with kernel swap on a file of the same disk.
//
// Both backends are child processes (tools/bench/fault/fault_child.cpp) in memory cgroups of the same limit, with the
// same data, and take turns A B A B; medians are quoted. Files are written whole before any clock starts; swap runs at
// the better of vm.page-cluster 0 and 3 for each workload; a run whose disk did not move what the work needs fails the
// bench. The limit is --dram plus --allowance (code, stacks, page tables, counts of the bench), for both; Lunar may not
// swap. What is set up is undone at the end, on a signal, and by the next run after kill -9 (bench/setup_journal.h).
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/bench/fault/fault_bench.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>

#include "tools/bench/bench_host.h"
#include "tools/bench/bench_main.h"
#include "tools/bench/fault/fault_report.h"
#include "tools/bench/progress.h"
#include "tools/bench/setup_journal.h"
#include "tools/bench/size_option.h"
#include "tools/bench/swap_file.h"
#include "tools/bench/system_under_test.h"
#include "tools/support/cgroup.h"
#include "tools/support/flags.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kMiBytes = 1 << 20;

class FaultBench {
 public:
  explicit FaultBench(FaultOptions options) {
    report_.options = std::move(options);
    limit_bytes_ = report_.options.dram_bytes + report_.options.allowance_bytes;
    swap_bytes_ = report_.options.data_bytes / 2 * 3;
    // The same for one process: of a LUN file of fixed size the first process gets half, its children the rest.
    lun_bytes_ = 2 * swap_bytes_ + 64 * kMiBytes;
  }
  FaultReport run();

 private:
  const FaultOptions& options() const { return report_.options; }
  bool wants(const char* system) const {
    return std::find(options().systems.begin(), options().systems.end(), system) != options().systems.end();
  }
  bool wants_workload(const char* name) const {
    return std::find(options().workloads.begin(), options().workloads.end(), name) != options().workloads.end();
  }
  void check_host();
  void start_lunar();
  void start_swap();
  std::vector<std::string> child_arguments(const std::string& system) const;
  void run_fill(unsigned threads, bool counted);
  void run_workload(const std::string& workload, unsigned threads);
  int better_page_cluster(const std::string& workload, unsigned threads, double seconds);
  RunResult measure_run(SystemUnderTest& who, const std::string& workload, unsigned threads, double seconds);
  void add_result(const SystemUnderTest& who, const std::string& workload, unsigned threads, int page_cluster,
                  const std::vector<RunResult>& runs);

  FaultReport report_;
  std::string directory_, disk_stat_;
  uint64_t limit_bytes_ = 0, swap_bytes_ = 0, lun_bytes_ = 0, runs_ = 0;
  std::optional<CgroupPlace> cgroup_;
  Progress progress_;
  // Undone from the last to the first: children, then the swap they fill.
  std::unique_ptr<SetupJournal> journal_;
  std::unique_ptr<SwapFile> swap_file_;
  std::unique_ptr<SystemUnderTest> lunar_, swap_;
};

void FaultBench::check_host() {
  BenchHost host = check_bench_host(options().lun, limit_bytes_ * options().systems.size());
  journal_ = std::move(host.journal);
  directory_ = host.directory;
  disk_stat_ = host.disk_stat;
  cgroup_ = host.cgroup;
  report_.skipped = std::move(host.skipped);
}

std::vector<std::string> FaultBench::child_arguments(const std::string& system) const {
  return {"--system",    system,
          "--data",      fmt::format("{}", options().data_bytes),
          "--dram",      fmt::format("{}", options().dram_bytes),
          "--limit",     fmt::format("{}", limit_bytes_),
          "--disk-stat", disk_stat_,
          "--seed",      fmt::format("{}", options().seed)};
}

void FaultBench::start_lunar() {
  std::vector<std::string> arguments = child_arguments("lunar");
  std::string lun = options().lun, line;
  struct stat info{};
  if (stat(lun.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    lun = fmt::format("{}/lunar-bench-{}.lun", directory_, getpid());
    line = "file " + lun;
    progress_.say(fmt::format("writing {} MiB of LUN in {}", lun_bytes_ / kMiBytes, directory_));
    journal_->record(line);
    write_lun_file(lun, lun_bytes_);
  }
  const auto tidy = [&] {  // open in the child by now: nothing stays whatever happens
    if (line.empty()) return;
    unlink(lun.c_str());
    journal_->forget(line);
  };
  arguments.insert(arguments.end(),
                   {"--lun", lun, "--lun-bytes", fmt::format("{}", lun_bytes_), "--options", options().options});
  try {
    lunar_ = std::make_unique<SystemUnderTest>(SystemUnderTest::Setup{"lunar", arguments, limit_bytes_, false, cgroup_},
                                               *journal_);
    // The LUN may be opened as late as the first region: fill before the name goes.
    progress_.say("filling: lunar");
    (void)lunar_->order("fill 1", 600);
  } catch (const std::runtime_error& error) {
    lunar_.reset();
    tidy();
    report_.skipped["lunar"] = error.what();
    report_.failures.push_back(fmt::format("lunar: {}", error.what()));
    return;
  } catch (...) {
    tidy();
    throw;
  }
  tidy();
}

void FaultBench::start_swap() {
  try {
    progress_.say(fmt::format("writing {} MiB of swap in {}", swap_bytes_ / kMiBytes, directory_));
    swap_file_ =
        std::make_unique<SwapFile>(SwapKind::kFile, fmt::format("{}/lunar-bench-{}.swap", directory_, getpid()),
                                   swap_bytes_, *journal_, check_interrupted);
    swap_ = std::make_unique<SystemUnderTest>(
        SystemUnderTest::Setup{"swap", child_arguments("swap"), limit_bytes_, true, cgroup_}, *journal_);
    progress_.say("filling: swap");
    (void)swap_->order("fill 1", 600);
  } catch (const std::runtime_error& error) {
    swap_.reset();
    swap_file_.reset();
    report_.skipped["swap"] = error.what();
  }
}

RunResult FaultBench::measure_run(SystemUnderTest& who, const std::string& workload, unsigned threads, double seconds) {
  progress_.say(fmt::format("{} {} x{}: {} ...", progress_.count(), workload, threads, who.system()));
  const bool fill = workload == "fill";
  const double patience = 120 + 10 * seconds;
  const RunResult result =
      fill ? who.order(fmt::format("fill {}", threads), 900)
           : who.order(fmt::format("run {} {} {} {} {} {}", workload, threads, seconds, 0.1 * seconds,
                                   options().write_percent, options().seed + ++runs_),
                       patience);
  for (const std::string& failure : run_failures(result)) {
    report_.failures.push_back(fmt::format("{} {} x{}: {}", who.system(), workload, threads, failure));
  }
  return result;
}

void FaultBench::add_result(const SystemUnderTest& who, const std::string& workload, unsigned threads, int page_cluster,
                            const std::vector<RunResult>& runs) {
  FaultResult result{who.system(), workload, threads, page_cluster};
  result.put_runs(runs);
  report_.results.push_back(result);
}

// Untimed for the report: also the run in which the memory of both backends takes the workload's shape.
int FaultBench::better_page_cluster(const std::string& workload, unsigned threads, double seconds) {
  double rate[2];
  const int choice[2] = {0, 3};
  for (int i = 0; i < 2; ++i) {
    swap_file_->set_page_cluster(choice[i]);
    rate[i] = measure_run(*swap_, workload, threads, seconds).ops_per_s;
  }
  const int better = rate[1] > rate[0] ? choice[1] : choice[0];
  swap_file_->set_page_cluster(better);
  return better;
}

void FaultBench::run_workload(const std::string& workload, unsigned threads) {
  std::vector<RunResult> lunar_runs, swap_runs;
  const double trial = options().seconds / 2;
  int page_cluster = -1;
  if (workload != "fill") {  // a fill reads nothing: page-cluster is idle, nothing to warm
    if (lunar_) (void)measure_run(*lunar_, workload, threads, swap_ ? 2 * trial : trial);
    if (swap_) page_cluster = better_page_cluster(workload, threads, trial);
  }
  for (unsigned round = 0; round < options().rounds; ++round) {
    if (lunar_) lunar_runs.push_back(measure_run(*lunar_, workload, threads, options().seconds));
    if (swap_) swap_runs.push_back(measure_run(*swap_, workload, threads, options().seconds));
  }
  if (lunar_) add_result(*lunar_, workload, threads, -1, lunar_runs);
  if (swap_) add_result(*swap_, workload, threads, page_cluster, swap_runs);
}

FaultReport FaultBench::run() {
  check_host();
  if (wants("lunar")) start_lunar();
  if (wants("swap") && !report_.skipped.count("swap")) start_swap();
  if (!wants("swap")) report_.skipped["swap"] = "not asked for (--systems)";
  if (!wants("lunar")) report_.skipped["lunar"] = "not asked for (--systems)";
  const auto backends = static_cast<unsigned>((lunar_ ? 1 : 0) + (swap_ ? 1 : 0));
  for (const std::string& workload : options().workloads) {
    const unsigned warm = workload == "fill" ? 0 : (lunar_ ? 1 : 0) + (swap_ ? 2 : 0);
    progress_.total += static_cast<unsigned>(options().threads.size()) * (backends * options().rounds + warm);
  }
  // Fills first: the last one leaves the data of the others.
  if (backends > 0 && wants_workload("fill")) {
    for (const unsigned threads : options().threads) run_workload("fill", threads);
  }
  for (const std::string& workload : options().workloads) {
    if (workload == "fill" || backends == 0) continue;
    for (const unsigned threads : options().threads) run_workload(workload, threads);
  }
  for (SystemUnderTest* who : {lunar_.get(), swap_.get()}) {
    if (who == nullptr) continue;
    progress_.say(fmt::format("verifying every page: {}", who->system()));
    for (const std::string& failure : run_failures(who->order("verify", 900))) {
      report_.failures.push_back(fmt::format("{} at the end: {}", who->system(), failure));
    }
    if (cgroup_) report_.peak_bytes[who->system()] = static_cast<double>(who->peak_bytes());
  }
  progress_.clear();
  return std::move(report_);
}

void parse(CLI::App& app, FaultOptions& options, int argc, char** argv) {
  std::vector<std::string> all(kWorkloadNames.begin(), kWorkloadNames.end());
  options.workloads = all;
  const MemoryFlags memory(app, {"512m", "128m", "24m", "data to touch", "code, stacks, page tables"});
  app.add_option("--threads", options.threads, "thread counts, as 1,16")->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--workloads", options.workloads, "any of uniform,zipf,seq,stride,fill,prefetch (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(all));
  app.add_option("--systems", options.systems, "any of lunar,swap (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"lunar", "swap"}));
  app.add_option("--writes", options.write_percent, "share of touches that write, percent (default 30)")
      ->check(CLI::Range(0, 100));
  app.add_option("--options", options.options, "options of Lunar's backend, NAME=VALUE,...");
  const CommonFlags common(app, options,
                           "directory for LUN and swap file (default /var/tmp), or Lunar's LUN: file, device, URI",
                           "a rough answer within a minute");
  app.parse(argc, argv);
  common.settle({0.5, 2});
  memory.settle(&options);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  options.data_bytes = options.data_bytes / page * page;
}

}  // namespace

int fault_bench_main(int argc, char** argv) {
  CLI::App app{"page faults: Lunar against kernel swap on the same disk, under the same memory limit",
               "lunar bench fault"};
  FaultOptions options;
  try {
    parse(app, options, argc, argv);
  } catch (const CLI::ParseError& error) { return refuse_flags(app, error); }
  const bool json = options.json;
  return bench_main("fault", json, [&] { return FaultBench(std::move(options)).run(); });
}

}  // namespace lunar::tools
