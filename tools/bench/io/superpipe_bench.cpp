// SPDX-License-Identifier: Apache-2.0
// `lunar bench superpipe`: the cost of random 4 KiB block I/O through a superpipe context and
// through the block library, compared with a program's alternatives, on one file or block device.
//
// The systems take turns A B A B. Each read of Lunar's systems is compared with the last write; fio
// runs the others. A run whose disk did not move the bytes that the work needs fails the bench. CPU
// time is the machine's (tools/support/procfs.h).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "tools/bench/bench_host.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/benches.h"
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/io/io_worker.h"
#include "tools/bench/progress.h"
#include "tools/support/flags.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {

const std::vector<std::string> kSystems{"lunar", "cblk", "fio", "libaio", "legacy"};

struct IoWorkload {
  const char* name;
  unsigned read_percent;
};
constexpr IoWorkload kWorkloads[] = {{"read", 100}, {"mixed", 70}, {"write", 0}};

struct IoOptions : BenchOptions {
  uint64_t size_bytes = 1 << 30;
  std::vector<unsigned> depths{1, 16, 128};
  std::vector<std::string> workloads{"read", "mixed", "write"};
  unsigned threads = 16;  // of legacy
};

constexpr const char* kFooter =
    "lunar: a superpipe context; cblk: libcflsh_block (cblk_read and cblk_write at depth 1, "
    "cblk_aread, cblk_awrite and cblk_aresult at others). The bench checks each read of these. By "
    "fio: fio, its io_uring engine; libaio, Linux AIO; legacy, --threads with one blocking pread "
    "or pwrite each. All with O_DIRECT. libaio and legacy run at the greatest depth. At depth 1 "
    "lunar and cblk spin for a moment before they sleep, fio sleeps at once.\n"
    "kop/s per CPU: thousand operations per second of CPU time that was not idle, machine-wide.\n"
    "Ratios: lunar and cblk by the others, WORKLOAD_qdDEPTH_; legacy by threads, "
    "WORKLOAD_tTHREADS_.";

// One row: a system at a depth on a workload.
struct Backend {
  std::string system;
  const IoWorkload* workload;
  unsigned threads, depth;
};

class SuperpipeBench {
 public:
  explicit SuperpipeBench(const IoOptions& options);
  BenchReport run();

 private:
  bool wants(const std::string& system) const { return report_.wants(options_.systems, system); }
  IoOrder order_of(const Backend& backend) const;
  FioTarget target() const {
    return {backing_->path(), backing_->disk_stat(), backing_->path_offset(), backing_->bytes()};
  }
  void fill();
  RunResult measure_run(const Backend& backend);
  void measure(const std::vector<Backend>& backends);
  void compare();

  IoOptions options_;
  BenchReport report_;
  BenchHost host_;
  std::string fio_;
  Progress progress_;
  std::unique_ptr<BenchBacking> backing_;
  bool stamped_ = false;  // false: fio has overwritten the stamps
  uint64_t runs_ = 0;
};

SuperpipeBench::SuperpipeBench(const IoOptions& options)
    : options_(options), fio_(find_in_path("fio")) {
  host_ = check_bench_host(options_.lun, 64 << 20);
  std::error_code error;
  const auto space = std::filesystem::space(host_.directory, error);
  if (std::filesystem::is_directory(options_.lun, error) &&
      space.available < options_.size_bytes + (64 << 20))
    throw std::runtime_error(
        fmt::format("{} has {} MiB free, {} are needed: use a smaller --size, or another --lun",
                    host_.directory, space.available >> 20, (options_.size_bytes >> 20) + 64));
  backing_ = std::make_unique<BenchBacking>(options_.lun, options_.size_bytes, options_.seed,
                                            *host_.journal);
  report_.sizes["size_bytes"] = static_cast<double>(backing_->bytes());
  report_.notes["device"] = backing_->device().kind();
  auto& skipped = report_.skipped;
  if (backing_->disk_stat().empty())
    skipped["disk_bytes"] = "its block device is not known: bytes moved cannot be checked";
  report_.skip_unasked(options_.systems, kSystems);
  for (const std::string& system : kSystems) {
    if (system == "lunar" || !wants(system)) continue;
    if (backing_->path().empty())
      skipped[system] =
          fmt::format("only Lunar can open {}: give a file or block device", options_.lun);
    else if (system == "cblk")
      continue;
    else if (backing_->in_memory())
      skipped[system] =
          "not on mapped memory, where a copy is the I/O: give a file or block device";
    else if (fio_.empty())
      skipped[system] = "fio is not installed: apt-get install fio";
  }
}

void SuperpipeBench::fill() {
  progress_.say(
      fmt::format("writing {} MiB of {}", backing_->bytes() >> 20, backing_->device().name()));
  backing_->fill(check_interrupted);
  stamped_ = true;
}

IoOrder SuperpipeBench::order_of(const Backend& backend) const {
  const unsigned depth = backend.threads > 1 ? backend.threads : backend.depth;
  return {backend.system,   backend.workload->read_percent, depth,        batch_of(depth),
          options_.seconds, 0.1 * options_.seconds,         options_.seed};
}

RunResult SuperpipeBench::measure_run(const Backend& backend) {
  IoOrder order = order_of(backend);
  order.seed += ++runs_;
  const bool ours = backend.system == "lunar" || backend.system == "cblk";
  if (ours && !stamped_) fill();
  const std::string what = fmt::format("{} {} qd{} x{}", backend.system, backend.workload->name,
                                       backend.depth, backend.threads);
  progress_.say(fmt::format("{} {} ...", progress_.count(), what));
  if (!ours && backend.workload->read_percent < 100) stamped_ = false;
  const RunResult result =
      ours ? measure_io_run(*backing_, order) : measure_fio_run(fio_, target(), order);
  report_.check(what, result);
  return result;
}

void SuperpipeBench::measure(const std::vector<Backend>& backends) {
  for (unsigned round = 0; round < options_.rounds; ++round) {
    for (const Backend& one : backends) {
      if (report_.skipped.count(one.system)) continue;
      BenchRow row;
      row.system = one.system;
      row.workload = one.workload->name;
      row.threads = one.threads;
      row.depth = one.depth;
      report_.attempt(one.system, [&] { report_.add(row, {measure_run(one)}); });
      if (one.system != "lunar" && one.system != "cblk")
        report_.notes[one.system] =
            fmt::format("{}", fmt::join(fio_command(fio_, target(), order_of(one)), " "));
    }
  }
}

// Rows of the same depth are compared; blocking threads are compared with the greatest depth.
void SuperpipeBench::compare() {
  for (const BenchRow& theirs : report_.rows) {
    if (theirs.system == "lunar" || theirs.system == "cblk") continue;
    const bool blocking = theirs.system == "legacy";
    for (const BenchRow& ours : report_.rows) {
      // The reference for Lunar's ratio to threads.
      const bool by_fio = ours.system == "fio" && blocking;
      if ((ours.system != "lunar" && ours.system != "cblk" && !by_fio) ||
          ours.workload != theirs.workload)
        continue;
      if (ours.depth != (blocking ? options_.depths.back() : theirs.depth)) continue;
      report_.compare(theirs.system,
                      fmt::format("{}_{}{}_{}", theirs.workload, blocking ? "t" : "qd",
                                  blocking ? theirs.threads : theirs.depth,
                                  ours.system == "lunar" ? "" : ours.system + "_"),
                      ours, theirs);
    }
  }
}

BenchReport SuperpipeBench::run() {
  fill();
  std::vector<std::vector<Backend>> groups;
  for (const IoWorkload& workload : kWorkloads) {
    if (std::find(options_.workloads.begin(), options_.workloads.end(), workload.name) ==
        options_.workloads.end())
      continue;
    for (const unsigned depth : options_.depths) {
      std::vector<Backend>& group = groups.emplace_back();
      const bool deepest = depth == options_.depths.back(), reads = workload.read_percent == 100;
      for (const std::string& system : kSystems) {
        const bool now =
            system == "lunar" || deepest || (reads && (system == "cblk" || system == "fio"));
        if (!now || !wants(system)) continue;
        group.push_back({system, &workload, system == "legacy" ? options_.threads : 1,
                         system == "legacy" ? 1 : depth});
      }
      progress_.total += static_cast<unsigned>(group.size()) * options_.rounds;
    }
  }
  for (const auto& group : groups) measure(group);
  compare();
  if (stamped_) {
    progress_.say("verifying every block");
    if (const uint64_t wrong = backing_->verify(check_interrupted); wrong > 0)
      report_.failures.push_back(
          fmt::format("at the end: {} blocks do not hold what was last written", wrong));
  }
  progress_.clear();
  return std::move(report_);
}

void parse(Flags& flags, IoOptions& options, int argc, char** argv) {
  std::string size;
  options.seconds = 1;
  options.rounds = 5;
  options.systems = kSystems;
  flags.add("--size", size, "size of the data (default 1g; 256m with --quick)");
  flags.add("--depths", options.depths, "operations in flight").list().range(1, 4096);
  flags.add("--threads", options.threads, "threads of legacy").range(1, 1024);
  add_choice(flags, "--workloads", options.workloads, std::vector<std::string>(options.workloads),
             "mixed: 70% reads");
  const BenchFlags common(
      flags, options, "directory for the file, or file, block device, URI, which is overwritten",
      "a rough answer within a minute");
  flags.footer(kFooter);
  flags.parse(argc, argv);
  common.settle(0.6, 1);
  options.size_bytes = size_option("--size", !size.empty() ? size : options.quick ? "256m" : "1g");
  if (options.size_bytes < 16 << 20) throw FlagsError("--size", "at least 16m");
  std::sort(options.depths.begin(), options.depths.end());
  options.depths.erase(std::unique(options.depths.begin(), options.depths.end()),
                       options.depths.end());
}

}  // namespace

int superpipe_bench_main(int argc, char** argv) {
  Flags flags(
      "random block I/O through the superpipe and the block library, against fio, Linux AIO and "
      "threads",
      "lunar bench superpipe", true);
  IoOptions options;
  return run_bench(
      flags, options, [&] { parse(flags, options, argc, argv); },
      [&] {
        for (const char* name :
             {"CFLSH_BLK_CACHE_SIZE", "CFLSH_BLK_MAX_XFER", "CFLSH_BLK_SIZE", "CFLSH_BLK_TIMEOUT"})
          unsetenv(name);
        return SuperpipeBench(options).run();
      });
}

}  // namespace lunar::tools
