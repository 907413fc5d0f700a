// SPDX-License-Identifier: Apache-2.0
// See fault_report.h. No measuring here.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/fault/fault_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/report_parts.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

namespace {

void write_options(JsonWriter& json, const FaultOptions& options) {
  open_options(json, options);
  write_list(json, "threads", options.threads);
  write_list(json, "workloads", options.workloads);
  json.field("seconds", options.seconds).field("rounds", options.rounds).field("write_percent", options.write_percent);
  close_options(json, options);
}

}  // namespace

Ratios ratios_against(const FaultReport& report, const std::string& baseline) {
  return report.ratios("lunar", baseline, [&](Ratios* ratios, const FaultResult& ours, const FaultResult&) {
    // Prefetch also against a program that asks for nothing ahead.
    const FaultResult* theirs = ours.workload == "prefetch" ? report.find(baseline, "uniform", ours.threads) : nullptr;
    if (theirs != nullptr)
      put_round_ratios(ratios, ours.stem() + "ops_vs_uniform", ours.runs, theirs->runs, &RunResult::ops_per_s);
  });
}

std::string report_json(const FaultReport& report) {
  JsonWriter json;
  json.open('{').field("bench", std::string("fault"));
  write_host(json);
  write_options(json, report.options);
  const auto nothing = [](const FaultResult&) {};
  write_results(json, report.results, nothing, nothing);
  write_ratios(json, {{"swap", ratios_against(report, "swap")}});
  write_end(json, report.skipped, report.peak_bytes, report.failures);
  return json.text();
}

std::string report_table(const FaultReport& report) {
  std::string out = fmt::format("{:<9} {:>3}  {:<6} {:>9} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n", "workload",
                                "thr", "system", "op/s", "mean", "p50", "p99", "p99.9", "cpu us/op", "MiB read",
                                "lunar/swap: median of the rounds' ratios (least to most)");
  const auto ratios = ratios_against(report, "swap");
  for (const FaultResult& one : report.results) {
    const RunResult& run = one.median;
    const std::string note =
        row_note(one.page_cluster, one.system == "lunar" ? ratios : Ratios{}, one.stem(),
                 {{"ops", "op/s"}, {"p99", "p99"}, {"cpu", "cpu"}, {"ops_vs_uniform", "of swap uniform"}});
    out += fmt::format("{:<9} {:>3}  {:<6} {:>9.0f} {:>10} {:>10} {:>10} {:>10} {:>9.1f} {:>9.0f}  {}\n", one.workload,
                       one.threads, one.system, run.ops_per_s, duration_text(run.mean_ns), duration_text(run.p50_ns),
                       duration_text(run.p99_ns), duration_text(run.p999_ns), run.cpu_us_per_op,
                       std::max(0.0, run.disk_read_bytes) / 1048576, note);
  }
  return out + end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
