// SPDX-License-Identifier: Apache-2.0
// See workloads.h.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/redis/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lunar::tools {

namespace {

constexpr RedisBase kBases[] = {
    {"get", &kPlainStage, KeyChoice::kUniform, 0, 0, false, false, SideJob::kNone, "GET of uniformly random keys"},
    {"zipf", &kPlainStage, KeyChoice::kZipf, 0, 0, false, false, SideJob::kNone, "GET, zipfian 0.99"},
    {"hot", &kPlainStage, KeyChoice::kHot, 0, 16, false, false, SideJob::kNone, "GET of a hot set (a 16th of --dram)"},
    {"mixed", &kPlainStage, KeyChoice::kUniform, 10, 0, false, false, SideJob::kNone, "GET and 10% SET, uniform"},
    {"half", &kPlainStage, KeyChoice::kUniform, 50, 0, false, false, SideJob::kNone, "GET and 50% SET, uniform"},
    {"set", &kPlainStage, KeyChoice::kUniform, 100, 0, false, false, SideJob::kNone,
     "SET of uniformly random keys that are there"},
    {"hotcold", &kPlainStage, KeyChoice::kHotAndCold, 0, 16, false, false, SideJob::kNone,
     "half of the clients GET hot keys (their figures are shown), the others cold ones"},
    {"paced", &kPlainStage, KeyChoice::kHotAndCold, 0, 256, true, false, SideJob::kNone,
     "the same, hot clients send by the clock, --rate GETs a second, of a 256th of --dram"},
    {"save", &kPlainStage, KeyChoice::kUniform, 10, 0, true, false, SideJob::kSave,
     "BGSAVE while clients do as in mixed, --rate requests a second"},
    {"hash", &kHashStage, KeyChoice::kUniform, 10, 0, false, false, SideJob::kNone,
     "HGET and 10% HSET of hashes with 16 fields"},
    {"zset", &kSortedSetStage, KeyChoice::kUniform, 10, 0, false, false, SideJob::kNone,
     "ZSCORE, ZRANGE of 10, 10% ZADD; sets of 160 members"},
    {"collections", &kCollectionStage, KeyChoice::kHotAndCold, 0, 16, false, true, SideJob::kNone,
     "half of the clients HGET of hot hashes (shown), the others HGETALL of cold ones: 3000 fields of 100 bytes"},
    {"expire", &kExpiryStage, KeyChoice::kKept, 0, 0, true, false, SideJob::kExpiry,
     "half of the keys expire while clients GET the others, --rate requests a second"},
    {"evict", &kEvictionStage, KeyChoice::kNew, 100, 0, false, false, SideJob::kNone,
     "SET of new keys at maxmemory, allkeys-lru"},
    {"replica", &kReplicaStage, KeyChoice::kUniform, 100, 0, false, false, SideJob::kNone,
     "SET at a plain master without a limit; the time ends when its replica, the server measured, has them all"},
};

bool drop_suffix(std::string* text, const std::string& suffix) {
  if (text->size() <= suffix.size() || text->compare(text->size() - suffix.size(), suffix.size(), suffix) != 0) {
    return false;
  }
  text->resize(text->size() - suffix.size());
  return true;
}

}  // namespace

std::span<const RedisBase> redis_bases() { return kBases; }

std::optional<RedisWorkload> parse_redis_workload(const std::string& name) {
  RedisWorkload workload;
  workload.name = name;
  std::string base = name;
  workload.fits = drop_suffix(&base, "-fits");
  workload.pipelined = drop_suffix(&base, "-pipe");
  const auto* found =
      std::find_if(std::begin(kBases), std::end(kBases), [&](const RedisBase& one) { return base == one.name; });
  if (found == std::end(kBases)) return std::nullopt;
  workload.base = found;
  return workload;
}

std::string load_workload_name(const RedisStage& stage, bool fits) {
  return fmt::format("load{}{}", stage.suffix, fits ? "-fits" : "");
}

std::string workloads_help() {
  std::string out;
  for (const RedisBase& one : kBases) out += fmt::format("  {:<11}  {}\n", one.name, one.help);
  return out;
}

}  // namespace lunar::tools
