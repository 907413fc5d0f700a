// SPDX-License-Identifier: Apache-2.0
// The frame of every bench: the lock, the report on standard output, what went wrong on standard error, the exit code.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "tools/bench/gnuplot.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/process.h"

namespace lunar::tools {

// Runs `measure` (which returns a report with `failures`, printed by report_json and report_table) under the BenchLock.
// `after` sees the report when all is printed. 0: measured; 1: failed (and said why); 130: interrupted.
template <class Measure, class After>
int bench_main(const char* name, bool json, const Measure& measure, const After& after) {
  catch_interrupts();
  try {
    const auto report = [&] {
      const BenchLock lock;
      return measure();
    }();
    fmt::print("{}{}", json ? report_json(report) : report_table(report), json ? "\n" : "");
    if (json) {
      for (const std::string& failure : report.failures) fmt::print(stderr, "lunar: bench {}: {}\n", name, failure);
    }
    after(report);
    return report.failures.empty() ? 0 : 1;
  } catch (const Interrupted&) {
    fmt::print(stderr, "lunar: bench {}: interrupted; what was set up is removed\n", name);
    return 130;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lunar: bench {}: {}\n", name, error.what());
    return 1;
  }
}
template <class Measure>
int bench_main(const char* name, bool json, const Measure& measure) {
  return bench_main(name, json, measure, [](const auto&) {});
}

// The same for a bench that draws: Bench(options).run() gives the report, draw_plots(report, directory) the files'
// names.
template <class Bench, class Options>
int plotting_bench_main(const char* name, Options options) {
  const bool json = options.json;
  const std::string plot = options.plot;
  const auto measure = [&] {
    if (const std::string why = plot.empty() ? "" : plot_obstacle(plot); !why.empty()) throw std::runtime_error(why);
    return Bench(std::move(options)).run();
  };
  return bench_main(name, json, measure, [&](const auto& report) {
    if (plot.empty()) return;
    for (const std::string& file : draw_plots(report, plot)) fmt::print(stderr, "lunar: bench {}: {}\n", name, file);
  });
}

}  // namespace lunar::tools
