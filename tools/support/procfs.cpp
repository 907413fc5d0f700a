// SPDX-License-Identifier: Apache-2.0
// See procfs.h.
#include "tools/support/procfs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <sstream>

#include "tools/support/clock.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
constexpr uint64_t kSectorBytes = 512;  // the unit of /sys/block for all devices

// The device in the mount table, for file systems with an anonymous st_dev (btrfs).
std::string mount_source(dev_t device) {
  const auto text = read_text("/proc/self/mountinfo");
  if (!text) return {};
  const std::string wanted = fmt::format("{}:{}", major(device), minor(device));
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, dev, word, type, source;
    words >> id >> parent >> dev;
    if (dev != wanted) continue;
    while (words >> word && word != "-") {}
    if (words >> type >> source) return source;
  }
  return {};
}

std::optional<uint64_t> process_io(pid_t pid, std::string_view wanted) {
  std::istringstream words{read_text(fmt::format("/proc/{}/io", pid)).value_or("")};
  std::string name;
  for (uint64_t value; words >> name >> value;) {
    if (name == wanted) return value;
  }
  return std::nullopt;
}
}  // namespace

std::optional<DiskBytes> parse_disk_stat(std::string_view text) {
  std::istringstream words{std::string(text)};
  uint64_t column[7];
  for (uint64_t& value : column) {
    if (!(words >> value)) return std::nullopt;
  }
  return DiskBytes{column[2] * kSectorBytes, column[6] * kSectorBytes};
}

std::string disk_stat_path(const std::string& path, std::string* why) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) {
    *why = fmt::format("{} cannot be examined", path);
    return {};
  }
  std::string found =
      fmt::format("/sys/dev/block/{}:{}/stat", major(info.st_dev), minor(info.st_dev));
  if (access(found.c_str(), R_OK) == 0) return found;
  const std::string source = mount_source(info.st_dev);
  struct stat device{};
  if (!source.empty() && stat(source.c_str(), &device) == 0 && S_ISBLK(device.st_mode)) {
    found = fmt::format("/sys/dev/block/{}:{}/stat", major(device.st_rdev), minor(device.st_rdev));
    if (access(found.c_str(), R_OK) == 0) return found;
  }
  *why = fmt::format("the file system of {} names no block device of its own", path);
  return {};
}

std::optional<DiskBytes> read_disk(const std::string& stat_path) {
  if (stat_path.empty()) return std::nullopt;
  const auto text = read_text(stat_path);
  return text ? parse_disk_stat(*text) : std::nullopt;
}

std::optional<double> parse_idle_seconds(std::string_view text, long ticks_per_second) {
  std::istringstream words{std::string(text.substr(0, text.find('\n')))};
  std::string name;
  double user, nice, system, idle, iowait, irq, softirq, steal = 0;
  if (!(words >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq) ||
      name != "cpu")
    return std::nullopt;
  words >> steal;
  return (idle + iowait + steal) / static_cast<double>(ticks_per_second);
}

double machine_cpu_seconds() {
  const std::string text = read_text("/proc/stat").value_or("");
  return now_seconds() * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)) -
         parse_idle_seconds(text, sysconf(_SC_CLK_TCK)).value_or(0);
}

std::optional<double> parse_process_cpu_seconds(std::string_view text, long ticks_per_second) {
  const size_t name_end = text.rfind(')');  // the name may hold blanks and brackets
  if (name_end == std::string_view::npos) return std::nullopt;
  std::istringstream words{std::string(text.substr(name_end + 1))};
  std::string word;
  for (int field = 3; field < 14; ++field) words >> word;
  int64_t ticks[4];  // utime, stime, and the same of reaped children
  for (int64_t& one : ticks) {
    if (!(words >> one)) return std::nullopt;
  }
  return static_cast<double>(ticks[0] + ticks[1] + ticks[2] + ticks[3]) /
         static_cast<double>(ticks_per_second);
}

double process_cpu_seconds(pid_t pid) {
  const auto text = read_text(fmt::format("/proc/{}/stat", pid));
  return text ? parse_process_cpu_seconds(*text, sysconf(_SC_CLK_TCK)).value_or(0) : 0;
}

std::optional<uint64_t> process_read_bytes(pid_t pid) { return process_io(pid, "read_bytes:"); }
std::optional<uint64_t> process_written_bytes(pid_t pid) { return process_io(pid, "write_bytes:"); }

std::optional<uint64_t> parse_status_bytes(std::string_view text, std::string_view name) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= name.size() || line[name.size()] != ':' ||
        line.compare(0, name.size(), name) != 0)
      continue;
    std::istringstream words(line.substr(name.size() + 1));
    uint64_t kib;
    if (words >> kib) return kib * 1024;
  }
  return std::nullopt;
}

uint64_t process_memory(pid_t pid, std::string_view name) {
  const auto text = read_text(fmt::format("/proc/{}/status", pid));
  return text ? parse_status_bytes(*text, name).value_or(0) : 0;
}

}  // namespace lunar::tools
