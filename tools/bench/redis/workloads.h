// SPDX-License-Identifier: Apache-2.0
// The table of workloads of `lunar bench redis`: the data of the servers, the keys that clients
// choose, and the job of the servers. A new workload is a line in workloads.cpp.
// Threading: plain data.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tools/bench/redis/dataset.h"

namespace lunar::tools {

// The data of a server and its origin. Workloads of one stage run on the same servers, one after
// the other.
struct RedisStage {
  const char* suffix;  // of the row "load"
  DataKind kind;
  bool replica;  // the clients write to a plain master of the server
};
inline constexpr RedisStage kPlainStage{"", DataKind::kStrings, false},
    kHashStage{"-hash", DataKind::kHashes, false},
    kSortedSetStage{"-zset", DataKind::kSortedSets, false},
    kCollectionStage{"-collections", DataKind::kBigHashes, false},
    kExpiryStage{"-expire", DataKind::kStrings, false},
    kEvictionStage{"-evict", DataKind::kStrings, false},
    kReplicaStage{"-replica", DataKind::kStrings, true};

// kHotAndCold: half of the clients choose hot keys, half cold keys.
enum class KeyChoice : uint8_t { kUniform, kZipf, kHot, kHotAndCold, kKept, kNew };
// A job of the server, during which the clients continue. Its end ends the run.
enum class SideJob : uint8_t { kNone, kSave, kExpiry };

// One row of the table of workloads.
struct RedisBase {
  const char* name;
  const char* help;
  const RedisStage* stage = &kPlainStage;
  KeyChoice keys = KeyChoice::kUniform;
  unsigned write_percent = 0;
  unsigned hot_share = 0;  // the values of hot keys are a hot_share-th of --dram
  bool by_clock = false;   // the clients (of hot keys) send at --rate
  bool whole = false;      // the clients of cold keys read all parts of a key
  SideJob job = SideJob::kNone;
};
std::span<const RedisBase> redis_bases();

// BASE[-pipe][-fits]: `-pipe` sends --pipeline commands at once, `-fits` works on data that fits
// into DRAM.
struct RedisWorkload {
  std::string name;
  const RedisBase* base = nullptr;
  bool pipelined = false, fits = false;
};
std::optional<RedisWorkload> parse_redis_workload(const std::string& name);
RedisWorkload known_redis_workload(const std::string& name);  // throws std::logic_error for another
// "load", "load-zset-fits": the row for the load of a stage.
std::string load_workload_name(const RedisStage& stage, bool fits);
// The lines of --help.
std::string workloads_help();

}  // namespace lunar::tools
