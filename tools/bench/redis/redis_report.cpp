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
  open_options(json, options);
  json.field("value_bytes", options.value_bytes).field("compressible", options.compressible);
  json.field("shards", options.shards).field("swap", options.swap);
  json.field("connections", options.connections).field("pipeline", options.pipeline);
  write_list(json, "workloads", options.workloads);
  write_list(json, "systems", options.systems);
  json.field("seconds", options.seconds).field("rounds", options.rounds).field("rate", options.rate);
  close_options(json, options);
}

std::string note_of(const RedisReport& report, const RedisResult& one) {
  const Ratios ratios = one.system == "swap" ? Ratios{} : ratios_of(report, one.system, "swap");
  std::string note = row_note(one.page_cluster, ratios, one.stem(),
                              {{"ops", "op/s"}, {"p99", "p99"}, {"cpu", "cpu/op"}, {"time", "time of the job"}});
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
  return report.ratios(ours, baseline, [](Ratios* ratios, const RedisResult& one, const RedisResult& other) {
    put_round_ratios(ratios, one.stem() + "time", one.runs, other.runs, &RedisRun::job_s);
    put_round_ratios(ratios, one.stem() + "cold_ops", one.runs, other.runs, &RedisRun::cold_ops_per_s);
  });
}

std::string report_json(const RedisReport& report) {
  JsonWriter json;
  json.open('{').field("bench", std::string("redis"));
  write_host(json);
  json.field("redis_version", report.redis_version)
      .field("swap_state", report.swap_state)
      .field("note", machine_note());
  write_options(json, report.options);
  write_results(
      json, report.results,
      [&](const RedisResult& one) { json.field("pipeline", one.pipeline).field("rounds", one.rounds); },
      [&](const RedisResult& one) {
        for (const RedisRunField& field : kRedisRunFields) json.field(field.name, one.median.*field.member);
      });
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
        one.workload, one.threads, one.pipeline, one.system, run.ops_per_s, duration_text(run.p50_ns),
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
