// SPDX-License-Identifier: Apache-2.0
// The command line of the benches of block I/O: the options that all have, and what follows from them.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/bench_main.h"
#include "tools/bench/io/io_report.h"
#include "tools/bench/size_option.h"
#include "tools/support/flags.h"

namespace lunar::tools {

// Where they differ.
struct IoFlagRules {
  std::string size, depths, lun;  // help texts
  int depth_min;
  uint64_t size_min_mib;
  QuickDefaults quick;
};
constexpr const char* kIoPlaceHelp =
    "directory for the file (default /var/tmp), or file, block device, URI: it is written";

class IoFlags {
 public:
  IoFlags(CLI::App& app, IoOptions& options, IoFlagRules rules)
      : app_(app), options_(options), rules_(std::move(rules)) {
    size_given_ = app.add_option("--size", size_, rules_.size + " (default 1g; 256m with --quick)");
    app.add_option("--depths", options.depths, rules_.depths)
        ->delimiter(',')
        ->check(CLI::Range(rules_.depth_min, 4096));
  }
  // Those in `options` are what there is.
  void add_workloads(const std::string& help) {
    app_.add_option("--workloads", options_.workloads, help)
        ->delimiter(',')
        ->check(CLI::IsMember(std::vector<std::string>(options_.workloads)));
  }
  // After all other options were added. Throws CLI::ParseError.
  void parse(int argc, char** argv) {
    const CommonFlags common(app_, options_, rules_.lun, "a rough answer within a minute");
    app_.parse(argc, argv);
    common.settle(rules_.quick);
    options_.size_bytes = size_option("--size", size_given_->count() != 0 ? size_ : options_.quick ? "256m" : "1g");
    if (options_.size_bytes < rules_.size_min_mib << 20)
      throw CLI::ValidationError("--size", "at least " + std::to_string(rules_.size_min_mib) + "m");
    std::sort(options_.depths.begin(), options_.depths.end());
    options_.depths.erase(std::unique(options_.depths.begin(), options_.depths.end()), options_.depths.end());
  }

 private:
  CLI::App& app_;
  IoOptions& options_;
  IoFlagRules rules_;
  std::string size_;
  CLI::Option* size_given_;
};

// The rest of such a bench: parse(app, options, argc, argv), then measure(options), which gives the report.
template <class Options, class Parse, class Measure>
int io_bench_main(CLI::App& app, Options options, int argc, char** argv, const Parse& parse, const Measure& measure) {
  try {
    parse(app, options, argc, argv);
  } catch (const CLI::ParseError& error) { return refuse_flags(app, error); }
  const std::string name = options.bench;
  const bool json = options.json;
  return bench_main(name.c_str(), json, [&] { return measure(std::move(options)); });
}

}  // namespace lunar::tools
