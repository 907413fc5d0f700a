// SPDX-License-Identifier: Apache-2.0
// The workloads of `lunar bench redis` and its results: medians over rounds, ratios, the JSON object and the table.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/common_options.h"
#include "tools/bench/redis/dataset.h"
#include "tools/bench/report_parts.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// BASE[-pipe][-fits]: `-pipe` sends --pipeline commands at once, `-fits` works on data that fits into DRAM.
struct RedisWorkload {
  std::string name, base;
  DataKind kind = DataKind::kStrings;
  bool pipelined = false, fits = false;
};
inline constexpr const char* kRedisBases[] = {"get",  "zipf", "hot",     "mixed", "half", "set",
                                              "hash", "zset", "hotcold", "paced", "save"};
std::optional<RedisWorkload> parse_redis_workload(const std::string& name);
// "load", "load-zset-fits": how a server's data got there.
std::string load_workload_name(DataKind kind, bool fits);

struct RedisOptions : CommonOptions {
  uint64_t dram_bytes = 0, data_bytes = 0, allowance_bytes = 0;
  size_t value_bytes = 1024;
  unsigned connections = 50, pipeline = 16;
  double rate = 2000;
  std::vector<std::string> workloads, systems{"lunar", "run", "swap"};
  std::string options, redis_server, module, plot;
  bool fits = false;
};

// cpu_s is the server's (all threads, and children it has reaped); of hotcold and paced, latencies and operations are
// those of the hot clients.
struct RedisRun : RunResult {
  double generator_cpu_s = 0;                  // of the load generator's one thread
  double server_read_bytes = -1;               // of the disk's, what the server had read; -1: not known
  double bgsave_s = 0, fork_us = 0;            // save
  double cold_ops_per_s = 0, cold_p99_ns = 0;  // hotcold, paced: the clients that read cold keys
  std::string first_mismatch;
};
struct RedisRunField {
  const char* name;
  double RedisRun::* member;
};
inline constexpr RedisRunField kRedisRunFields[] = {
    {"generator_cpu_s", &RedisRun::generator_cpu_s},
    {"bgsave_s", &RedisRun::bgsave_s},
    {"fork_us", &RedisRun::fork_us},
    {"cold_ops_per_s", &RedisRun::cold_ops_per_s},
    {"cold_p99_ns", &RedisRun::cold_p99_ns},
    {"server_read_bytes", &RedisRun::server_read_bytes},
};

struct RedisResult {
  std::string system, workload;
  unsigned connections = 0, pipeline = 1, rounds = 1;
  int page_cluster = -1;       // swap's setting for this workload; -1: not swap
  RedisRun median;             // quantity by quantity over the rounds
  double spread = 0;           // (max - min) / median of ops_per_s
  std::vector<RedisRun> runs;  // round by round
};

struct RedisReport {
  RedisOptions options;
  std::vector<RedisResult> results;
  std::map<std::string, std::string> skipped;  // system or check: reason
  std::vector<std::string> failures;           // why the run does not count; empty when it does
  std::map<std::string, double> peak_bytes;    // the highest of each system's memory cgroups
  std::string redis_version;
};

RedisRun median_of(const std::vector<RedisRun>& runs);
// `ours` divided by `baseline`, keys WORKLOAD_tCONNECTIONS_QUANTITY (put_round_ratios).
Ratios ratios_of(const RedisReport& report, const std::string& ours, const std::string& baseline);
std::string report_json(const RedisReport& report);
std::string report_table(const RedisReport& report);

}  // namespace lunar::tools
