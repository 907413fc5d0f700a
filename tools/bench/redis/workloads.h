// SPDX-License-Identifier: Apache-2.0
// The table of workloads of `lunar bench redis`: what a row's servers hold, which keys its clients
// ask for, and what the servers do meanwhile. A new row is a line in workloads.cpp.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tools/bench/redis/dataset.h"

namespace lunar::tools {

// What a server holds, and where it gets it from. Workloads of one stage run on the same servers,
// one after the other.
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

// kHotAndCold: half of the clients each.
enum class KeyChoice : uint8_t { kUniform, kZipf, kHot, kHotAndCold, kKept, kNew };
// Of the server, during which the clients go on; it ends the run.
enum class SideJob : uint8_t { kNone, kSave, kExpiry };

// One row of the table of workloads.
struct RedisBase {
  const char* name;
  const char* help;
  const RedisStage* stage = &kPlainStage;
  KeyChoice keys = KeyChoice::kUniform;
  unsigned write_percent = 0;
  unsigned hot_share = 0;  // hot keys hold this part of --dram (a 16th, ...)
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
// "load", "load-zset-fits": how a server's data got there.
std::string load_workload_name(const RedisStage& stage, bool fits);
// The lines of --help.
std::string workloads_help();

}  // namespace lunar::tools
