// SPDX-License-Identifier: Apache-2.0
// See watch.h.
#include "tools/dev/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {
constexpr auto kInterval = std::chrono::milliseconds(20);
}  // namespace

bool read_stats_file(const std::string& path, lunar_stats* stats) {
  struct {
    lunar_stats_file_header header;
    lunar_stats stats;
  } file;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool whole = false;
  for (int attempt = 0; attempt < 20 && !whole; ++attempt) {
    file = {};
    lunar_stats_file_header after{};
    const ssize_t got = pread(fd, &file, sizeof file, 0);
    if (got < static_cast<ssize_t>(sizeof after) || memcmp(file.header.magic, "LUNARST1", 8) != 0 ||
        pread(fd, &after, sizeof after, 0) != sizeof after)
      break;
    const size_t bytes = std::min<size_t>(file.header.stats_bytes, sizeof *stats);
    whole = file.header.sequence == after.sequence && after.sequence % 2 == 0 &&
            got >= static_cast<ssize_t>(sizeof after + bytes);
    if (!whole) usleep(200);
  }
  close(fd);
  if (whole) *stats = file.stats;
  return whole;
}

Watch::Watch(pid_t server, std::string stats_path, const MemoryCgroup* group)
    : server_(server),
      stats_path_(std::move(stats_path)),
      group_(group),
      thread_([this] { loop(); }) {}

Watch::~Watch() {
  stop_.store(true);
  thread_.join();
}

void Watch::sample() {
  const uint64_t resident = process_memory(server_, "VmRSS"),
                 peak = process_memory(server_, "VmHWM");
  const uint64_t group = group_ != nullptr ? group_->usage_bytes() : 0;
  const uint64_t group_peak = group_ != nullptr ? group_->peak_bytes() : 0;
  lunar_stats stats{};
  const bool has_stats = !stats_path_.empty() && read_stats_file(stats_path_, &stats);
  const std::lock_guard<std::mutex> guard(mutex_);
  sample_.resident_bytes = resident;
  sample_.resident_peak_bytes = std::max({sample_.resident_peak_bytes, resident, peak});
  sample_.group_bytes = group;
  sample_.group_peak_bytes = std::max({sample_.group_peak_bytes, group, group_peak});
  if (has_stats) {
    sample_.has_stats = true;
    sample_.stats = stats;
  }
}

Sample Watch::now() {
  sample();
  const std::lock_guard<std::mutex> guard(mutex_);
  return sample_;
}

void Watch::loop() {
  while (!stop_.load()) {
    if (interrupted()) {
      kill(server_, SIGKILL);  // a child, which is reaped only after this thread has ended
      return;
    }
    sample();
    std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace lunar::tools
