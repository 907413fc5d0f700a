// SPDX-License-Identifier: Apache-2.0
// `lunar bench window`: what it is worth to register the I/O buffers with the device once, as one window (the article's
// "64-bit DMA": the whole of memory mapped once), rather than to have them pinned and mapped for each I/O.
//
//   lunar   a superpipe context with its buffers as the window        perio   the same context without
//
// Both do the same reads and writes of 4 and of 64 KiB, at depth 1 for latency and deep for throughput and CPU, and
// take turns A B A B; medians are quoted. Reads are checked, and the bytes the disk moved.
// Threading: one thread; a run's workers live for that run. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/io/io_bench.h"
#include "tools/bench/io/io_flags.h"
#include "tools/bench/io/rounds.h"

namespace lunar::tools {

namespace {

constexpr size_t kUnits[] = {4096, 65536};

void parse(CLI::App& app, IoOptions& options, int argc, char** argv) {
  options.bench = "window";
  options.seconds = 1;
  options.rounds = 5;
  options.depths = {1, 32};
  options.workloads = {"read", "write"};
  options.systems = {"lunar", "perio"};
  IoFlags flags(app, options,
                {"data to work on", "operations in flight (default 1,32)", kIoPlaceHelp, 1, 16, {0.5, 2}});
  flags.add_workloads("any of read,write (default: both)");
  app.footer(
      "lunar: a superpipe context whose buffers are its registered window; perio: the same context without a window.\n"
      "Ratios in the JSON (\"perio\") divide the value with the window by that without: WORKLOAD_qdDEPTH_QUANTITY, "
      "and\n"
      "window_ops and window_cpu (4 KiB reads, greatest depth), window_mean (4 KiB reads, least depth).");
  flags.parse(argc, argv);
}

IoReport measure(IoOptions options) {
  IoReport report;
  report.options = std::move(options);
  IoRounds rounds(report, kUnits[0]);
  const IoOptions& settled = report.options;
  rounds.expect(static_cast<unsigned>(2 * 2 * settled.workloads.size() * settled.depths.size()) * settled.rounds);
  for (const size_t unit : kUnits) {
    if (unit != kUnits[0]) {
      rounds.verify();
      rounds.refill(unit);
    }
    for (const IoWorkload& workload : kIoWorkloads) {
      if (std::find(settled.workloads.begin(), settled.workloads.end(), workload.name) == settled.workloads.end())
        continue;
      const std::string name = fmt::format("{}{}k", workload.name, unit / 1024);
      for (const unsigned depth : settled.depths) {
        rounds.measure(
            {{"lunar", name, workload.read_percent, 1, depth}, {"perio", name, workload.read_percent, 1, depth}});
      }
    }
  }
  rounds.verify();
  return report;
}

}  // namespace

int window_bench_main(int argc, char** argv) {
  CLI::App app{"block I/O with buffers registered once, against buffers mapped for each I/O", "lunar bench window"};
  return io_bench_main(app, IoOptions{}, argc, argv, parse, measure);
}

}  // namespace lunar::tools
