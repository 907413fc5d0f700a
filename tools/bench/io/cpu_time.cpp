// SPDX-License-Identifier: Apache-2.0
// See cpu_time.h.
// Threading: free functions. May not be used by runtime/ (it allocates).
#include "tools/bench/io/cpu_time.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tools/support/text_file.h"

namespace lunar::tools {

std::optional<CpuTimes> parse_cpu_times(std::string_view text, long ticks_per_second) {
  std::istringstream words{std::string(text.substr(0, text.find('\n')))};
  std::string name;
  double user, nice, system, idle, iowait, irq, softirq, steal = 0;
  if (!(words >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq) ||
      name != "cpu")
    return std::nullopt;
  words >> steal;
  const auto ticks = static_cast<double>(ticks_per_second);
  return CpuTimes{(user + nice) / ticks, (idle + iowait + steal) / ticks};
}

CpuTimes read_cpu_times() {
  const auto text = read_text("/proc/stat");
  return text ? parse_cpu_times(*text, sysconf(_SC_CLK_TCK)).value_or(CpuTimes{}) : CpuTimes{};
}

double cpu_between(const CpuTimes& before, const CpuTimes& after, double elapsed_s, long cpus) {
  return std::max(0.0, elapsed_s * static_cast<double>(cpus) - (after.idle - before.idle));
}

std::optional<double> parse_process_user_seconds(std::string_view text, long ticks_per_second) {
  const size_t name_end = text.rfind(')');  // the name may hold blanks and brackets
  if (name_end == std::string_view::npos) return std::nullopt;
  std::istringstream words{std::string(text.substr(name_end + 1))};
  std::string word;
  for (int field = 3; field < 14; ++field) words >> word;
  double ticks;
  if (!(words >> ticks)) return std::nullopt;
  return ticks / static_cast<double>(ticks_per_second);
}

double process_user_seconds(int pid) {
  const auto text = read_text(fmt::format("/proc/{}/stat", pid));
  return text ? parse_process_user_seconds(*text, sysconf(_SC_CLK_TCK)).value_or(0) : 0;
}

}  // namespace lunar::tools
