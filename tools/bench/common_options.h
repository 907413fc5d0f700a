// SPDX-License-Identifier: Apache-2.0
// The options that every bench has.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace lunar::tools {

struct CommonOptions {
  double seconds = 5;
  unsigned rounds = 3;
  std::string lun = "/var/tmp";
  uint64_t seed = 1;
  bool json = false, quick = false;
};

// What --quick sets where the user gave nothing.
struct QuickDefaults {
  double seconds = 0.5;
  unsigned rounds = 2;
};

// Adds --seconds, --rounds, --lun, --seed, --quick and --json to `app`; call settle() after the parse.
class CommonFlags {
 public:
  CommonFlags(CLI::App& app, CommonOptions& options, const std::string& lun_help, const std::string& quick_help)
      : options_(options) {
    seconds_ = app.add_option("--seconds", options.seconds, fmt_default("length of one measurement", options.seconds))
                   ->check(CLI::Range(0.05, 3600.0));
    rounds_ = app.add_option("--rounds", options.rounds,
                             fmt_default("runs of each backend; medians are quoted", options.rounds))
                  ->check(CLI::Range(1, 100));
    app.add_option("--lun", options.lun, lun_help);
    app.add_option("--seed", options.seed, "of data and operations (default 1)");
    app.add_flag("--quick", options.quick, quick_help);
    app.add_flag("--json", options.json, "print one JSON object instead of the table");
  }
  void settle(const QuickDefaults& quick) const {
    if (!options_.quick) return;
    if (seconds_->count() == 0) options_.seconds = quick.seconds;
    if (rounds_->count() == 0) options_.rounds = quick.rounds;
  }

 private:
  static std::string fmt_default(const std::string& text, double value) {
    return text + " (default " + std::to_string(static_cast<int>(value)) + ")";
  }
  CommonOptions& options_;
  CLI::Option* seconds_;
  CLI::Option* rounds_;
};

}  // namespace lunar::tools
