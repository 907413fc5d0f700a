// SPDX-License-Identifier: Apache-2.0
// One measurement of any bench, and its form as a line of a child process: "result NAME=NUMBER
// ...".
// Threading: plain data.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>

namespace lunar::tools {

// Not measured, or not known.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Counts are doubles, so that all quantities are handled alike.
struct RunResult {
  double ops = 0, seconds = 0, ops_per_s = 0;
  double mean_ns = 0, p50_ns = 0, p99_ns = 0, p999_ns = 0, max_ns = 0;
  double cpu_s = 0;          // of the process (redis: of the servers and their reaped children)
  double machine_cpu_s = 0;  // of the machine
  double cpu_us_per_op = 0;  // machine_cpu_s per operation, for the _cpu ratio
  double disk_read_bytes = kNone, disk_written_bytes = kNone;  // moved by the device
  // lower bounds from the workload and the memory limit
  double must_read_bytes = 0, must_write_bytes = 0;
  double mismatches = 0;  // reads that did not find what was written
  double reads = kNone, writes = kNone;
  // fault
  double major_faults = kNone;  // of the kernel (swap) or of Lunar's pager
  // superpipe
  double kiops_per_cpu = kNone;  // thousand operations per CPU second of the machine
  // redis
  double generator_cpu_s = kNone;                      // of the load generator's thread
  double server_read_bytes = kNone;                    // disk bytes that the server itself read
  double job_s = kNone, fork_us = kNone;               // save, expire: the server's job
  double cold_ops_per_s = kNone, cold_p99_ns = kNone;  // of the clients that read cold keys
  double expired_ahead = kNone;                        // keys that the gate has expired
  double lag_s = kNone;  // replica: time to catch up after the clients stopped
  // kv
  double space = kNone;          // bytes of the disk in use, per byte of keys and values
  double amplification = kNone;  // bytes written to the disk, per byte of keys and values set
  double index_bytes = kNone;    // DRAM for a load without its pairs, per key
  std::string error;             // the first error; "": none. A child does not send it
};

struct RunField {
  const char* name;
  double RunResult::* member;
};
#define LUNAR_RUN_FIELD(name) {#name, &RunResult::name}
inline constexpr RunField kRunFields[] = {
    LUNAR_RUN_FIELD(ops),
    LUNAR_RUN_FIELD(seconds),
    LUNAR_RUN_FIELD(ops_per_s),
    LUNAR_RUN_FIELD(mean_ns),
    LUNAR_RUN_FIELD(p50_ns),
    LUNAR_RUN_FIELD(p99_ns),
    LUNAR_RUN_FIELD(p999_ns),
    LUNAR_RUN_FIELD(max_ns),
    LUNAR_RUN_FIELD(cpu_s),
    LUNAR_RUN_FIELD(machine_cpu_s),
    LUNAR_RUN_FIELD(cpu_us_per_op),
    LUNAR_RUN_FIELD(disk_read_bytes),
    LUNAR_RUN_FIELD(disk_written_bytes),
    LUNAR_RUN_FIELD(must_read_bytes),
    LUNAR_RUN_FIELD(must_write_bytes),
    LUNAR_RUN_FIELD(mismatches),
    LUNAR_RUN_FIELD(reads),
    LUNAR_RUN_FIELD(writes),
    LUNAR_RUN_FIELD(major_faults),
    LUNAR_RUN_FIELD(kiops_per_cpu),
    LUNAR_RUN_FIELD(generator_cpu_s),
    LUNAR_RUN_FIELD(server_read_bytes),
    LUNAR_RUN_FIELD(job_s),
    LUNAR_RUN_FIELD(fork_us),
    LUNAR_RUN_FIELD(cold_ops_per_s),
    LUNAR_RUN_FIELD(cold_p99_ns),
    LUNAR_RUN_FIELD(expired_ahead),
    LUNAR_RUN_FIELD(lag_s),
    LUNAR_RUN_FIELD(space),
    LUNAR_RUN_FIELD(amplification),
    LUNAR_RUN_FIELD(index_bytes),
};
#undef LUNAR_RUN_FIELD

inline std::string format_run(const RunResult& run) {
  std::ostringstream out;
  out.precision(17);
  out << "result";
  for (const RunField& field : kRunFields)
    if (!std::isnan(run.*field.member)) out << ' ' << field.name << '=' << run.*field.member;
  return out.str();
}

// False: the line is not a result.
inline bool parse_run(const std::string& line, RunResult* run) {
  std::istringstream words(line);
  std::string word;
  if (!(words >> word) || word != "result") return false;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    for (const RunField& field : kRunFields)
      if (word.compare(0, equals, field.name) == 0)
        run->*field.member = std::stod(word.substr(equals + 1));
  }
  return true;
}

}  // namespace lunar::tools
