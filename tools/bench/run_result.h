// SPDX-License-Identifier: Apache-2.0
// What the bench and its children say to each other, one line a message:
//
//   to the child   fill THREADS | run WORKLOAD THREADS SECONDS WARM_SECONDS WRITE_PERCENT SEED | verify | quit
//   from it        ready | result NAME=NUMBER ... | error TEXT
//
// Threading: plain data.
#pragma once
#include <array>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace lunar::tools {

// One measurement. Counts are doubles so that medians and lines treat all alike.
struct RunResult {
  double ops = 0, seconds = 0, ops_per_s = 0;
  double mean_ns = 0, p50_ns = 0, p99_ns = 0, p999_ns = 0, max_ns = 0;
  double cpu_s = 0;                                      // of the process, all its threads
  double machine_cpu_s = 0;                              // of the machine (/proc/stat)
  double cpu_us_per_op = 0;                              // machine_cpu_s per operation: what the _cpu ratio compares
  double disk_read_bytes = -1, disk_written_bytes = -1;  // what the device moved; -1: the host does not tell
  double must_read_bytes = 0, must_write_bytes = 0;      // lower bounds from the workload and the memory limit
  double mismatches = 0;                                 // reads that did not find their stamp
  double major_faults = 0;                               // of the kernel (swap) or of Lunar's pager
};

struct RunField {
  const char* name;
  double RunResult::* member;
};
inline constexpr std::array<RunField, 17> kRunFields{{
    {"ops", &RunResult::ops},
    {"seconds", &RunResult::seconds},
    {"ops_per_s", &RunResult::ops_per_s},
    {"mean_ns", &RunResult::mean_ns},
    {"p50_ns", &RunResult::p50_ns},
    {"p99_ns", &RunResult::p99_ns},
    {"p999_ns", &RunResult::p999_ns},
    {"max_ns", &RunResult::max_ns},
    {"cpu_s", &RunResult::cpu_s},
    {"machine_cpu_s", &RunResult::machine_cpu_s},
    {"cpu_us_per_op", &RunResult::cpu_us_per_op},
    {"disk_read_bytes", &RunResult::disk_read_bytes},
    {"disk_written_bytes", &RunResult::disk_written_bytes},
    {"must_read_bytes", &RunResult::must_read_bytes},
    {"must_write_bytes", &RunResult::must_write_bytes},
    {"mismatches", &RunResult::mismatches},
    {"major_faults", &RunResult::major_faults},
}};

inline std::string format_run(const RunResult& run) {
  std::ostringstream out;
  out.precision(17);
  out << "result";
  for (const RunField& field : kRunFields) out << ' ' << field.name << '=' << run.*field.member;
  return out.str();
}

// False when the line is not a result.
inline bool parse_run(const std::string& line, RunResult* run) {
  std::istringstream words(line);
  std::string word;
  if (!(words >> word) || word != "result") return false;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    for (const RunField& field : kRunFields) {
      if (word.compare(0, equals, field.name) == 0) run->*field.member = std::stod(word.substr(equals + 1));
    }
  }
  return true;
}

enum class Workload { kUniform, kZipf, kSeq, kStride, kFill, kPrefetch };
inline constexpr std::array<std::string_view, 6> kWorkloadNames{"uniform", "zipf", "seq", "stride", "fill", "prefetch"};

// Shared by both backends of a pair, so that they do the same work.
inline constexpr uint64_t kPrefetchBatch = 64;  // pages a batch of the prefetch workload
inline constexpr uint64_t kStridePages = 16;    // step of the stride workload
inline constexpr double kZipfTheta = 0.99;      // YCSB's default

}  // namespace lunar::tools
