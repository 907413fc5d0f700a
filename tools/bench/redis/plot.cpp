// SPDX-License-Identifier: Apache-2.0
// See plot.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/redis/plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/gnuplot.h"

namespace lunar::tools {

namespace {

constexpr const char* kScriptName = "redis.gnuplot";

struct Chart {
  const char *name, *title, *unit;
  bool logarithmic;
  double (*value)(const RedisRun& run);
};
constexpr Chart kCharts[] = {
    {"redis-throughput", "Operations per second", "op/s", false, [](const RedisRun& run) { return run.ops_per_s; }},
    {"redis-p99", "99th percentile of latency (hotcold, paced: of the hot clients)", "us, logarithmic", true,
     [](const RedisRun& run) { return run.p99_ns / 1e3; }},
};

std::vector<std::string> workloads_of(const RedisReport& report) {
  std::vector<std::string> names;
  for (const RedisResult& one : report.results) {
    if (std::find(names.begin(), names.end(), one.workload) == names.end()) names.push_back(one.workload);
  }
  return names;
}

std::string value_text(const RedisReport& report, const Chart& chart, const std::string& workload,
                       const std::string& system) {
  for (const RedisResult& one : report.results) {
    if (one.workload == workload && one.system == system) return fmt::format("{:.6g}", chart.value(one.median));
  }
  return "NaN";
}

}  // namespace

std::string plot_script(const RedisReport& report, const std::string& directory) {
  std::vector<std::string> systems;
  for (const std::string& system : report.options.systems) {
    if (report.skipped.count(system) == 0) systems.push_back(system);
  }
  std::string out =
      "set style data histograms\nset style histogram clustered gap 1\nset style fill solid 0.85 noborder\n"
      "set boxwidth 0.9\nset xtics rotate by -35 noenhanced\nset key outside top center horizontal\n"
      "set grid ytics lc rgb '#dddddd'\nset yrange [0:*]\n"
      "set linetype 1 lc rgb '#1b6ca8'\nset linetype 2 lc rgb '#7fb7d9'\nset linetype 3 lc rgb '#c0562f'\n";
  for (const Chart& chart : kCharts) {
    out += fmt::format("${} << EOD\nworkload", chart.logarithmic ? "p99" : "throughput");
    for (const std::string& system : systems) out += " " + system;
    out += "\n";
    for (const std::string& workload : workloads_of(report)) {
      out += workload;
      for (const std::string& system : systems) out += " " + value_text(report, chart, workload, system);
      out += "\n";
    }
    out += "EOD\n";
  }
  for (const Chart& chart : kCharts) {
    out +=
        fmt::format("set title {} noenhanced\nset ylabel {}\n",
                    gnuplot_quoted(fmt::format("{}: {} MiB DRAM, {} MiB of {} byte values, {} connections", chart.title,
                                               report.options.dram_bytes >> 20, report.options.data_bytes >> 20,
                                               report.options.value_bytes, report.options.connections)),
                    gnuplot_quoted(chart.unit));
    if (chart.logarithmic) out += "set logscale y\nset yrange [*:*]\n";
    const char* const kinds[][2] = {{"svg", "svg size 1000,520 font 'sans,13' background '#ffffff'"},
                                    {"png", "pngcairo size 1000,520 font 'sans,11'"}};
    for (const auto& [suffix, terminal] : kinds) {
      out += fmt::format("set terminal {}\nset output {}\nplot for [i=2:{}] ${} using i:xtic(1) title columnheader\n",
                         terminal, gnuplot_quoted(fmt::format("{}/{}.{}", directory, chart.name, suffix)),
                         systems.size() + 1, chart.logarithmic ? "p99" : "throughput");
    }
  }
  return out + "set output\n";
}

std::vector<std::string> draw_plots(const RedisReport& report, const std::string& directory) {
  if (report.results.empty()) return {};
  run_gnuplot(directory, kScriptName, plot_script(report, directory));
  std::vector<std::string> made;
  for (const Chart& chart : kCharts) {
    for (const char* suffix : {"svg", "png"}) made.push_back(fmt::format("{}/{}.{}", directory, chart.name, suffix));
  }
  return made;
}

}  // namespace lunar::tools
