// SPDX-License-Identifier: Apache-2.0
// See redis_report.h. No measuring here.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/redis/redis_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tools/bench/report_parts.h"

namespace lunar::tools {

namespace {

const RedisResult* find(const RedisReport& report, const std::string& system, const std::string& workload) {
  for (const RedisResult& one : report.results) {
    if (one.system == system && one.workload == workload) return &one;
  }
  return nullptr;
}

// The pairs that ratios are given for, under this name in the JSON.
struct Pair {
  const char *name, *ours, *baseline;
};
constexpr Pair kPairs[] = {{"swap", "lunar", "swap"}, {"run", "lunar", "run"}, {"run_over_swap", "run", "swap"}};

std::string machine_note() {
  return fmt::format(
      "the load generator is one thread and takes a CPU of this machine's {}; the CPU of each backend is given too",
      sysconf(_SC_NPROCESSORS_ONLN));
}

void write_options(JsonWriter& json, const RedisOptions& options) {
  json.key("options").open('{').field("dram_bytes", options.dram_bytes).field("data_bytes", options.data_bytes);
  json.field("allowance_bytes", options.allowance_bytes).field("value_bytes", options.value_bytes);
  json.field("compressible", options.compressible).field("shards", options.shards).field("swap", options.swap);
  json.field("connections", options.connections).field("pipeline", options.pipeline).key("workloads").open('[');
  for (const std::string& workload : options.workloads) json.value(workload);
  json.close(']').key("systems").open('[');
  for (const std::string& system : options.systems) json.value(system);
  json.close(']').field("seconds", options.seconds).field("rounds", options.rounds);
  json.field("rate", options.rate).field("lun", options.lun);
  json.field("lunar_options", options.options).field("seed", options.seed).field("quick", options.quick).close('}');
}

void write_result(JsonWriter& json, const RedisResult& one) {
  json.open('{').field("system", one.system).field("workload", one.workload).field("threads", one.connections);
  json.field("pipeline", one.pipeline).field("rounds", one.rounds);
  for (const RunField& field : kRunFields) json.field(field.name, one.median.*field.member);
  for (const RedisRunField& field : kRedisRunFields) json.field(field.name, one.median.*field.member);
  json.field("spread", one.spread);
  if (one.page_cluster >= 0) json.field("page_cluster", one.page_cluster);
  json.close('}');
}

std::string note_of(const RedisReport& report, const RedisResult& one) {
  std::string note;
  if (one.page_cluster >= 0) note = fmt::format("page-cluster {}", one.page_cluster);
  const auto ratios = ratios_of(report, one.system, "swap");
  const auto put = [&](const char* quantity, const char* label) {
    const std::string text = ratio_text(ratios, fmt::format("{}_t{}_{}", one.workload, one.connections, quantity));
    if (one.system != "swap" && !text.empty()) note += fmt::format("{}{} {}", note.empty() ? "" : ", ", text, label);
  };
  put("ops", "op/s");
  put("p99", "p99");
  put("cpu", "cpu/op");
  put("time", "time of the job");
  const RedisRun& run = one.median;
  const auto add = [&](const std::string& text) { note += (note.empty() ? "" : ", ") + text; };
  if (run.job_s > 0) add(fmt::format("job {:.2f} s", run.job_s));
  if (run.fork_us > 0) add(fmt::format("fork {:.1f} ms", run.fork_us / 1e3));
  if (run.lag_s > 0) add(fmt::format("{:.2f} s behind", run.lag_s));
  if (run.cold_ops_per_s > 0) {
    add(fmt::format("cold clients {:.0f} op/s, p99 {}", run.cold_ops_per_s, duration_text(run.cold_p99_ns)));
  }
  return note;
}

}  // namespace

RedisRun median_of(const std::vector<RedisRun>& runs) { return median_of(runs, kRedisRunFields); }

Ratios ratios_of(const RedisReport& report, const std::string& ours, const std::string& baseline) {
  Ratios ratios;
  for (const RedisResult& one : report.results) {
    const RedisResult* other = one.system == ours ? find(report, baseline, one.workload) : nullptr;
    if (other == nullptr) continue;
    const std::string stem = fmt::format("{}_t{}_", one.workload, one.connections);
    put_run_ratios(&ratios, stem, one.runs, other->runs);
    put_round_ratios(&ratios, stem + "time", one.runs, other->runs, &RedisRun::job_s);
    put_round_ratios(&ratios, stem + "cold_ops", one.runs, other->runs, &RedisRun::cold_ops_per_s);
  }
  return ratios;
}

std::string report_json(const RedisReport& report) {
  JsonWriter json;
  json.open('{').field("bench", std::string("redis"));
  write_host(json);
  json.field("redis_version", report.redis_version)
      .field("swap_state", report.swap_state)
      .field("note", machine_note());
  write_options(json, report.options);
  json.key("results").open('[');
  for (const RedisResult& one : report.results) write_result(json, one);
  json.close(']');
  std::map<std::string, Ratios> of_baselines;
  for (const Pair& pair : kPairs) of_baselines[pair.name] = ratios_of(report, pair.ours, pair.baseline);
  write_ratios(json, of_baselines);
  write_end(json, report.skipped, report.peak_bytes, report.failures);
  return json.text();
}

std::string report_table(const RedisReport& report) {
  std::string out =
      fmt::format("{:<13} {:>4} {:>4}  {:<6} {:>8} {:>9} {:>9} {:>9} {:>6} {:>6} {:>6} {:>9} {:>8}  {}\n", "workload",
                  "conn", "pipe", "system", "op/s", "p50", "p99", "p99.9", "srv%", "gen%", "cpu%", "cpu us/op",
                  "MiB read", "against swap: median of the rounds' ratios (least to most)");
  for (const RedisResult& one : report.results) {
    const RedisRun& run = one.median;
    const double percent = run.seconds > 0 ? 100 / run.seconds : 0;
    out += fmt::format(
        "{:<13} {:>4} {:>4}  {:<6} {:>8.0f} {:>9} {:>9} {:>9} {:>6.0f} {:>6.0f} {:>6.0f} {:>9.1f} {:>8.0f}  {}\n",
        one.workload, one.connections, one.pipeline, one.system, run.ops_per_s, duration_text(run.p50_ns),
        duration_text(run.p99_ns), duration_text(run.p999_ns), run.cpu_s * percent, run.generator_cpu_s * percent,
        run.machine_cpu_s * percent, run.cpu_us_per_op, std::max(0.0, run.server_read_bytes) / 1048576,
        note_of(report, one));
  }
  out += fmt::format(
      "srv%, gen%, cpu%: CPU of server, load generator and machine, of one CPU; MiB read: by the server; {}\n",
      machine_note());
  for (const auto& [system, bytes] : report.peak_bytes) {
    out += fmt::format("memory peak: {}: {:.0f} MiB\n", system, bytes / 1048576);
  }
  if (!report.peak_bytes.empty())
    out += fmt::format("memory limit: {} MiB\n", (report.options.dram_bytes + report.options.allowance_bytes) >> 20);
  return out + end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
