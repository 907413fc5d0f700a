// SPDX-License-Identifier: Apache-2.0
// `lunar bench stripe`: what several files on one disk give as one device, next to what they give each for itself.
//
//   one      a superpipe context on one file, all of the depth
//   members  a file, a context and a thread for each member, an equal share of the depth: the sum of what they do
//   stripe   one context and one thread on `stripe:A;B;...`, all of the depth
//   raid0    the block library's RAID 0 of plain files (cblk_cg_aread, cblk_cg_aresult), one thread, all of the depth
//
// Random reads of 4 KiB, and large reads that block (2 MiB by one thread; of members a share of it each; of raid0 by
// cblk_cg_read). They take turns A B A B on files of their own; medians are quoted, each read is checked.
// Threading: one thread; a run's workers live for that run. May not be used by runtime/ (it allocates).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "tools/bench/bench_host.h"
#include "tools/bench/io/io_bench.h"
#include "tools/bench/io/io_flags.h"
#include "tools/bench/io/io_report.h"
#include "tools/bench/io/io_worker.h"
#include "tools/bench/io/raid0_group.h"
#include "tools/bench/progress.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {

constexpr size_t kSmallBytes = 4096, kLargeBytes = 2 << 20;

struct StripeOptions : IoOptions {
  unsigned members = 4;
};

void parse(CLI::App& app, StripeOptions& options, int argc, char** argv) {
  options.bench = "stripe";
  options.seconds = 1;
  options.rounds = 7;
  options.depths = {16, 128};
  IoFlags flags(app, options,
                {"data of each of the four systems",
                 "reads of 4 KiB in flight, of all members together (default 16,128)",
                 "directory for the files (default /var/tmp)",
                 8,
                 64,
                 {0.5, 2}});
  app.add_option("--members", options.members, "files of a stripe (default 4)")->check(CLI::Range(2, 8));
  app.footer(
      "one: a superpipe context on one file; members: the sum of a context and a thread for each of --members files,\n"
      "each with an equal share of the depth; stripe: one context on stripe:A;B;...; raid0: the block library's RAID "
      "0.\n"
      "read4k: random reads of 4 KiB; read2m: reads of 2 MiB, one at a time (each of members reads its share).\n"
      "Ratios in the JSON: \"members\" and \"one\" have WORKLOAD_qdDEPTH_stripe_QUANTITY and ..._raid0_QUANTITY.");
  flags.parse(argc, argv);
  std::error_code error;
  if (!std::filesystem::is_directory(options.lun, error))
    throw CLI::ValidationError("--lun", options.lun + " is no directory: the files are made there");
}

// What takes turns. Each has its own files, as a scratch LUN and a RAID 0 lay their data out differently.
class Layouts {
 public:
  Layouts(const StripeOptions& options, const BenchHost& host)
      : options_(options), directory_(host.directory), journal_(*host.journal) {
    const uint64_t share = options.size_bytes / options.members;
    one_ = std::make_unique<BenchBacking>(file(options.size_bytes), options.size_bytes, options.seed, journal_);
    for (unsigned i = 0; i < options.members; ++i)
      members_.push_back(std::make_unique<BenchBacking>(file(share), share, options.seed + i, journal_));
    const std::vector<std::string> parts = files(share);
    stripe_ = std::make_unique<BenchBacking>(fmt::format("stripe:{}", fmt::join(parts, ";")), share * options.members,
                                             options.seed, journal_);
    const unsigned requests = *std::max_element(options.depths.begin(), options.depths.end());
    raid0_ = std::make_unique<Raid0Group>(files(share), share * options.members, options.seed, journal_, requests,
                                          one_->disk_stat());
  }

  void fill(size_t unit_bytes) {
    one_->fill(unit_bytes, check_interrupted);
    for (const auto& member : members_)
      member->fill(unit_bytes == kLargeBytes ? kLargeBytes / options_.members : unit_bytes, check_interrupted);
    stripe_->fill(unit_bytes, check_interrupted);
    raid0_->fill(unit_bytes, check_interrupted);
  }

  IoRun measure(const std::string& system, IoOrder order) const {
    if (system == "members") return measure_members(order);
    order.system = system == "raid0" ? "raid0" : "lunar";
    return measure_io_run(system == "raid0" ? *raid0_ : system == "one" ? *one_ : *stripe_, order);
  }

 private:
  std::string file(uint64_t bytes) {
    made_.push_back(std::make_unique<BenchFile>(
        fmt::format("{}/lunar-bench-{}-{}.lun", directory_, getpid(), made_.size()), bytes, journal_));
    return made_.back()->path();
  }
  std::vector<std::string> files(uint64_t bytes) {
    std::vector<std::string> paths;
    for (unsigned i = 0; i < options_.members; ++i) paths.push_back(file(bytes));
    return paths;
  }

  // All at once. A share of a large read by each member is one read.
  IoRun measure_members(IoOrder order) const {
    const bool large = order.depth == 1;
    order.system = "lunar";
    order.depth = large ? 1 : order.depth / options_.members;
    order.batch = batch_of(order.depth);
    std::vector<IoRun> runs(members_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members_.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          IoOrder own = order;
          own.seed = order.seed * members_.size() + i;
          runs[i] = measure_io_run(*members_[i], own);
        } catch (const std::exception& error) { runs[i].error = error.what(); }
      });
    for (std::thread& thread : threads) thread.join();
    check_interrupted();
    IoRun sum = runs[0];  // CPU and disk are the machine's
    double ns = 0;
    sum.ops = sum.reads = sum.mismatches = 0;
    for (const IoRun& run : runs) {
      if (!run.error.empty()) throw std::runtime_error(run.error);
      sum.ops += large ? run.ops / static_cast<double>(runs.size()) : run.ops;
      sum.reads += run.reads;
      sum.mismatches += run.mismatches;
      ns += run.mean_ns / static_cast<double>(runs.size());
    }
    sum.mean_ns = ns;
    finish_io_run(&sum);
    return sum;
  }

  StripeOptions options_;
  std::string directory_;
  SetupJournal& journal_;
  std::vector<std::unique_ptr<BenchFile>> made_;
  std::unique_ptr<BenchBacking> one_, stripe_;
  std::vector<std::unique_ptr<BenchBacking>> members_;
  std::unique_ptr<Raid0Group> raid0_;
};

class StripeBench {
 public:
  explicit StripeBench(StripeOptions options) : options_(std::move(options)) {}

  IoReport run() {
    const BenchHost host = check_bench_host(options_.lun, 64 << 20);
    report_.options = options_;
    report_.device_kind = "file";
    progress_.total = static_cast<unsigned>((options_.depths.size() + 1) * kSystems.size()) * options_.rounds;
    progress_.say("making the files");
    Layouts layouts(options_, host);
    layouts.fill(kSmallBytes);
    for (const unsigned depth : options_.depths) measure(layouts, "read4k", depth, kSmallBytes);
    layouts.fill(kLargeBytes);
    measure(layouts, "read2m", 1, kLargeBytes);
    progress_.clear();
    return std::move(report_);
  }

 private:
  const std::vector<std::string> kSystems{"one", "members", "stripe", "raid0"};

  void measure(const Layouts& layouts, const std::string& workload, unsigned depth, size_t unit_bytes) {
    std::vector<std::vector<IoRun>> runs(kSystems.size());
    for (unsigned round = 0; round < options_.rounds; ++round)
      for (size_t i = 0; i < kSystems.size(); ++i) {
        check_interrupted();
        progress_.say(fmt::format("{} {} qd{}: {} ...", progress_.count(), workload, depth, kSystems[i]));
        IoOrder order;
        order.depth = depth;
        order.batch = batch_of(depth);
        order.seconds = options_.seconds;
        order.warm_seconds = 0.1 * options_.seconds;
        order.seed = options_.seed + ++count_;
        runs[i].push_back(layouts.measure(kSystems[i], order));
        for (const std::string& failure : run_failures(runs[i].back()))
          report_.failures.push_back(
              fmt::format("{} {} qd{}: {} {}", kSystems[i], workload, depth, failure, runs[i].back().error));
      }
    for (size_t i = 0; i < kSystems.size(); ++i) {
      IoResult result = io_result(kSystems[i], workload, runs[i]);
      result.threads = kSystems[i] == "members" ? options_.members : 1;
      result.depth = depth;
      result.unit_bytes = unit_bytes;
      report_.results.push_back(result);
    }
  }

  StripeOptions options_;
  IoReport report_;
  Progress progress_;
  uint64_t count_ = 0;
};

}  // namespace

int stripe_bench_main(int argc, char** argv) {
  CLI::App app{
      "several files of one disk as one device (stripe:, RAID 0 of the block library), against each file separately",
      "lunar bench stripe"};
  return io_bench_main(app, StripeOptions{}, argc, argv, parse,
                       [](StripeOptions options) { return StripeBench(std::move(options)).run(); });
}

}  // namespace lunar::tools
