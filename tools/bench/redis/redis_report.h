// SPDX-License-Identifier: Apache-2.0
// The options of `lunar bench redis` and its results: medians over rounds, ratios, the JSON object and the table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/memory_report.h"
#include "tools/bench/redis/workloads.h"

namespace lunar::tools {

struct RedisOptions : MemoryOptions {
  RedisOptions() { systems = {"lunar", "run", "swap"}; }
  size_t value_bytes = 1024;
  unsigned connections = 50, pipeline = 16;
  double rate = 2000;
  std::string redis_server, module, plot, swap = "file";
  bool fits = false, compressible = false;
  unsigned shards = 1;
};

// cpu_s is the server's (all threads, and children it has reaped); of hotcold and paced, latencies and operations are
// those of the hot clients.
struct RedisRun : RunResult {
  double generator_cpu_s = 0;                  // of the load generator's one thread
  double server_read_bytes = -1;               // of the disk's, what the server had read; -1: not known
  double job_s = 0, fork_us = 0;               // save, expire: the server's job
  double cold_ops_per_s = 0, cold_p99_ns = 0;  // hotcold, paced, collections: the clients that read cold keys
  double expired_ahead = 0;                    // expire: keys that the gate has expired
  double lag_s = 0;                            // replica: what it was behind when the clients stopped
  std::string first_mismatch;
};
struct RedisRunField {
  const char* name;
  double RedisRun::* member;
};
inline constexpr RedisRunField kRedisRunFields[] = {
    {"generator_cpu_s", &RedisRun::generator_cpu_s},
    {"job_s", &RedisRun::job_s},
    {"fork_us", &RedisRun::fork_us},
    {"cold_ops_per_s", &RedisRun::cold_ops_per_s},
    {"cold_p99_ns", &RedisRun::cold_p99_ns},
    {"expired_ahead", &RedisRun::expired_ahead},
    {"lag_s", &RedisRun::lag_s},
    {"server_read_bytes", &RedisRun::server_read_bytes},
};

RedisRun median_of(const std::vector<RedisRun>& runs);

struct RedisResult : MemoryResult<RedisRun> {
  unsigned pipeline = 1, rounds = 1;
};

struct RedisReport : MemoryReport<RedisOptions, RedisResult> {
  std::string redis_version;
  std::string swap_state;  // of swap's swap
};

// `ours` divided by `baseline`, keys WORKLOAD_tCONNECTIONS_QUANTITY (put_round_ratios).
Ratios ratios_of(const RedisReport& report, const std::string& ours, const std::string& baseline);
std::string report_json(const RedisReport& report);
std::string report_table(const RedisReport& report);

}  // namespace lunar::tools
