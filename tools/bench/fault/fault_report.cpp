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
const FaultResult* find(const FaultReport& report, const std::string& system, const std::string& workload,
                        unsigned threads) {
  for (const FaultResult& one : report.results) {
    if (one.system == system && one.workload == workload && one.threads == threads) return &one;
  }
  return nullptr;
}

void write_options(JsonWriter& json, const FaultOptions& options) {
  json.key("options").open('{').field("dram_bytes", options.dram_bytes).field("data_bytes", options.data_bytes);
  json.field("allowance_bytes", options.allowance_bytes).key("threads").open('[');
  for (const unsigned threads : options.threads) json.value(threads);
  json.close(']').key("workloads").open('[');
  for (const std::string& workload : options.workloads) json.value(workload);
  json.close(']').field("seconds", options.seconds).field("rounds", options.rounds);
  json.field("write_percent", options.write_percent).field("lun", options.lun).field("lunar_options", options.options);
  json.field("seed", options.seed).field("quick", options.quick).close('}');
}
}  // namespace

Ratios ratios_against(const FaultReport& report, const std::string& baseline) {
  Ratios ratios;
  for (const FaultResult& ours : report.results) {
    if (ours.system != "lunar") continue;
    const std::string stem = fmt::format("{}_t{}_", ours.workload, ours.threads);
    if (const FaultResult* theirs = find(report, baseline, ours.workload, ours.threads)) {
      put_run_ratios(&ratios, stem, ours.runs, theirs->runs);
    }
    if (ours.workload != "prefetch") continue;
    // Against a program that asks for nothing ahead.
    if (const FaultResult* theirs = find(report, baseline, "uniform", ours.threads)) {
      put_round_ratios(&ratios, stem + "ops_vs_uniform", ours.runs, theirs->runs, &RunResult::ops_per_s);
    }
  }
  return ratios;
}

std::string report_json(const FaultReport& report) {
  JsonWriter json;
  json.open('{').field("bench", std::string("fault"));
  write_host(json);
  write_options(json, report.options);
  json.key("results").open('[');
  for (const FaultResult& one : report.results) {
    json.open('{').field("system", one.system).field("workload", one.workload).field("threads", one.threads);
    for (const RunField& field : kRunFields) json.field(field.name, one.median.*field.member);
    json.field("spread", one.spread);
    if (one.page_cluster >= 0) json.field("page_cluster", one.page_cluster);
    json.close('}');
  }
  json.close(']');
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
    std::string note;
    if (one.system == "lunar") {
      const std::string stem = fmt::format("{}_t{}_", one.workload, one.threads);
      for (const auto& [quantity, label] :
           {std::pair{"ops", "op/s"}, {"p99", "p99"}, {"cpu", "cpu"}, {"ops_vs_uniform", "of swap uniform"}}) {
        if (const std::string text = ratio_text(ratios, stem + quantity); !text.empty())
          note += fmt::format("{}{} {}", note.empty() ? "" : ", ", text, label);
      }
    } else if (one.page_cluster >= 0) {
      note = fmt::format("page-cluster {}", one.page_cluster);
    }
    out += fmt::format("{:<9} {:>3}  {:<6} {:>9.0f} {:>10} {:>10} {:>10} {:>10} {:>9.1f} {:>9.0f}  {}\n", one.workload,
                       one.threads, one.system, run.ops_per_s, duration_text(run.mean_ns), duration_text(run.p50_ns),
                       duration_text(run.p99_ns), duration_text(run.p999_ns), run.cpu_us_per_op,
                       std::max(0.0, run.disk_read_bytes) / 1048576, note);
  }
  return out + end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
