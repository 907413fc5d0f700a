// SPDX-License-Identifier: Apache-2.0
// See kv_plot.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/gnuplot.h"

namespace lunar::tools {

namespace {

constexpr const char* kScriptName = "kv.gnuplot";

constexpr const char* kStyle =
    "set style data histograms\nset style histogram clustered gap 1\nset style fill solid 0.85 noborder\n"
    "set boxwidth 0.9\nset xtics rotate by -35 noenhanced\nset key outside top center horizontal noenhanced\n"
    "set grid ytics lc rgb '#dddddd'\n"
    "set linetype 1 lc rgb '#1b6ca8'\nset linetype 2 lc rgb '#c0562f'\nset linetype 3 lc rgb '#e0a080'\n"
    "set linetype 4 lc rgb '#5f8a3a'\nset linetype 5 lc rgb '#888888'\nset linetype 6 lc rgb '#7fb7d9'\n"
    "set terminal svg size 1000,520 font 'sans,13' background '#ffffff'\n";

// Groups of bars: in each group a bar a series. "-": none.
struct Chart {
  std::string name, title, unit;
  bool logarithmic = false;
  std::vector<std::string> groups, series;
  std::vector<std::vector<double>> values;  // by group and series; < 0: none

  size_t place(std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<size_t>(found - names.begin());
    names.push_back(name);
    return names.size() - 1;
  }
  void put(const std::string& group, const std::string& one, double value) {
    const size_t row = place(groups, group), column = place(series, one);
    values.resize(groups.size());
    for (auto& line : values) line.resize(series.size(), -1);
    values[row][column] = value;
  }
};

std::string chart_text(const Chart& chart, const std::string& file) {
  std::string data = chart.name;
  std::replace(data.begin(), data.end(), '-', '_');
  std::string out = fmt::format("${} << EOD\ngroup", data);
  for (const std::string& one : chart.series) out += " " + one;
  out += "\n";
  for (size_t row = 0; row < chart.groups.size(); ++row) {
    out += chart.groups[row];
    for (const double value : chart.values[row]) out += value < 0 ? " NaN" : fmt::format(" {:.6g}", value);
    out += "\n";
  }
  out += fmt::format("EOD\nset title {} noenhanced\nset ylabel {}\n", gnuplot_quoted(chart.title),
                     gnuplot_quoted(chart.unit));
  out += chart.logarithmic ? "set logscale y\nset yrange [*:*]\n" : "unset logscale y\nset yrange [0:*]\n";
  return out + fmt::format("set output {}\nplot for [i=2:{}] ${} using i:xtic(1) title columnheader\n",
                           gnuplot_quoted(file), chart.series.size() + 1, data);
}

// The systems next to each other in the workloads of one experiment.
Chart compared(const KvReport& report, const std::string& experiment, bool p99) {
  Chart chart;
  chart.name = fmt::format("kv-{}{}", experiment, p99 ? "-p99" : "");
  chart.title =
      fmt::format("{}, {}: {} MiB of DRAM, {} MiB of data", experiment, p99 ? "99th percentile" : "throughput",
                  report.options.dram_bytes >> 20, report.options.data_bytes >> 20);
  chart.unit = p99 ? "us, logarithmic" : "op/s";
  chart.logarithmic = p99;
  for (const KvResult& one : report.results) {
    if (one.experiment == experiment)
      chart.put(one.workload, one.system, p99 ? one.median.p99_ns / 1e3 : one.median.ops_per_s);
  }
  return chart;
}

// The paper's figures: what threads and depth give and take, in memory and on a device, for small and large values.
struct PaperFigure {
  const char *mix, *suffix, *unit;
  double KvRun::* quantity;
};
constexpr double KvRun::* kOps = static_cast<double KvRun::*>(&RunResult::ops_per_s);
constexpr PaperFigure kPaperFigures[] = {
    {"set", "", "op/s", kOps},
    {"get", "", "op/s", kOps},
    {"set", "-ios", "IO/s", &KvRun::ios_per_s},
    {"get", "-ios", "IO/s", &KvRun::ios_per_s},
    {"set", "-cpus", "CPUs", &KvRun::cores},
    {"get", "-cpus", "CPUs", &KvRun::cores},
    {"next", "", "keys/s", kOps},
};

Chart paper(const KvReport& report, const PaperFigure& figure) {
  const std::string mix = figure.mix;
  Chart chart;
  chart.name = "kv-paper-" + mix + figure.suffix;
  chart.title =
      fmt::format("8-byte keys, {}: {} by {}", mix, figure.unit, mix == "next" ? "keys a call" : "threads x depth");
  chart.unit = fmt::format("{}, logarithmic", figure.unit);
  chart.logarithmic = true;
  for (const KvResult& one : report.results) {
    const size_t at = one.workload.find("_" + mix + "_");
    const double value = one.median.*figure.quantity;
    if (one.experiment == "paper" && at != std::string::npos && value > 0)  // in memory there are no IO/s
      chart.put(one.workload.substr(at + mix.size() + 2), one.workload.substr(0, at), value);
  }
  return chart;
}

}  // namespace

std::string plot_script(const KvReport& report, const std::string& directory, std::vector<std::string>* files) {
  std::vector<Chart> charts;
  for (const char* experiment : {"memory", "load", "cold", "overwrite", "ycsb", "scan", "growth"})
    charts.push_back(compared(report, experiment, false));
  for (const char* experiment : {"cold", "overwrite", "ycsb"}) charts.push_back(compared(report, experiment, true));
  for (const PaperFigure& figure : kPaperFigures) charts.push_back(paper(report, figure));
  std::string out = kStyle;
  for (const Chart& chart : charts) {
    if (chart.groups.empty()) continue;
    files->push_back(fmt::format("{}/{}.svg", directory, chart.name));
    out += chart_text(chart, files->back());
  }
  return out + "set output\n";
}

std::vector<std::string> draw_plots(const KvReport& report, const std::string& directory) {
  std::vector<std::string> files;
  const std::string script = plot_script(report, directory, &files);
  if (!files.empty()) run_gnuplot(directory, kScriptName, script);
  return files;
}

}  // namespace lunar::tools
