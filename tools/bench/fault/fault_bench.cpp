// SPDX-License-Identifier: Apache-2.0
// `lunar bench fault`: the cost of a page fault with Lunar and with kernel swap on a file of the
// same disk.
//
// Both systems are child processes (fault_child.cpp) in memory cgroups of the same limit, with the
// same data, and take turns A B A B. Files are written whole before any clock starts. Swap runs at
// the better of vm.page-cluster 0 and 3 for each workload. A run whose disk did not move the bytes
// that the work needs fails the bench. The limit is --dram plus --allowance (code, stacks, page
// tables, counts of the bench) for both; Lunar may not swap. The setup is undone at the end and on
// a signal, and after kill -9 by the next run (bench/setup_journal.h).
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>

#include "base/units.h"
#include "tools/bench/bench_host.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/benches.h"
#include "tools/bench/fault/bench_memory.h"
#include "tools/bench/progress.h"
#include "tools/bench/setup_journal.h"
#include "tools/bench/swap_file.h"
#include "tools/bench/system_under_test.h"

namespace lunar::tools {

namespace {

struct FaultOptions : BenchOptions {
  std::vector<std::string> workloads{kWorkloadNames.begin(), kWorkloadNames.end()};
  std::vector<unsigned> threads{1, 16};
  unsigned write_percent = 30;
};

class FaultBench {
 public:
  explicit FaultBench(const FaultOptions& options) : options_(options) {
    limit_bytes_ = options_.dram_bytes + options_.allowance_bytes;
    swap_bytes_ = options_.data_bytes / 2 * 3;
    // The first process gets half of a LUN file of fixed size, and its children the rest.
    lun_bytes_ = 2 * swap_bytes_ + 64 * kMiB;
  }
  BenchReport run();

 private:
  void start_lunar();
  void start_swap();
  std::vector<std::string> child_arguments(const std::string& system) const;
  void run_workload(const std::string& workload, unsigned threads);
  RunResult measure_run(SystemUnderTest& who, const std::string& workload, unsigned threads,
                        double seconds);

  FaultOptions options_;
  BenchReport report_;
  uint64_t limit_bytes_ = 0, swap_bytes_ = 0, lun_bytes_ = 0, runs_ = 0;
  Progress progress_;
  // Destroyed from the last to the first: children, then the swap that they use.
  BenchHost host_;
  std::unique_ptr<SwapFile> swap_file_;
  std::unique_ptr<SystemUnderTest> lunar_, swap_;
};

std::vector<std::string> FaultBench::child_arguments(const std::string& system) const {
  return {"--system",    system,
          "--data",      fmt::format("{}", options_.data_bytes),
          "--dram",      fmt::format("{}", options_.dram_bytes),
          "--limit",     fmt::format("{}", limit_bytes_),
          "--disk-stat", host_.disk_stat,
          "--seed",      fmt::format("{}", options_.seed)};
}

void FaultBench::start_lunar() {
  std::vector<std::string> arguments = child_arguments("lunar");
  std::string lun = options_.lun;
  std::unique_ptr<RecordedFile> file;  // its name is removed below, when the child has opened it
  struct stat info{};
  if (stat(lun.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    file = make_lun_file(host_, "lunar", lun_bytes_, progress_);
    lun = file->path();
  }
  arguments.insert(arguments.end(), {"--lun", lun, "--lun-bytes", fmt::format("{}", lun_bytes_),
                                     "--options", options_.lunar_options});
  report_.attempt("lunar", [&] {
    auto lunar = std::make_unique<SystemUnderTest>(
        SystemUnderTest::Setup{"lunar", arguments, limit_bytes_, false, host_.cgroup},
        *host_.journal);
    // Lunar may open the LUN as late as for the first region, so the fill comes before the removal.
    progress_.say("filling: lunar");
    (void)lunar->order("fill 1", 600);
    lunar_ = std::move(lunar);
  });
}

void FaultBench::start_swap() {
  try {
    progress_.say(fmt::format("writing {} MiB of swap in {}", swap_bytes_ / kMiB, host_.directory));
    swap_file_ = std::make_unique<SwapFile>(
        SwapKind::kFile, fmt::format("{}/lunar-bench-{}.swap", host_.directory, getpid()),
        swap_bytes_, *host_.journal, check_interrupted);
    swap_ = std::make_unique<SystemUnderTest>(
        SystemUnderTest::Setup{"swap", child_arguments("swap"), limit_bytes_, true, host_.cgroup},
        *host_.journal);
    progress_.say("filling: swap");
    (void)swap_->order("fill 1", 600);
  } catch (const std::runtime_error& error) {
    swap_.reset();
    swap_file_.reset();
    report_.skipped["swap"] = error.what();
  }
}

RunResult FaultBench::measure_run(SystemUnderTest& who, const std::string& workload,
                                  unsigned threads, double seconds) {
  progress_.say(
      fmt::format("{} {} x{}: {} ...", progress_.count(), workload, threads, who.system()));
  const bool fill = workload == "fill";
  const double patience = 120 + 10 * seconds;
  const RunResult result =
      fill ? who.order(fmt::format("fill {}", threads), 900)
           : who.order(fmt::format("run {} {} {} {} {} {}", workload, threads, seconds,
                                   0.1 * seconds, options_.write_percent, options_.seed + ++runs_),
                       patience);
  report_.check(fmt::format("{} {} x{}", who.system(), workload, threads), result);
  return result;
}

void FaultBench::run_workload(const std::string& workload, unsigned threads) {
  std::vector<RunResult> lunar_runs, swap_runs;
  const double trial = options_.seconds / 2;
  int page_cluster = -1;
  if (workload != "fill") {  // a fill reads nothing, so page-cluster and a warm-up do not matter
    if (lunar_) (void)measure_run(*lunar_, workload, threads, swap_ ? 2 * trial : trial);
    // This is also the warm-up.
    if (swap_)
      (void)swap_file_->at_better_page_cluster(
          [&] { return measure_run(*swap_, workload, threads, trial); }, &page_cluster);
  }
  for (unsigned round = 0; round < options_.rounds; ++round) {
    if (lunar_) lunar_runs.push_back(measure_run(*lunar_, workload, threads, options_.seconds));
    if (swap_) swap_runs.push_back(measure_run(*swap_, workload, threads, options_.seconds));
  }
  BenchRow row;
  row.workload = workload;
  row.threads = threads;
  row.system = "lunar";
  report_.add(row, lunar_runs);
  row.system = "swap";
  row.page_cluster = page_cluster;
  report_.add(row, swap_runs);
}

BenchReport FaultBench::run() {
  host_ = check_bench_host(options_.lun, limit_bytes_ * options_.systems.size());
  report_.skipped = host_.skipped;
  report_.skip_unasked(options_.systems, {"lunar", "swap"});
  if (report_.wants(options_.systems, "lunar")) start_lunar();
  if (report_.wants(options_.systems, "swap")) start_swap();
  const auto backends = static_cast<unsigned>((lunar_ ? 1 : 0) + (swap_ ? 1 : 0));
  for (const std::string& workload : options_.workloads) {
    const unsigned warm = workload == "fill" ? 0 : (lunar_ ? 1 : 0) + (swap_ ? 2 : 0);
    progress_.total +=
        static_cast<unsigned>(options_.threads.size()) * (backends * options_.rounds + warm);
  }
  // Fills come first, because the last fill makes the data of the other workloads.
  std::vector<std::string> workloads = options_.workloads;
  std::stable_partition(workloads.begin(), workloads.end(),
                        [](const std::string& name) { return name == "fill"; });
  for (const std::string& workload : workloads)
    for (const unsigned threads : options_.threads) run_workload(workload, threads);
  for (SystemUnderTest* who : {lunar_.get(), swap_.get()}) {
    if (who == nullptr) continue;
    progress_.say(fmt::format("verifying every page: {}", who->system()));
    report_.check(who->system() + " at the end", who->order("verify", 900));
    if (host_.cgroup) report_.peak_bytes[who->system()] = static_cast<double>(who->peak_bytes());
  }
  progress_.clear();
  for (const BenchRow& ours : report_.rows) {
    const BenchRow* theirs =
        ours.system == "lunar" ? report_.find("swap", ours.workload, ours.threads) : nullptr;
    if (theirs != nullptr)
      report_.compare("swap", fmt::format("{}_t{}_", ours.workload, ours.threads), ours, *theirs);
    // Prefetch is also compared with a program that does not prefetch.
    theirs = ours.system == "lunar" ? report_.find("swap", "uniform", ours.threads) : nullptr;
    if (theirs != nullptr && ours.workload == "prefetch")
      report_.compare("swap", fmt::format("prefetch_t{}_vs_uniform_", ours.threads), ours, *theirs);
  }
  return std::move(report_);
}

void parse(Flags& flags, FaultOptions& options, int argc, char** argv) {
  options.systems = {"lunar", "swap"};
  MemoryFlags memory(flags, options, {"512m", "128m", "24m"});
  flags.add("--threads", options.threads, "thread counts, as 1,16").list().range(1, 1024);
  add_choice(flags, "--workloads", options.workloads, std::vector<std::string>(options.workloads),
             "how threads touch pages");
  flags.add("--writes", options.write_percent, "percentage of touches that write").range(0, 100);
  const BenchFlags common(flags, options,
                          "directory for LUN and swap file, or Lunar's LUN: file, device, URI",
                          "a rough answer within a minute");
  flags.parse(argc, argv);
  common.settle(0.5, 2);
  memory.settle();
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  options.data_bytes = options.data_bytes / page * page;
}

}  // namespace

int fault_bench_main(int argc, char** argv) {
  Flags flags(
      "page faults: Lunar against kernel swap on the same disk, under the same memory limit",
      "lunar bench fault", true);
  FaultOptions options;
  return run_bench(
      flags, options, [&] { parse(flags, options, argc, argv); },
      [&] { return FaultBench(options).run(); });
}

}  // namespace lunar::tools
