// SPDX-License-Identifier: Apache-2.0
// See report.h.
#include "tools/bench/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "sys/proc.h"
#include "tools/bench/setup_journal.h"
#include "tools/support/json_writer.h"
#include "tools/support/process.h"
#include "tools/support/text_file.h"
#include "tools/support/text_table.h"
#include "tools/support/version.h"

namespace lunar::tools {

namespace {
constexpr double kMovedShareMin = 0.99;

std::string cpu_model() {
  std::istringstream lines(read_text("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.compare(0, 10, "model name") == 0 || line.compare(0, 4, "cpu\t") == 0)
      return trimmed(line.substr(line.find(':') + 1));
  return {};
}

std::string today() {
  const time_t now = time(nullptr);
  char text[16];
  tm parts{};
  strftime(text, sizeof text, "%F", gmtime_r(&now, &parts));
  return text;
}

void write_host(JsonWriter& json) {
  utsname names{};
  uname(&names);
  const auto file = [](const char* path) { return trimmed(read_text(path).value_or("")); };
  json.key("host")
      .open('{')
      .field("kernel", std::string(names.release))
      .field("machine", std::string(names.machine));
  json.field("cpu", cpu_model()).field("cpus", sysconf(_SC_NPROCESSORS_ONLN));
  json.field("memory_bytes", sys::machine_memory_bytes("MemTotal"))
      .field("page_bytes", sysconf(_SC_PAGESIZE));
  json.field("lunar", version_text()).field("date", today()).field("thp", file(kThpPath));
  json.field("zswap", file(kZswapPath) + " " + file("/sys/module/zswap/parameters/compressor"));
  json.field("swappiness", file("/proc/sys/vm/swappiness")).close('}');
}

template <class Map>
void write_map(JsonWriter& json, const char* name, const Map& map) {
  json.key(name).open('{');
  for (const auto& [key, value] : map) json.field(key, value);
  json.close('}');
}

void write_row(JsonWriter& json, const BenchRow& row) {
  json.open('{').field("system", row.system).field("workload", row.workload);
  for (const auto& [name, text] :
       {std::pair{"experiment", &row.experiment}, std::pair{"place", &row.place},
        std::pair{"durability", &row.durability}})
    if (!text->empty()) json.field(name, *text);
  json.field("threads", row.threads).field("depth", row.depth);
  if (row.value_bytes > 0) json.field("value_bytes", row.value_bytes);
  if (row.page_cluster >= 0) json.field("page_cluster", row.page_cluster);
  const RunResult middle = row.middle();
  for (const RunField& field : kRunFields)
    if (!std::isnan(middle.*field.member)) json.field(field.name, middle.*field.member);
  json.field("spread", row.spread()).field("rounds", row.runs.size());
  json.key("rounds_ops_per_s").open('[');
  for (const RunResult& run : row.runs) json.value(run.ops_per_s);
  json.close(']').close('}');
}

void write_target(JsonWriter& json, const BenchTarget& target) {
  json.open('{').field("name", target.name).field("what", target.what);
  json.field(target.at_most ? "at_most" : "at_least", target.goal)
      .field("measured", !target.rounds.empty());
  if (!target.rounds.empty()) {
    const auto [least, most] = std::minmax_element(target.rounds.begin(), target.rounds.end());
    json.field("figure", target.figure())
        .field("least", *least)
        .field("most", *most)
        .field("met", target.met());
  }
  json.close('}');
}

// A compared quantity: its name in keys, and in lines (nullptr: not in lines).
struct Quantity {
  const char *name, *line_name;
  double RunResult::* member;
};
constexpr Quantity kQuantities[] = {
    {"ops", "op/s", &RunResult::ops_per_s},
    {"mean", "mean", &RunResult::mean_ns},
    {"p50", nullptr, &RunResult::p50_ns},
    {"p99", "p99", &RunResult::p99_ns},
    {"p999", nullptr, &RunResult::p999_ns},
    {"cpu", "CPU/op", &RunResult::cpu_us_per_op},
    {"kiops_per_cpu", "op/s per CPU", &RunResult::kiops_per_cpu},
    {"time", "time of the job", &RunResult::job_s},
    {"cold_ops", "cold op/s", &RunResult::cold_ops_per_s},
};

std::vector<double> values_of(const std::vector<RunResult>& runs, double RunResult::* member) {
  std::vector<double> out;
  for (const RunResult& run : runs) out.push_back(run.*member);
  return out;
}

// Cells of the table; "": nothing to show.
std::string figure(double value) { return std::isnan(value) ? std::string() : number_text(value); }
std::string time_of(double ns) { return ns > 0 ? duration_text(ns) : std::string(); }

std::string targets_table(const std::vector<BenchTarget>& targets) {
  Table table({"aim", ">target", ">figure", "least to most", "met", "what"});
  for (const BenchTarget& one : targets) {
    const std::string goal = (one.at_most ? "<= " : ">= ") + number_text(one.goal);
    if (one.rounds.empty()) {
      table.add({one.name, goal, "-", "not measured", "", one.what});
      continue;
    }
    const auto [least, most] = std::minmax_element(one.rounds.begin(), one.rounds.end());
    table.add({one.name, goal, number_text(one.figure()),
               number_text(*least) + " to " + number_text(*most), one.met() ? "yes" : "NO",
               one.what});
  }
  return "\n" + table.text();
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

RunResult median_of(const std::vector<RunResult>& runs) {
  RunResult result;
  for (const RunField& field : kRunFields) {
    std::vector<double> values = values_of(runs, field.member);
    std::erase_if(values, [](double value) { return std::isnan(value); });
    if (!values.empty()) result.*field.member = median(values);
  }
  return result;
}

double BenchRow::spread() const {
  if (runs.empty()) return 0;
  const std::vector<double> rates = values_of(runs, &RunResult::ops_per_s);
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  const double middle = median(rates);
  return middle > 0 ? (*most - *least) / middle : 0;
}

std::string duration_text(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.1f} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.3f} s", ns / 1e9);
}

std::string number_text(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
}

void put_latencies(RunResult* run, const Histogram& latencies, double seconds) {
  run->ops = static_cast<double>(latencies.count());
  run->seconds = seconds;
  run->ops_per_s = seconds > 0 ? run->ops / seconds : 0;
  run->mean_ns = latencies.mean();
  run->p50_ns = latencies.percentile(0.50);
  run->p99_ns = latencies.percentile(0.99);
  run->p999_ns = latencies.percentile(0.999);
  run->max_ns = static_cast<double>(latencies.max());
}

void put_round_ratios(Ratios* ratios, const std::string& key, const std::vector<double>& ours,
                      const std::vector<double>& theirs) {
  std::vector<double> quotients;
  for (size_t i = 0; i < ours.size() && i < theirs.size(); ++i)
    if (ours[i] > 0 && theirs[i] > 0) quotients.push_back(ours[i] / theirs[i]);
  if (quotients.empty()) return;
  (*ratios)[key] = median(quotients);
  (*ratios)[key + "_min"] = *std::min_element(quotients.begin(), quotients.end());
  (*ratios)[key + "_max"] = *std::max_element(quotients.begin(), quotients.end());
}

std::string ratio_text(const Ratios& ratios, const std::string& key) {
  const auto found = ratios.find(key);
  if (found == ratios.end()) return "";
  return fmt::format("{:.3f}x ({:.3f} to {:.3f})", found->second, ratios.at(key + "_min"),
                     ratios.at(key + "_max"));
}

void BenchReport::add(BenchRow row, const std::vector<RunResult>& runs) {
  if (runs.empty()) return;
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const BenchRow& one) {
    return one.system == row.system && one.experiment == row.experiment &&
           one.workload == row.workload && one.threads == row.threads && one.depth == row.depth;
  });
  BenchRow& into = found != rows.end() ? *found : rows.emplace_back(std::move(row));
  into.runs.insert(into.runs.end(), runs.begin(), runs.end());
}

const BenchRow* BenchReport::find(const std::string& system, const std::string& workload,
                                  unsigned threads) const {
  for (const BenchRow& one : rows)
    if (one.system == system && one.workload == workload && one.threads == threads) return &one;
  return nullptr;
}

void BenchReport::compare(const std::string& baseline, const std::string& stem,
                          const BenchRow& ours, const BenchRow& theirs) {
  Ratios& all = ratios[baseline];
  std::string line;
  for (const Quantity& one : kQuantities) {
    put_round_ratios(&all, stem + one.name, values_of(ours.runs, one.member),
                     values_of(theirs.runs, one.member));
    const std::string text = one.line_name == nullptr ? "" : ratio_text(all, stem + one.name);
    if (!text.empty())
      line += fmt::format("{} {} {}", line.empty() ? "" : ",", text, one.line_name);
  }
  if (all.empty()) ratios.erase(baseline);
  if (!line.empty())
    lines.push_back(fmt::format("{}/{} {}:{}", ours.system, theirs.system, stem, line));
}

void BenchReport::check(const std::string& what, const RunResult& run) {
  for (const std::string& failure : run_failures(run))
    failures.push_back(
        fmt::format("{}: {}{}{}", what, failure, run.error.empty() ? "" : ": first: ", run.error));
}

bool BenchReport::wants(const std::vector<std::string>& systems, const std::string& system) const {
  return skipped.count(system) == 0 &&
         std::find(systems.begin(), systems.end(), system) != systems.end();
}

void BenchReport::skip_unasked(const std::vector<std::string>& systems,
                               const std::vector<std::string>& all) {
  for (const std::string& system : all)
    if (!wants(systems, system)) skipped.emplace(system, "not asked for (--systems)");
}

void BenchReport::attempt(const std::string& system, const std::function<void()>& work) {
  try {
    check_interrupted();
    work();
  } catch (const std::runtime_error& error) {
    const std::string why = error.what();
    skipped[system] = why.substr(0, why.find('\n'));
    // A store that was not installed at build time is not a failure.
    if (why.find("built without") == std::string::npos)
      failures.push_back(fmt::format("{}: {}", system, why));
  }
}

std::string report_json(const BenchReport& report) {
  JsonWriter json;
  json.open('{').field("bench", report.bench);
  write_host(json);
  write_map(json, "options", report.options);
  write_map(json, "sizes", report.sizes);
  write_map(json, "notes", report.notes);
  json.key("results").open('[');
  for (const BenchRow& row : report.rows) write_row(json, row);
  json.close(']').key("targets").open('[');
  for (const BenchTarget& target : report.targets) write_target(json, target);
  json.close(']').key("ratios").open('{');
  for (const auto& [baseline, ratios] : report.ratios) write_map(json, baseline.c_str(), ratios);
  json.close('}');
  write_map(json, "skipped", report.skipped);
  write_map(json, "memory_peak_bytes", report.peak_bytes);
  json.key("failures").open('[');
  for (const std::string& failure : report.failures) json.value(failure);
  json.close(']').close('}');
  return json.text();
}

namespace {

struct Column {
  const char* head;
  std::string (*text)(const BenchRow& row, const RunResult& run);  // "": an empty cell
};
// The table omits a column whose cells are all empty.
const Column kColumns[] = {
    {"experiment", [](const BenchRow& row, const RunResult&) { return row.experiment; }},
    {"workload", [](const BenchRow& row, const RunResult&) { return row.workload; }},
    {"system", [](const BenchRow& row, const RunResult&) { return row.system; }},
    {"place", [](const BenchRow& row, const RunResult&) { return row.place; }},
    {"durable", [](const BenchRow& row, const RunResult&) { return row.durability; }},
    {">value",
     [](const BenchRow& row, const RunResult&) {
       return row.value_bytes > 0 ? std::to_string(row.value_bytes) : "";
     }},
    {">thr", [](const BenchRow& row, const RunResult&) { return std::to_string(row.threads); }},
    {">depth", [](const BenchRow& row, const RunResult&) { return std::to_string(row.depth); }},
    {">op/s", [](const BenchRow&,
                 const RunResult& run) { return run.ops > 0 ? number_text(run.ops_per_s) : ""; }},
    {">mean", [](const BenchRow&, const RunResult& run) { return time_of(run.mean_ns); }},
    {">p50", [](const BenchRow&, const RunResult& run) { return time_of(run.p50_ns); }},
    {">p99", [](const BenchRow&, const RunResult& run) { return time_of(run.p99_ns); }},
    {">p99.9", [](const BenchRow&, const RunResult& run) { return time_of(run.p999_ns); }},
    {">CPU/op",
     [](const BenchRow&, const RunResult& run) { return time_of(run.cpu_us_per_op * 1e3); }},
    {">CPUs",
     [](const BenchRow&, const RunResult& run) {
       return run.seconds > 0 ? figure(run.cpu_s / run.seconds) : "";
     }},
    {">client CPUs",
     [](const BenchRow&, const RunResult& run) {
       return figure(run.generator_cpu_s / run.seconds);
     }},
    {">kop/s per CPU",
     [](const BenchRow&, const RunResult& run) { return figure(run.kiops_per_cpu); }},
    {">MiB read",
     [](const BenchRow&, const RunResult& run) { return figure(run.disk_read_bytes / 1048576); }},
    {">written per byte",
     [](const BenchRow&, const RunResult& run) { return figure(run.amplification); }},
    {">space per byte", [](const BenchRow&, const RunResult& run) { return figure(run.space); }},
    {">DRAM per key",
     [](const BenchRow&, const RunResult& run) { return figure(run.index_bytes); }},
    {">job",
     [](const BenchRow&, const RunResult& run) {
       return run.job_s > 0 ? duration_text(run.job_s * 1e9) : "";
     }},
    {">cold op/s",
     [](const BenchRow&, const RunResult& run) { return figure(run.cold_ops_per_s); }},
    {">cold p99", [](const BenchRow&, const RunResult& run) { return time_of(run.cold_p99_ns); }},
    {">spread", [](const BenchRow& row,
                   const RunResult&) { return fmt::format("{:.0f}%", 100 * row.spread()); }},
    {">page-cluster",
     [](const BenchRow& row, const RunResult&) {
       return row.page_cluster >= 0 ? std::to_string(row.page_cluster) : "";
     }},
};

}  // namespace

std::string report_table(const BenchReport& report) {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> cells(report.rows.size());
  for (const Column& column : kColumns) {
    std::vector<std::string> texts;
    for (const BenchRow& row : report.rows) texts.push_back(column.text(row, row.middle()));
    if (std::all_of(texts.begin(), texts.end(),
                    [](const std::string& text) { return text.empty(); }))
      continue;
    heads.push_back(column.head);
    for (size_t i = 0; i < texts.size(); ++i) cells[i].push_back(texts[i]);
  }
  std::string out;
  if (!heads.empty()) {
    Table table(heads);
    for (auto& row : cells) table.add(std::move(row));
    out = table.text();
  }
  if (!report.lines.empty()) out += "\nmedian of the rounds' ratios (least to most):\n";
  for (const std::string& line : report.lines) out += line + "\n";
  if (!report.targets.empty()) out += targets_table(report.targets);
  for (const auto& [name, text] : report.notes) out += fmt::format("{}: {}\n", name, text);
  for (const auto& [system, bytes] : report.peak_bytes)
    out += fmt::format("memory peak: {}: {:.0f} MiB\n", system, bytes / 1048576);
  for (const auto& [what, reason] : report.skipped)
    out += fmt::format("skipped: {}: {}\n", what, reason);
  for (const std::string& failure : report.failures) out += fmt::format("FAILED: {}\n", failure);
  return out;
}

std::vector<std::string> run_failures(const RunResult& run) {
  std::vector<std::string> failures;
  if (run.mismatches > 0)
    failures.push_back(fmt::format("{:.0f} reads did not find what was written", run.mismatches));
  const auto moved = [&](const char* what, double did, double must) {
    if (did < kMovedShareMin * must)  // false if it is not known
      failures.push_back(
          fmt::format("the disk {} {:.0f} MiB, but the work needs at least {:.0f} MiB: not "
                      "measured on the disk",
                      what, did / 1048576, must / 1048576));
  };
  moved("read", run.disk_read_bytes, run.must_read_bytes);
  moved("wrote", run.disk_written_bytes, run.must_write_bytes);
  return failures;
}

}  // namespace lunar::tools
