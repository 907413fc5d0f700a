// SPDX-License-Identifier: Apache-2.0
// See kv_report.h.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lunar::tools {

namespace {

template <class Values>
void write_list(JsonWriter& json, const char* name, const Values& values) {
  json.key(name).open('[');
  for (const auto& value : values) json.value(value);
  json.close(']');
}

void write_options(JsonWriter& json, const KvOptions& options) {
  json.key("options").open('{').field("dram_bytes", options.dram_bytes).field("data_bytes", options.data_bytes);
  json.field("allowance_bytes", options.allowance_bytes).field("seconds", options.seconds);
  json.field("rounds", options.rounds).field("seed", options.seed).field("quick", options.quick);
  json.field("lun", options.lun).field("library", options.library).field("htc", options.htc);
  write_list(json, "experiments", options.experiments);
  write_list(json, "systems", options.systems);
  write_list(json, "durability", options.durability);
  write_list(json, "threads", options.threads);
  write_list(json, "depths", options.depths);
  write_list(json, "values", options.values);
  json.close('}');
}

void write_result(JsonWriter& json, const KvResult& one) {
  json.open('{').field("system", one.system).field("experiment", one.experiment).field("workload", one.workload);
  json.field("place", one.place).field("durability", one.durability).field("value_bytes", one.value_bytes);
  json.field("threads", one.threads).field("depth", one.depth).field("async", one.async).field("htc", one.htc);
  for (const RunField& field : kRunFields) json.field(field.name, one.median.*field.member);
  for (const KvRunField& field : kKvRunFields) json.field(field.name, one.median.*field.member);
  json.field("rounds", one.runs.size()).field("spread", one.spread).key("rounds_ops_per_s").open('[');
  for (const KvRun& run : one.runs) json.value(run.ops_per_s);
  json.close(']').close('}');
}

void write_targets(JsonWriter& json, const std::vector<KvTarget>& targets) {
  json.key("targets").open('[');
  for (const KvTarget& target : targets) {
    json.open('{').field("name", target.name).field("what", target.what);
    json.field(target.at_most ? "at_most" : "at_least", target.goal);
    if (target.rounds.empty()) {
      json.field("measured", false).close('}');
      continue;
    }
    const auto [least, most] = std::minmax_element(target.rounds.begin(), target.rounds.end());
    json.field("measured", true).field("figure", target.figure()).field("least", *least).field("most", *most);
    json.field("share_of_target", target.figure() / target.goal).field("met", target.met()).close('}');
  }
  json.close(']');
}

std::string number_text(double value) {
  if (value < 0) return "-";
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
}

std::string rows_table(const KvReport& report) {
  std::string out = fmt::format(
      "{:<8} {:<16} {:<11} {:>5} {:>6} {:>3} {:>4} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5} {:>6} {:>5} {:<5}\n", "",
      "workload", "system", "value", "place", "thr", "qd", "op/s", "mean", "p50", "p99", "p99.9", "IO/s", "CPUs",
      "spread", "WA", "durable");
  for (const KvResult& one : report.results) {
    if (one.experiment == "paper") continue;
    const KvRun& run = one.median;
    out += fmt::format(
        "{:<8} {:<16} {:<11} {:>5} {:>6} {:>3} {:>4} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5.2f} {:>5.0f}% {:>5} "
        "{:<5}\n",
        one.experiment, one.workload, one.system, one.value_bytes, one.place, one.threads,
        one.async ? fmt::format("{}", one.depth) : "sync", number_text(run.ops_per_s), duration_text(run.mean_ns),
        duration_text(run.p50_ns), duration_text(run.p99_ns), duration_text(run.p999_ns), number_text(run.ios_per_s),
        run.cores, 100 * one.spread, number_text(run.amplification), one.durability);
  }
  return out;
}

const KvResult* paper_row(const KvReport& report, const KvResult& like, const std::string& workload) {
  for (const KvResult& one : report.results) {
    if (one.experiment == "paper" && one.workload == workload && one.system == like.system && one.place == like.place &&
        one.value_bytes == like.value_bytes && one.htc == like.htc && one.threads == like.threads &&
        one.depth == like.depth)
      return &one;
  }
  return nullptr;
}

// In the form of the paper's tables: what was written and read a second, and what it took.
std::string paper_table(const KvReport& report) {
  std::string out;
  for (const KvResult& reads : report.results) {
    if (reads.experiment != "paper" || reads.workload.find("_get") == std::string::npos) continue;
    std::string name = reads.workload;
    name.replace(name.find("_get"), 4, "_set");
    const KvResult* writes = paper_row(report, reads, name);
    if (!writes) continue;
    if (out.empty())
      out = fmt::format("\n{:<6} {:>5} {:<3} {:>7} {:>5} {:>10} {:>10} {:>8} {:>8} {:>8} {:>9} {:>9}\n", "place",
                        "value", "htc", "threads", "depth", "write op/s", "read op/s", "write IO", "read IO", "seconds",
                        "write CPU", "read CPU");
    out += fmt::format("{:<6} {:>5} {:<3} {:>7} {:>5} {:>10} {:>10} {:>8} {:>8} {:>8.2f} {:>9.2f} {:>9.2f}\n",
                       reads.place, reads.value_bytes, reads.htc ? "on" : "off", reads.threads,
                       reads.async ? fmt::format("{}", reads.depth) : "sync", number_text(writes->median.ops_per_s),
                       number_text(reads.median.ops_per_s), number_text(writes->median.ios_per_s),
                       number_text(reads.median.ios_per_s), writes->median.seconds + reads.median.seconds,
                       writes->median.cores, reads.median.cores);
  }
  return out;
}

std::string targets_table(const std::vector<KvTarget>& targets) {
  std::string out = fmt::format("\n{:<25} {:>9} {:>9} {:<20} {:>5}  {}\n", "aimed at", "target", "figure",
                                "least to most", "met", "what");
  for (const KvTarget& target : targets) {
    const std::string goal = (target.at_most ? "<= " : ">= ") + number_text(target.goal);
    if (target.rounds.empty()) {
      out +=
          fmt::format("{:<25} {:>9} {:>9} {:<20} {:>5}  {}\n", target.name, goal, "-", "not measured", "", target.what);
      continue;
    }
    const auto [least, most] = std::minmax_element(target.rounds.begin(), target.rounds.end());
    const auto text = [](double value) { return value < 0 ? fmt::format("{:.2f}", value) : number_text(value); };
    out += fmt::format("{:<25} {:>9} {:>9} {:<20} {:>5}  {}\n", target.name, goal, text(target.figure()),
                       text(*least) + " to " + text(*most), target.met() ? "yes" : "NO", target.what);
  }
  return out;
}

}  // namespace

std::string KvOverwrite::workload() const { return fmt::format("{}_{}_t{}", durability, full_percent, threads); }

std::vector<KvOverwrite> kv_overwrites() {
  std::vector<KvOverwrite> all;
  for (const char* durability : {"flush", "group"})
    for (const unsigned full_percent : {70, 80})
      for (const unsigned threads : {1, 16}) all.push_back({durability, full_percent, threads});
  return all;
}

KvRun median_of(const std::vector<KvRun>& runs) {
  KvRun median = median_of(runs, kKvRunFields);
  // Of the rounds that have one: a short one on a busy machine may have written nothing.
  std::vector<KvRun> written;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(written),
               [](const KvRun& run) { return run.amplification >= 0; });
  if (!written.empty()) median.amplification = median_of(written, kKvRunFields).amplification;
  return median;
}

std::map<std::string, Ratios> kv_ratios(const KvReport& report) {
  std::map<std::string, Ratios> all;
  for (const KvResult& ours : report.results) {
    if (ours.system != "lunar") continue;
    for (const KvResult& theirs : report.results) {
      if (theirs.system == "lunar" || theirs.experiment != ours.experiment || theirs.workload != ours.workload)
        continue;
      Ratios& ratios = all[theirs.system];
      const std::string stem = ours.experiment + "_" + ours.workload + "_";
      put_run_ratios(&ratios, stem, ours.runs, theirs.runs);
      put_round_ratios(&ratios, stem + "cores", ours.runs, theirs.runs, &KvRun::cores);
    }
  }
  return all;
}

std::string report_json(const KvReport& report) {
  JsonWriter json;
  json.open('{').field("bench", std::string("kv"));
  write_host(json);
  write_options(json, report.options);
  json.key("results").open('[');
  for (const KvResult& one : report.results) write_result(json, one);
  json.close(']');
  write_targets(json, kv_targets(report));
  write_ratios(json, kv_ratios(report));
  write_end(json, report.skipped, report.peak_bytes, report.failures);
  return json.text();
}

std::string report_table(const KvReport& report) {
  return rows_table(report) + paper_table(report) + targets_table(kv_targets(report)) +
         end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
