// SPDX-License-Identifier: Apache-2.0
// Samples the server while it works, and keeps the peaks: its resident set, its memory cgroup,
// Lunar's live counters. If the user interrupts the demo, it kills the server, so that no thread
// waits minutes for a reply.
// Threading: a thread of its own takes samples; now() may be called from any.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "lunar/lunar.h"
#include "tools/support/cgroup.h"

namespace lunar::tools {

struct Sample {
  uint64_t resident_bytes = 0, resident_peak_bytes = 0;  // of the server process
  uint64_t group_bytes = 0, group_peak_bytes = 0;        // of its cgroup; 0 without one
  bool has_stats = false;
  lunar_stats stats{};
};

// Reads the counters of a live counter file. False: there is no file, or it is not complete yet.
bool read_stats_file(const std::string& path, lunar_stats* stats);

class Watch {
 public:
  Watch(pid_t server, std::string stats_path, const MemoryCgroup* group);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Sample now();  // takes a new sample

 private:
  void loop();
  void sample();
  pid_t server_;
  std::string stats_path_;
  const MemoryCgroup* group_;
  std::mutex mutex_;
  Sample sample_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace lunar::tools
