// SPDX-License-Identifier: Apache-2.0
// The common command line of the benches, and their frame: options, lock, report, exit code.
// Threading: one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/report.h"
#include "tools/support/flags.h"

namespace lunar::tools {

struct BenchOptions {
  double seconds = 5;
  unsigned rounds = 3;
  std::string lun = "/var/tmp";
  uint64_t seed = 1;
  bool json = false, quick = false;
  std::vector<std::string> systems;
  // For benches with a DRAM budget.
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  std::string lunar_options;  // for Lunar's systems, NAME=VALUE,...
};

// Adds --seconds (unless it is 0), --rounds, --lun, --seed, --systems (if `options` has some),
// --quick and --json. The present values in `options` are the defaults. Call settle() after the
// parse.
class BenchFlags {
 public:
  BenchFlags(Flags& flags, BenchOptions& options, const std::string& lun_help,
             const std::string& quick_help);
  // Applies --quick to the values that the user did not give.
  void settle(double quick_seconds, unsigned quick_rounds) const;

 private:
  BenchOptions& options_;
  std::optional<Flag> seconds_;
  Flag rounds_;
};

// Adds --dram, --data and --allowance.
class MemoryFlags {
 public:
  struct Defaults {
    const char *dram, *quick_dram, *allowance;
    uint64_t dram_min_mib = 16;
  };
  MemoryFlags(Flags& flags, BenchOptions& options, const Defaults& defaults);
  // Without --data, the data is 4 times --dram, or quick_times with --quick. Throws FlagsError.
  void settle(unsigned quick_times = 4);

 private:
  BenchOptions& options_;
  Defaults defaults_;
  std::string dram_, data_, allowance_;
};

// Adds a comma-separated list of any of `known`.
Flag add_choice(Flags& flags, const char* name, std::vector<std::string>& values,
                const std::vector<std::string>& known, const std::string& help);

// Runs a whole bench: `parse` (which throws FlagsError), then `measure` under the BenchLock, then
// the report on standard output. Returns the exit code (benches.h).
int run_bench(Flags& flags, const BenchOptions& options, const std::function<void()>& parse,
              const std::function<BenchReport()>& measure);

}  // namespace lunar::tools
