// SPDX-License-Identifier: Apache-2.0
// See lio_report.h. No measuring here.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/lio/lio_report.h"

#include <fmt/format.h>

#include "tools/bench/report_parts.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

namespace {
const LioResult* find(const LioReport& report, const std::string& system, const std::string& workload) {
  for (const LioResult& one : report.results) {
    if (one.system == system && one.workload == workload) return &one;
  }
  return nullptr;
}
}  // namespace

Ratios lio_ratios(const LioReport& report, const std::string& baseline) {
  Ratios ratios;
  for (const std::string operation : {"read", "write"}) {
    const std::string stem = operation == "read" ? "lio_" : "lio_write_";
    const LioResult *ours = find(report, "lunar", operation + "_wait"),
                    *theirs = find(report, baseline, operation + "_wait");
    if (ours != nullptr && theirs != nullptr) {
      put_round_ratios(&ratios, stem + "wait_ops", ours->runs, theirs->runs, &LioRun::ops_per_s);
      put_round_ratios(&ratios, stem + "wait_mean", ours->runs, theirs->runs, &LioRun::mean_ns);
      put_round_ratios(&ratios, stem + "wait_cpu", ours->runs, theirs->runs, &LioRun::cpu_us);
    }
    ours = find(report, "lunar", operation + "_nowait");
    theirs = find(report, baseline, operation + "_nowait");
    if (ours != nullptr && theirs != nullptr)
      put_round_ratios(&ratios, stem + "nowait_return", ours->runs, theirs->runs, &LioRun::return_ns);
  }
  return ratios;
}

std::string lio_json(const LioReport& report) {
  JsonWriter json;
  const LioOptions& options = report.options;
  json.open('{').field("bench", std::string("lio"));
  write_host(json);
  json.key("options")
      .open('{')
      .field("ios", options.ios)
      .field("io_bytes", options.io_bytes)
      .field("file_bytes", options.file_bytes);
  json.field("lists", options.lists)
      .field("rounds", options.rounds)
      .field("pmem", report.device)
      .field("delegate", options.delegate);
  json.field("seed", options.seed).field("quick", options.quick).close('}');
  json.key("results").open('[');
  for (const LioResult& one : report.results) {
    json.open('{')
        .field("system", one.system)
        .field("workload", one.workload)
        .field("threads", 1)
        .field("ops_per_s", one.ops_per_s);
    json.field("mean_ns", one.mean_ns)
        .field("p50_ns", one.p50_ns)
        .field("p99_ns", one.p99_ns)
        .field("return_ns", one.return_ns);
    json.field("return_p99_ns", one.return_p99_ns)
        .field("cpu_us_per_list", one.cpu_us_per_list)
        .field("spread", one.spread)
        .close('}');
  }
  json.close(']');
  write_ratios(json, {{"sync", lio_ratios(report, "sync")}, {"lio_listio", lio_ratios(report, "lio_listio")}});
  write_end(json, report.skipped, {}, report.failures);
  return json.text();
}

std::string lio_table(const LioReport& report) {
  std::string out =
      fmt::format("lists of {} I/Os of {} KiB on {}\n{:<13} {:<11} {:>10} {:>11} {:>11} {:>11} {:>11} {:>11}\n",
                  report.options.ios, report.options.io_bytes / 1024, report.device, "workload", "system", "I/O per s",
                  "returns", "done", "done p99", "cpu/list", "spread");
  for (const LioResult& one : report.results) {
    out += fmt::format("{:<13} {:<11} {:>10.0f} {:>11} {:>11} {:>11} {:>11} {:>10.0f}%\n", one.workload, one.system,
                       one.ops_per_s, duration_text(one.return_ns), duration_text(one.mean_ns),
                       duration_text(one.p99_ns), duration_text(one.cpu_us_per_list * 1000), one.spread * 100);
  }
  for (const char* baseline : {"sync", "lio_listio"}) {
    // with _min and _max
    for (const auto& [key, value] : lio_ratios(report, baseline))
      out += fmt::format("{}.{}: {:.3f}\n", baseline, key, value);
  }
  return out + end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
