// SPDX-License-Identifier: Apache-2.0
// See bench_options.h.
#include "tools/bench/bench_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>

#include "tools/bench/setup_journal.h"
#include "tools/support/flags.h"
#include "tools/support/process.h"

namespace lunar::tools {

Flag add_choice(Flags& flags, const char* name, std::vector<std::string>& values,
                const std::vector<std::string>& known, const std::string& help) {
  return flags.add(name, values, fmt::format("{}: any of {}", help, fmt::join(known, ",")))
      .list()
      .one_of(known);
}

static std::optional<Flag> add_seconds(Flags& flags, BenchOptions& options) {
  if (options.seconds <= 0) return std::nullopt;
  return flags.add("--seconds", options.seconds, "length of one measurement").range(0.05, 3600.0);
}

BenchFlags::BenchFlags(Flags& flags, BenchOptions& options, const std::string& lun_help,
                       const std::string& quick_help)
    : options_(options),
      seconds_(add_seconds(flags, options)),
      rounds_(
          flags.add("--rounds", options.rounds, "runs of each system; the report has the medians")
              .range(1, 100)) {
  flags.add("--lun", options.lun, lun_help);
  flags.add("--seed", options.seed, "seed of data and operations");
  if (!options.systems.empty())
    add_choice(flags, "--systems", options.systems, std::vector<std::string>(options.systems),
               "systems to compare");
  flags.add("--quick", options.quick, quick_help);
  flags.add("--json", options.json, "print one JSON object instead of the table");
}

void BenchFlags::settle(double quick_seconds, unsigned quick_rounds) const {
  if (!options_.quick) return;
  if (seconds_ && !seconds_->given()) options_.seconds = quick_seconds;
  if (!rounds_.given()) options_.rounds = quick_rounds;
}

MemoryFlags::MemoryFlags(Flags& flags, BenchOptions& options, const Defaults& defaults)
    : options_(options), defaults_(defaults), allowance_(defaults.allowance) {
  flags.add("--dram", dram_,
            fmt::format("DRAM budget of each system (default {}; {} with --quick)", defaults.dram,
                        defaults.quick_dram));
  flags.add("--data", data_, "bytes of data (default: 4 times --dram)");
  flags.add("--allowance", allowance_,
            "memory limit of each system above --dram: code, stacks, buffers, page tables");
}

void MemoryFlags::settle(unsigned quick_times) {
  const std::string dram = !dram_.empty()   ? dram_
                           : options_.quick ? defaults_.quick_dram
                                            : defaults_.dram;
  options_.dram_bytes = size_option("--dram", dram);
  options_.data_bytes = data_.empty() ? (options_.quick ? quick_times : 4) * options_.dram_bytes
                                      : size_option("--data", data_);
  options_.allowance_bytes = size_option("--allowance", allowance_);
  if (options_.dram_bytes < defaults_.dram_min_mib << 20)
    throw FlagsError("--dram", fmt::format("at least {}m", defaults_.dram_min_mib));
  if (options_.data_bytes < options_.dram_bytes) throw FlagsError("--data", "at least --dram");
}

int run_bench(Flags& flags, const BenchOptions& options, const std::function<void()>& parse,
              const std::function<BenchReport()>& measure) {
  const std::string command = flags.name();
  try {
    parse();
  } catch (const FlagsError& error) { return flags.refuse(error); }
  catch_interrupts();
  try {
    BenchReport report = [&] {
      const BenchLock lock;
      return measure();
    }();
    report.bench = command.substr(command.rfind(' ') + 1);
    report.options = flags.values();
    report.sizes["rounds"] = options.rounds;
    report.sizes["seconds"] = options.seconds;
    if (options.dram_bytes > 0) {
      report.sizes["dram_bytes"] = static_cast<double>(options.dram_bytes);
      report.sizes["data_bytes"] = static_cast<double>(options.data_bytes);
      report.sizes["memory_limit_bytes"] =
          static_cast<double>(options.dram_bytes + options.allowance_bytes);
    }
    fmt::print("{}{}", options.json ? report_json(report) : report_table(report),
               options.json ? "\n" : "");
    if (options.json)
      for (const std::string& failure : report.failures)
        fmt::print(stderr, "{}: {}\n", command, failure);
    return report.failures.empty() ? 0 : 1;
  } catch (const Interrupted&) {
    fmt::print(stderr, "{}: interrupted; its files and settings are undone\n", command);
    return 130;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", command, error.what());
    return 1;
  }
}

}  // namespace lunar::tools
