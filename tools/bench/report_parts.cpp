// SPDX-License-Identifier: Apache-2.0
// See report_parts.h.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/report_parts.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "tools/bench/setup_journal.h"
#include "tools/support/procfs.h"
#include "tools/support/text_file.h"
#include "tools/support/version.h"

namespace lunar::tools {

namespace {
constexpr double kMovedShareMin = 0.99;

std::string cpu_model() {
  std::istringstream lines(read_text("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 10, "model name") == 0 || line.compare(0, 4, "cpu\t") == 0) {
      return trimmed(line.substr(line.find(':') + 1));
    }
  }
  return {};
}

std::string today() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

std::string duration_text(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.1f} us", ns / 1e3);
  return fmt::format("{:.2f} ms", ns / 1e6);
}

void write_host(JsonWriter& json) {
  utsname names{};
  uname(&names);
  json.key("host").open('{').field("kernel", std::string(names.release)).field("machine", std::string(names.machine));
  json.field("cpu", cpu_model()).field("cpus", sysconf(_SC_NPROCESSORS_ONLN));
  json.field("memory_bytes", machine_memory("MemTotal")).field("page_bytes", sysconf(_SC_PAGESIZE));
  json.field("lunar", version_text()).field("date", today());
  json.field("thp", trimmed(read_text(kThpPath).value_or("")));
  json.field("zswap", trimmed(read_text(kZswapPath).value_or("")) + " " +
                          trimmed(read_text("/sys/module/zswap/parameters/compressor").value_or("")));
  json.field("swappiness", trimmed(read_text("/proc/sys/vm/swappiness").value_or(""))).close('}');
}

void write_end(JsonWriter& json, const std::map<std::string, std::string>& skipped,
               const std::map<std::string, double>& peak_bytes, const std::vector<std::string>& failures) {
  json.key("skipped").open('{');
  for (const auto& [what, reason] : skipped) json.field(what, reason);
  json.close('}').key("memory_peak_bytes").open('{');
  for (const auto& [system, bytes] : peak_bytes) json.field(system, bytes);
  json.close('}').key("failures").open('[');
  for (const std::string& failure : failures) json.value(failure);
  json.close(']').close('}');
}

void write_ratios(JsonWriter& json, const std::map<std::string, Ratios>& of_baselines) {
  json.key("ratios").open('{');
  for (const auto& [baseline, ratios] : of_baselines) {
    if (ratios.empty()) continue;
    json.key(baseline).open('{');
    for (const auto& [key, value] : ratios) json.field(key, value);
    json.close('}');
  }
  json.close('}');
}

std::string end_lines(const std::map<std::string, std::string>& skipped, const std::vector<std::string>& failures) {
  std::string out;
  for (const auto& [what, reason] : skipped) out += fmt::format("skipped: {}: {}\n", what, reason);
  for (const std::string& failure : failures) out += fmt::format("FAILED: {}\n", failure);
  return out;
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
  const auto end = [&](const char* which) {
    return ratios.count(key + which) != 0 ? ratios.at(key + which) : found->second;
  };
  return fmt::format("{:.2f}x ({:.2f} to {:.2f})", found->second, end("_min"), end("_max"));
}

RunResult median_of(const std::vector<RunResult>& runs) {
  RunResult result;
  for (const RunField& field : kRunFields) {
    std::vector<double> values;
    for (const RunResult& run : runs) values.push_back(run.*field.member);
    result.*field.member = values.empty() ? 0 : median(values);
  }
  return result;
}

std::vector<std::string> run_failures(const RunResult& run) {
  std::vector<std::string> failures;
  if (run.mismatches > 0) failures.push_back(fmt::format("{:.0f} reads did not find what was written", run.mismatches));
  const auto moved = [&](const char* what, double did, double must) {
    if (did >= 0 && did < kMovedShareMin * must) {
      failures.push_back(
          fmt::format("the disk {} {:.0f} MiB where the work needs at least {:.0f} MiB: not measured on the disk", what,
                      did / 1048576, must / 1048576));
    }
  };
  moved("read", run.disk_read_bytes, run.must_read_bytes);
  moved("wrote", run.disk_written_bytes, run.must_write_bytes);
  return failures;
}

}  // namespace lunar::tools
