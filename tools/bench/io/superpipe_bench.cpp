// SPDX-License-Identifier: Apache-2.0
// `lunar bench superpipe`: what random 4 KiB block I/O costs through a superpipe context, compared with the ways a
// program has without Lunar, on one file or block device that was written whole.
//
//   lunar      a context: registered file and window, commands handed over and responses taken in batches
//   nospin     the same at depth 1, asleep while it waits: raw and fio have no other way, where lunar spins first
//   cblk       the block library's calls on the same place: cblk_read and cblk_write at depth 1, aread, awrite and
//              aresult deeper
//   raw        one thread with one blocking pread or pwrite, O_DIRECT: what cblk_read is measured against
//              (tools/bench/io/cblk_cost.h)
//   legacy     threads with one blocking pread or pwrite each, O_DIRECT
//   buffered   the same through the page cache
//   libaio     Linux AIO in the same batches
//   fio        its io_uring engine: the limit
//
// Backends take turns A B A B; medians are quoted. Each read of our own backends is checked against what was last
// written there; a run whose disk did not move what it must have fails the bench. CPU is the machine's:
// tools/bench/io/cpu_time.h says how. Threading: one thread; a run's workers live for that run. May not be used by
// runtime/ (it allocates).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tools/bench/io/io_bench.h"
#include "tools/bench/io/io_flags.h"
#include "tools/bench/io/rounds.h"

namespace lunar::tools {

namespace {

const std::vector<std::string> kSystems{"lunar", "nospin", "cblk", "raw", "legacy", "buffered", "libaio", "fio"};

constexpr const char* kFooter =
    "lunar: a superpipe context; nospin: one that sleeps at once when it waits, as raw and fio do (with up to 4 in\n"
    "flight, lunar spins for a moment first); cblk: libcflsh_block (cblk_read and cblk_write at depth 1, cblk_aread,\n"
    "cblk_awrite and cblk_aresult deeper); raw: one thread with a blocking pread or pwrite, O_DIRECT; legacy:\n"
    "--threads of them; buffered: these through the page cache; libaio: Linux AIO; fio: its io_uring engine. The "
    "bench\n"
    "checks each read of Lunar's systems.\n"
    "KIOPS/cpu: thousand operations per second of CPU time that was not idle, machine-wide, user and kernel.\n"
    "Ratios in the JSON are Lunar's value divided by the baseline's: WORKLOAD_qdDEPTH_QUANTITY against cblk, raw, "
    "libaio\n"
    "and fio at the same depth, WORKLOAD_tTHREADS_QUANTITY against the blocking threads, with Lunar at the greatest\n"
    "depth. fio.WORKLOAD_qd1_nospin_mean: nospin by fio; fio.WORKLOAD_qdDEPTH_cblk_QUANTITY: cblk by fio;\n"
    "legacy.WORKLOAD_tTHREADS_fio_QUANTITY: fio by legacy. raw.cblk_read_us_over: how much longer a blocking,\n"
    "uncached cblk_read takes than the same read without the library (pread with O_DIRECT; on pmem: a copy from the\n"
    "mapped device), in microseconds, by the p50 of reads that alternate; cblk_read_us_over_mean: by the mean.";

void parse(CLI::App& app, IoOptions& options, int argc, char** argv) {
  options.bench = "superpipe";
  options.seconds = 1;
  options.rounds = 5;
  options.systems = kSystems;
  IoFlags flags(app, options,
                {"data to work on", "operations in flight (default 1,16,128)", kIoPlaceHelp, 1, 16, {0.6, 1}});
  app.add_option("--threads", options.threads, "threads of legacy and buffered (default 16)")
      ->check(CLI::Range(1, 1024));
  app.add_option(
         "--batch", options.batch,
         "operations handed over and waited for at once, by lunar, libaio and fio (default: a quarter of the depth, at "
         "most 32)")
      ->check(CLI::Range(1, 4096));
  flags.add_workloads("any of read,mixed (70% reads),write (default: all)");
  app.add_option("--systems", options.systems, "any of lunar,nospin,cblk,raw,legacy,buffered,libaio,fio (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(kSystems));
  app.footer(kFooter);
  flags.parse(argc, argv);
}

// The backends at one depth. The blocking threads, and those that only serve as an upper bound, go with the deepest.
std::vector<IoBackend> backends_of(const IoRounds& rounds, const IoOptions& options, const IoWorkload& workload,
                                   unsigned depth) {
  const bool deepest = depth == options.depths.back();
  std::vector<IoBackend> backends;
  const auto add = [&](const char* system, unsigned threads, unsigned at_depth) {
    if (rounds.wants(system)) backends.push_back({system, workload.name, workload.read_percent, threads, at_depth});
  };
  add("lunar", 1, depth);
  if (depth == 1) {
    add("nospin", 1, 1);
    add("raw", 1, 1);
  }
  if (deepest || workload.read_percent == 100) add("cblk", 1, depth);
  if (deepest) {
    add("legacy", options.threads, 1);
    add("libaio", 1, depth);
    add("buffered", options.threads, 1);
  }
  if (deepest || workload.read_percent == 100) add("fio", 1, depth);
  return backends;
}

IoReport measure(IoOptions options) {
  IoReport report;
  report.options = std::move(options);
  for (const std::string& system : kSystems) {
    const auto& wanted = report.options.systems;
    if (std::find(wanted.begin(), wanted.end(), system) == wanted.end())
      report.skipped[system] = "not asked for (--systems)";
  }
  for (const char* name : {"CFLSH_BLK_CACHE_SIZE", "CFLSH_BLK_MAX_XFER", "CFLSH_BLK_SIZE", "CFLSH_BLK_TIMEOUT"})
    unsetenv(name);
  IoRounds rounds(report, 4096);
  const IoOptions& settled = report.options;
  std::vector<std::vector<IoBackend>> groups;
  for (const IoWorkload& workload : kIoWorkloads) {
    if (std::find(settled.workloads.begin(), settled.workloads.end(), workload.name) == settled.workloads.end())
      continue;
    for (const unsigned depth : settled.depths) {
      groups.push_back(backends_of(rounds, settled, workload, depth));
      rounds.expect(static_cast<unsigned>(groups.back().size()) * settled.rounds);
    }
  }
  for (const auto& backends : groups) rounds.measure(backends);
  if (rounds.wants("cblk") && (rounds.wants("raw") || report.device_kind == "pmem")) rounds.measure_cblk();
  rounds.verify();
  return report;
}

}  // namespace

int superpipe_bench_main(int argc, char** argv) {
  CLI::App app{
      "random block I/O through the superpipe and the block library, against blocking threads, Linux AIO and fio",
      "lunar bench superpipe"};
  return io_bench_main(app, IoOptions{}, argc, argv, parse, measure);
}

}  // namespace lunar::tools
