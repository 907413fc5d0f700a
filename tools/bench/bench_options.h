// SPDX-License-Identifier: Apache-2.0
// The command line that all benches share, and their frame: options, lock, report, exit code.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/bench/report.h"

namespace lunar::tools {

struct BenchOptions {
  double seconds = 5;
  unsigned rounds = 3;
  std::string lun = "/var/tmp";
  uint64_t seed = 1;
  bool json = false, quick = false;
  std::vector<std::string> systems;
  // Of the benches with a DRAM budget.
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  std::string lunar_options;  // of Lunar's systems, NAME=VALUE,...
};

// Adds --seconds (unless it is 0), --rounds, --lun, --seed, --systems (any of those in `options`), --quick and --json
// to `app`, which shows the defaults that the options have by then. After the parse call settle().
class BenchFlags {
 public:
  BenchFlags(CLI::App& app, BenchOptions& options, const std::string& lun_help, const std::string& quick_help);
  // What --quick sets where the user gave nothing.
  void settle(double quick_seconds, unsigned quick_rounds) const;

 private:
  BenchOptions& options_;
  CLI::Option *seconds_ = nullptr, *rounds_;
};

// Adds --dram, --data, --allowance and --options.
class MemoryFlags {
 public:
  struct Defaults {
    const char *dram, *quick_dram, *allowance;
    uint64_t dram_min_mib = 16;
  };
  MemoryFlags(CLI::App& app, BenchOptions& options, const Defaults& defaults);
  // Data is 4 times --dram where it is not given, or so many times with --quick. Throws CLI::ValidationError.
  void settle(unsigned quick_times = 4);

 private:
  BenchOptions& options_;
  Defaults defaults_;
  std::string dram_, data_, allowance_;
};

// A list, comma-separated, of any of `known`.
CLI::Option* add_choice(CLI::App& app, const char* name, std::vector<std::string>& values,
                        const std::vector<std::string>& known, const std::string& help);

// A whole bench: `parse` (which throws CLI::ParseError), then `measure` under the BenchLock, then the report on
// standard output. 0: measured; 1: failed (and said why); 2: wrong use; 130: interrupted.
int run_bench(CLI::App& app, const BenchOptions& options, const std::function<void()>& parse,
              const std::function<BenchReport()>& measure);

}  // namespace lunar::tools
