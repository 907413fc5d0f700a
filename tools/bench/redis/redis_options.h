// SPDX-License-Identifier: Apache-2.0
// The command line of `lunar bench redis`, and the sizes that follow from it.
// Threading: free functions. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/redis/redis_report.h"

namespace lunar::tools {

// Nothing: *options is filled; else the exit code, and all is said.
std::optional<int> parse_redis_options(int argc, char** argv, RedisOptions* options);
// "spin=no,follow=no" in pairs; names with dashes, as flags and the module's arguments have them.
std::vector<std::pair<std::string, std::string>> lunar_options(const std::string& text);
// An upper bound for a server's memory with `data_bytes` of string values: size classes of the allocator, and for each
// value its key, entry and object.
uint64_t redis_footprint(uint64_t data_bytes, size_t value_bytes);
// Bytes of values in a stage: --data, or what surely fits; sorted sets get half (their nodes take as much again).
uint64_t stage_data_bytes(const RedisOptions& options, DataKind kind, bool fits);

}  // namespace lunar::tools
