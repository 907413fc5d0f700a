// SPDX-License-Identifier: Apache-2.0
// See io_report.h. No measuring here.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/io/io_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "tools/bench/report_parts.h"
#include "tools/support/json_writer.h"

namespace lunar::tools {

namespace {

bool blocking(const std::string& system) { return system == "legacy" || system == "buffered"; }

// The row of `system` that a baseline's is compared with: of the same depth, or of its deepest where threads block.
const IoResult* counterpart(const IoReport& report, const std::string& system, const IoResult& baseline) {
  const IoResult* found = nullptr;
  for (const IoResult& one : report.results) {
    if (one.system != system || one.workload != baseline.workload) continue;
    if (blocking(baseline.system) ? !found || one.depth > found->depth : one.depth == baseline.depth) found = &one;
  }
  return found;
}

// Further comparisons, apart from those of "lunar": a system and its baseline.
struct Pair {
  const char *system, *baseline;
  bool costs;  // what the CPU gave, too
};
constexpr Pair kPairs[] = {
    {"nospin", "fio", false},                              // both sleep while they wait, where Lunar spins
    {"cblk", "fio", true},       {"fio", "legacy", true},  // what Lunar's figure over the legacy path is held against
    {"stripe", "members", true}, {"raid0", "members", true}, {"stripe", "one", true}, {"raid0", "one", true},
};

void put_ratios(const std::string& stem, const std::vector<IoRun>& us, const std::vector<IoRun>& them, Ratios* ratios) {
  put_run_ratios(ratios, stem, us, them);
  put_round_ratios(ratios, stem + "kiops_per_cpu", us, them, &IoRun::kiops_per_cpu);
  put_round_ratios(ratios, stem + "kiops_per_cpu_kernel", us, them, &IoRun::kiops_per_cpu_kernel);
  put_round_ratios(ratios, stem + "kiops_per_cpu_kernel_ticks", us, them, &IoRun::kiops_per_cpu_kernel_ticks);
}

std::string stem_of(const IoResult& baseline) {
  return blocking(baseline.system) ? fmt::format("{}_t{}_", baseline.workload, baseline.threads)
                                   : fmt::format("{}_qd{}_", baseline.workload, baseline.depth);
}

void put_pairs(const IoReport& report, std::map<std::string, Ratios>* all) {
  for (const Pair& pair : kPairs) {
    for (const IoResult& them : report.results) {
      const IoResult* us = them.system == pair.baseline ? counterpart(report, pair.system, them) : nullptr;
      if (!us) continue;
      const std::string stem = fmt::format("{}{}_", stem_of(them), pair.system);
      Ratios& ratios = (*all)[them.system];
      if (pair.costs)
        put_ratios(stem, us->runs, them.runs, &ratios);
      else
        put_run_ratios(&ratios, stem, us->runs, them.runs);
    }
  }
}

// The names of the contract, for 4 KiB reads.
void put_window_ratios(Ratios* ratios, unsigned shallow, unsigned deep) {
  const auto name = [&](const char* as, unsigned depth, const char* quantity) {
    for (const char* end : {"", "_min", "_max"}) {
      const auto found = ratios->find(fmt::format("read4k_qd{}_{}{}", depth, quantity, end));
      if (found != ratios->end()) (*ratios)[std::string(as) + end] = found->second;
    }
  };
  name("window_mean", shallow, "mean");
  name("window_ops", deep, "ops");
  name("window_cpu", deep, "cpu");
  name("window_kiops_per_cpu", deep, "kiops_per_cpu");
}

void write_options(JsonWriter& json, const IoReport& report) {
  const IoOptions& options = report.options;
  json.key("options").open('{').field("size_bytes", options.size_bytes).key("depths").open('[');
  for (const unsigned depth : options.depths) json.value(depth);
  json.close(']').key("workloads").open('[');
  for (const std::string& workload : options.workloads) json.value(workload);
  json.close(']').field("threads", options.threads).field("seconds", options.seconds).field("rounds", options.rounds);
  json.field("batch", options.batch)
      .field("lun", options.lun)
      .field("device_kind", report.device_kind)
      .field("seed", options.seed);
  json.field("quick", options.quick).key("fio_commands").open('[');
  for (const std::string& command : report.fio_commands) json.value(command);
  json.close(']').close('}');
}

void write_cblk(JsonWriter& json, const CblkCost& cblk) {
  json.key("cblk_read")
      .open('{')
      .field("beside", cblk.raw)
      .field("raw_p50_ns", cblk.raw_p50_ns)
      .field("cblk_p50_ns", cblk.cblk_p50_ns);
  json.field("over_p50_ns", cblk.over_p50_ns)
      .field("over_mean_ns", cblk.over_mean_ns)
      .field("over_least_ns", cblk.over_least_ns);
  json.field("over_most_ns", cblk.over_most_ns).field("reads", cblk.reads).field("rounds", cblk.rounds).close('}');
}

}  // namespace

bool noisy_run(const IoRun& run, long cpus) {
  return run.other_user_cpu_s > kNoisyShare * run.seconds * static_cast<double>(cpus);
}

std::vector<size_t> quietest_rounds(const std::vector<std::vector<IoRun>>& runs, size_t count) {
  std::vector<double> disturbed;
  for (const std::vector<IoRun>& of_backend : runs) {
    if (of_backend.size() > disturbed.size()) disturbed.resize(of_backend.size());
    for (size_t i = 0; i < of_backend.size(); ++i)
      if (of_backend[i].seconds > 0)
        disturbed[i] = std::max(disturbed[i], of_backend[i].other_user_cpu_s / of_backend[i].seconds);
  }
  std::vector<size_t> rounds(disturbed.size());
  std::iota(rounds.begin(), rounds.end(), size_t{0});
  std::stable_sort(rounds.begin(), rounds.end(), [&](size_t a, size_t b) { return disturbed[a] < disturbed[b]; });
  if (rounds.size() > count) rounds.resize(count);
  std::sort(rounds.begin(), rounds.end());
  return rounds;
}

IoRun median_of(const std::vector<IoRun>& runs) { return median_of(runs, kIoRunFields); }

IoResult io_result(const std::string& system, const std::string& workload, const std::vector<IoRun>& runs) {
  IoResult result;
  result.system = system;
  result.workload = workload;
  result.rounds = static_cast<unsigned>(runs.size());
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  for (const IoRun& run : runs) result.noisy += noisy_run(run, cpus) ? 1 : 0;
  result.median = median_of(runs);
  result.runs = runs;
  if (runs.empty()) return result;
  result.spread = spread_of(runs, &IoRun::ops_per_s, result.median.ops_per_s);
  result.cpu_spread = spread_of(runs, &IoRun::kiops_per_cpu, result.median.kiops_per_cpu);
  return result;
}

std::map<std::string, Ratios> io_ratios(const IoReport& report) {
  std::map<std::string, Ratios> all;
  for (const IoResult& them : report.results) {
    const IoResult* us = them.system == "lunar" ? nullptr : counterpart(report, "lunar", them);
    if (!us) continue;
    const std::string stem = stem_of(them);
    Ratios& ratios = all[them.system];
    put_ratios(stem, us->runs, them.runs, &ratios);
    // Without interrupts and kernel threads, but blind to what others do. (fio's would hold its start and end.)
    const auto own = [](const std::vector<IoRun>& runs) {
      std::vector<double> out;
      for (const IoRun& run : runs) out.push_back(run.ops > 0 ? run.cpu_s / run.ops : 0);
      return out;
    };
    if (them.system != "fio") put_round_ratios(&ratios, stem + "process_cpu", own(us->runs), own(them.runs));
  }
  put_pairs(report, &all);
  if (!report.cblk.raw.empty()) {
    all["raw"]["cblk_read_us_over"] = report.cblk.over_p50_ns / 1e3;
    all["raw"]["cblk_read_us_over_mean"] = report.cblk.over_mean_ns / 1e3;
  }
  if (const auto window = all.find("perio"); window != all.end() && !report.options.depths.empty()) {
    const auto [low, high] = std::minmax_element(report.options.depths.begin(), report.options.depths.end());
    put_window_ratios(&window->second, *low, *high);
  }
  return all;
}

std::string report_json(const IoReport& report) {
  JsonWriter json;
  json.open('{').field("bench", report.options.bench);
  write_host(json);
  write_options(json, report);
  json.key("results").open('[');
  for (const IoResult& one : report.results) {
    json.open('{').field("system", one.system).field("workload", one.workload).field("threads", one.threads);
    json.field("depth", one.depth).field("unit_bytes", one.unit_bytes);
    for (const RunField& field : kRunFields) json.field(field.name, one.median.*field.member);
    for (const IoRunField& field : kIoRunFields) json.field(field.name, one.median.*field.member);
    json.field("spread", one.spread).field("cpu_spread", one.cpu_spread);
    json.field("rounds", one.rounds).field("noisy_rounds", one.noisy).close('}');
  }
  json.close(']');
  if (!report.cblk.raw.empty()) write_cblk(json, report.cblk);
  write_ratios(json, io_ratios(report));
  write_end(json, report.skipped, {}, report.failures);
  return json.text();
}

namespace {
std::string ratio_line(const IoResult& us, const IoResult& them) {
  Ratios ratios;
  put_ratios("", us.runs, them.runs, &ratios);
  std::string out =
      fmt::format("{:<14} {:<9} qd{} to {}: {} IOPS, {} mean", us.system + "/" + them.system, them.workload, us.depth,
                  blocking(them.system) ? fmt::format("{} threads", them.threads) : fmt::format("qd{}", them.depth),
                  ratio_text(ratios, "ops"), ratio_text(ratios, "mean"));
  if (ratios.count("kiops_per_cpu"))
    out += fmt::format(", {} IOPS/CPU ({} in the kernel)", ratio_text(ratios, "kiops_per_cpu"),
                       ratio_text(ratios, "kiops_per_cpu_kernel"));
  if (us.system == "lunar" && them.system == "fio" && us.depth == 1)
    out += "; lunar spins here and fio sleeps: see nospin";
  return out + '\n';
}
}  // namespace

std::string report_table(const IoReport& report) {
  std::string out =
      fmt::format("{:<9} {:<8} {:>3} {:>4} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "workload", "system",
                  "thr", "qd", "IOPS", "mean", "p50", "p99", "p99.9", "KIOPS/cpu", "in kernel", "spread");
  unsigned noisy = 0;
  for (const IoResult& one : report.results) {
    const IoRun& run = one.median;
    noisy += one.noisy;
    out += fmt::format("{:<9} {:<8} {:>3} {:>4} {:>8.0f} {:>9} {:>9} {:>9} {:>9} {:>9.1f} {:>9.1f} {:>5.0f}%\n",
                       one.workload, one.system, one.threads, one.depth, run.ops_per_s, duration_text(run.mean_ns),
                       duration_text(run.p50_ns), duration_text(run.p99_ns), duration_text(run.p999_ns),
                       run.kiops_per_cpu, run.kiops_per_cpu_kernel, 100 * one.spread);
  }
  for (const IoResult& one : report.results) {
    const IoResult* us = one.system == "lunar" ? nullptr : counterpart(report, "lunar", one);
    if (us) out += ratio_line(*us, one);
  }
  for (const Pair& pair : kPairs) {
    for (const IoResult& one : report.results) {
      const IoResult* us = one.system == pair.baseline ? counterpart(report, pair.system, one) : nullptr;
      if (us) out += ratio_line(*us, one);
    }
  }
  if (const CblkCost& cblk = report.cblk; !cblk.raw.empty()) {
    out += fmt::format(
        "cblk_read against {}: {} and {}, {:+.2f} us at p50 ({:+.2f} to {:+.2f} in {} rounds), {:+.2f} us of the "
        "means; {} reads each\n",
        cblk.raw, duration_text(cblk.cblk_p50_ns), duration_text(cblk.raw_p50_ns), cblk.over_p50_ns / 1e3,
        cblk.over_least_ns / 1e3, cblk.over_most_ns / 1e3, cblk.rounds, cblk.over_mean_ns / 1e3, cblk.reads);
  }
  for (const std::string& command : report.fio_commands) out += fmt::format("fio: {}\n", command);
  if (noisy > 0) out += fmt::format("noise: others used the CPUs during {} of the runs that count\n", noisy);
  return out + end_lines(report.skipped, report.failures);
}

}  // namespace lunar::tools
