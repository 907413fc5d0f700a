// SPDX-License-Identifier: Apache-2.0
// See rounds.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/rounds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "tools/bench/io/cblk_cost.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/io/io_worker.h"
#include "tools/bench/report_parts.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {
constexpr unsigned kNoisyFactor = 3;  // rounds where others disturb, as a multiple of those asked for
}

IoRounds::IoRounds(IoReport& report, size_t unit_bytes) : report_(report) {
  IoOptions& options = report_.options;
  host_ = check_bench_host(options.lun, 64 << 20);
  std::error_code error;
  const auto space = std::filesystem::space(host_.directory, error);
  if (std::filesystem::is_directory(options.lun, error) && space.available < options.size_bytes + (64 << 20)) {
    throw std::runtime_error(fmt::format("{} has {} MiB free, {} are needed: use a smaller --size, or another --lun",
                                         host_.directory, space.available >> 20, (options.size_bytes >> 20) + 64));
  }
  backing_ = std::make_unique<BenchBacking>(options.lun, options.size_bytes, options.seed, *host_.journal);
  options.size_bytes = backing_->bytes();
  report_.device_kind = backing_->device().kind();
  if (backing_->disk_stat().empty()) {
    report_.skipped["disk_bytes"] = "no block device of its own is known under it: bytes moved cannot be checked";
  }
  for (const std::string& system : options.systems) {
    if (system == "lunar" || system == "perio") continue;
    if (backing_->path().empty())
      report_.skipped[system] = fmt::format("{} is reached by Lunar alone: give a file or block device", options.lun);
    else if (backing_->in_memory() && system != "cblk")
      report_.skipped[system] = "not on mapped memory, where a copy is the I/O: give a file or block device";
  }
  fio_ = find_in_path("fio");
  if (fio_.empty() && wants("fio")) report_.skipped["fio"] = "not installed: apt-get install fio";
  refill(unit_bytes);
}

IoRounds::~IoRounds() = default;

bool IoRounds::wants(const std::string& system) const {
  const auto& systems = report_.options.systems;
  return report_.skipped.count(system) == 0 && std::find(systems.begin(), systems.end(), system) != systems.end();
}

void IoRounds::refill(size_t unit_bytes) {
  progress_.say(fmt::format("writing {} MiB of {}", backing_->bytes() >> 20, backing_->device().name()));
  backing_->fill(unit_bytes, check_interrupted);
  stamped_ = true;
}

IoOrder IoRounds::order_of(const IoBackend& backend) const {
  const IoOptions& options = report_.options;
  IoOrder order;
  order.system = backend.system;
  order.read_percent = backend.read_percent;
  order.depth = backend.threads > 1 ? backend.threads : backend.depth;
  order.batch = options.batch ? std::min(options.batch, order.depth) : batch_of(order.depth);
  order.seconds = options.seconds;
  order.warm_seconds = 0.1 * options.seconds;
  order.seed = options.seed;
  return order;
}

FioTarget IoRounds::fio_target() const {
  return {backing_->path(), backing_->disk_stat(), backing_->path_offset(), backing_->bytes(),
          backing_->stamps().unit_bytes()};
}

IoRun IoRounds::measure_run(const IoBackend& backend) {
  IoOrder order = order_of(backend);
  order.seed += ++runs_;
  const bool fio = backend.system == "fio";
  if (!fio && !stamped_) refill(backing_->stamps().unit_bytes());
  progress_.say(fmt::format("{} {} qd{} x{}: {} ...", progress_.count(), backend.workload, backend.depth,
                            backend.threads, backend.system));
  if (fio && backend.read_percent < 100) stamped_ = false;
  const IoRun result = fio ? measure_fio_run(fio_, fio_target(), order) : measure_io_run(*backing_, order);
  for (const std::string& failure : run_failures(result)) {
    report_.failures.push_back(fmt::format("{} {} qd{}: {}{}{}", backend.system, backend.workload, backend.depth,
                                           failure, result.error.empty() ? "" : ": ", result.error));
  }
  return result;
}

void IoRounds::measure(const std::vector<IoBackend>& backends) {
  const IoOptions& options = report_.options;
  std::vector<std::vector<IoRun>> runs(backends.size());
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  for (unsigned round = 0; round < kNoisyFactor * options.rounds; ++round) {
    if (round >= options.rounds) {
      const std::vector<size_t> best = quietest_rounds(runs, options.rounds);
      const bool disturbed = std::any_of(runs.begin(), runs.end(), [&](const std::vector<IoRun>& of_backend) {
        return std::any_of(best.begin(), best.end(),
                           [&](size_t i) { return i < of_backend.size() && noisy_run(of_backend[i], cpus); });
      });
      if (!disturbed) break;
      expect(static_cast<unsigned>(backends.size()));
    }
    for (size_t i = 0; i < backends.size(); ++i) {
      if (report_.skipped.count(backends[i].system)) continue;
      try {
        runs[i].push_back(measure_run(backends[i]));
      } catch (const std::runtime_error& error) {
        report_.skipped[backends[i].system] = error.what();
        report_.failures.push_back(fmt::format("{}: {}", backends[i].system, error.what()));
      }
    }
  }
  const std::vector<size_t> best = quietest_rounds(runs, options.rounds);
  for (size_t i = 0; i < backends.size(); ++i) {
    std::vector<IoRun> counted;
    for (const size_t one : best)
      if (one < runs[i].size()) counted.push_back(runs[i][one]);
    if (counted.empty()) continue;
    IoResult result = io_result(backends[i].system, backends[i].workload, counted);
    result.threads = backends[i].threads;
    result.depth = backends[i].depth;
    result.unit_bytes = backing_->stamps().unit_bytes();
    report_.results.push_back(result);
    if (backends[i].system != "fio") continue;
    report_.fio_commands.push_back(command_text(fio_command(fio_, fio_target(), order_of(backends[i]))));
  }
}

void IoRounds::measure_cblk() {
  if (!stamped_) refill(backing_->stamps().unit_bytes());
  progress_.say("what cblk_read adds to a read of the device");
  try {
    report_.cblk = measure_cblk_cost(*backing_, report_.options, check_interrupted);
  } catch (const std::runtime_error& error) { report_.failures.push_back(fmt::format("cblk_read: {}", error.what())); }
}

void IoRounds::verify() {
  if (stamped_) {
    progress_.say("verifying every block");
    if (const uint64_t wrong = backing_->verify(check_interrupted); wrong > 0) {
      report_.failures.push_back(fmt::format("at the end: {} blocks do not hold what was last written", wrong));
    }
  }
  progress_.clear();
}

}  // namespace lunar::tools
