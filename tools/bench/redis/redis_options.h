// SPDX-License-Identifier: Apache-2.0
// The command line of `lunar bench redis`, and the sizes that follow from it.
// Threading: free functions.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/bench_options.h"
#include "tools/bench/redis/workloads.h"

namespace lunar::tools {

struct RedisOptions : BenchOptions {
  std::vector<std::string> workloads;
  size_t value_bytes = 1024;
  unsigned connections = 50, pipeline = 16, shards = 1;
  double rate = 2000;
  std::string redis_server, module, swap = "file";
  bool fits = false, compressible = false;
};

// Throws FlagsError.
void parse_redis_options(Flags& flags, RedisOptions& options, int argc, char** argv);
// Splits "spin=no,follow=no" into pairs. Names get dashes, as in flags and in the module's
// arguments.
std::vector<std::pair<std::string, std::string>> lunar_options(const std::string& text);
// An upper bound for the memory of a server with `data_bytes` of string values: the allocator's
// size classes, and a key, entry and object per value.
uint64_t redis_footprint(uint64_t data_bytes, size_t value_bytes);
// Bytes of values in a stage: --data, or a size that certainly fits. Sorted sets get half, because
// their nodes take as much again.
uint64_t stage_data_bytes(const RedisOptions& options, DataKind kind, bool fits);

}  // namespace lunar::tools
