// SPDX-License-Identifier: Apache-2.0
// See workloads.h.
#include "tools/bench/redis/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace lunar::tools {

namespace {

constexpr RedisBase kBases[] = {
    {.name = "get", .help = "GET of uniformly random keys"},
    {.name = "zipf", .help = "GET, zipfian 0.99", .keys = KeyChoice::kZipf},
    {.name = "hot",
     .help = "GET of a hot set (a 16th of --dram)",
     .keys = KeyChoice::kHot,
     .hot_share = 16},
    {.name = "mixed", .help = "GET and 10% SET, uniform", .write_percent = 10},
    {.name = "half", .help = "GET and 50% SET, uniform", .write_percent = 50},
    {.name = "set", .help = "SET of uniformly random existing keys", .write_percent = 100},
    {.name = "hotcold",
     .help = "half of the clients GET hot keys (their figures are shown), the others cold ones",
     .keys = KeyChoice::kHotAndCold,
     .hot_share = 16},
    {.name = "paced",
     .help = "the same, but hot clients GET a 256th of --dram by the clock, --rate per second",
     .keys = KeyChoice::kHotAndCold,
     .hot_share = 256,
     .by_clock = true},
    {.name = "save",
     .help = "BGSAVE while clients do as in mixed, --rate requests per second",
     .write_percent = 10,
     .by_clock = true,
     .job = SideJob::kSave},
    {.name = "hash",
     .help = "HGET and 10% HSET of hashes with 16 fields",
     .stage = &kHashStage,
     .write_percent = 10},
    {.name = "zset",
     .help = "ZSCORE, ZRANGE of 10, 10% ZADD; sets of 160 members",
     .stage = &kSortedSetStage,
     .write_percent = 10},
    {.name = "collections",
     .help = "half of the clients HGET of hot hashes (shown), the others HGETALL of cold ones: "
             "3000 fields of 100 bytes",
     .stage = &kCollectionStage,
     .keys = KeyChoice::kHotAndCold,
     .hot_share = 16,
     .whole = true},
    {.name = "expire",
     .help = "half of the keys expire while clients GET the others, --rate requests per second",
     .stage = &kExpiryStage,
     .keys = KeyChoice::kKept,
     .by_clock = true,
     .job = SideJob::kExpiry},
    {.name = "evict",
     .help = "SET of new keys at maxmemory, allkeys-lru",
     .stage = &kEvictionStage,
     .keys = KeyChoice::kNew,
     .write_percent = 100},
    {.name = "replica",
     .help = "SET at a plain master without a limit; the time ends when its replica, which is "
             "measured, has all data",
     .stage = &kReplicaStage,
     .write_percent = 100},
};

bool drop_suffix(std::string* text, const std::string& suffix) {
  if (text->size() <= suffix.size() ||
      text->compare(text->size() - suffix.size(), suffix.size(), suffix) != 0) {
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
  const auto* found = std::find_if(std::begin(kBases), std::end(kBases),
                                   [&](const RedisBase& one) { return base == one.name; });
  if (found == std::end(kBases)) return std::nullopt;
  workload.base = found;
  return workload;
}

RedisWorkload known_redis_workload(const std::string& name) {
  if (const std::optional<RedisWorkload> workload = parse_redis_workload(name)) return *workload;
  throw std::logic_error("no workload is named " + name);
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
