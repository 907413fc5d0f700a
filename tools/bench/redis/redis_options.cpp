// SPDX-License-Identifier: Apache-2.0
// See redis_options.h.
#include "tools/bench/redis/redis_options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/units.h"
#include "tools/support/flags.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kKeyBytes = 112;  // entry, key, object and their share of the table

std::string footer() {
  return "Workloads (a name may end in -pipe: --pipeline requests at once; and in -fits: on data "
         "that fits into DRAM):\n" +
         workloads_help() +
         "  (load: the fill before the measurements, up to 16 requests at once; load-hash, "
         "load-fits ...)\n"
         "Systems: lunar = redis-server with the Lunar module; run = under `lunar run`; swap = "
         "with kernel swap, or plain redis if the data fits. All have the same memory cgroup limit "
         "and disk. Ratios are lunar / swap and lunar / run, and (run_over_swap) run / swap. The "
         "clients are one thread, which takes one CPU: see CPUs (of the servers) and client CPUs.";
}

const std::vector<std::string> kDefault{
    "get",           "zipf",        "hot",    "mixed", "half",   "set",      "get-pipe",
    "hotcold",       "paced",       "save",   "hash",  "zset",   "get-fits", "mixed-fits",
    "get-pipe-fits", "collections", "expire", "evict", "replica"};
const std::vector<std::string> kQuick{"get", "zipf", "hotcold", "get-fits"};

std::string check_workload(const std::string& name) {
  return parse_redis_workload(name) ? std::string() : "no workload is named " + name;
}

void finish(RedisOptions& options, const std::string& value_size) {
  options.value_bytes = size_option("--value-size", value_size);
  if (options.value_bytes < Dataset::kValueBytesMin ||
      options.value_bytes > Dataset::kValueBytesMax) {
    throw FlagsError("--value-size", "from 16 to 512k");
  }
  if (options.dram_bytes / options.shards < 16 * kMiB || options.connections < 2 * options.shards) {
    throw FlagsError("--shards", "each needs 16m of --dram, and two of --connections");
  }
  for (const auto& [name, value] : lunar_options(options.lunar_options)) {
    if (name.empty() || value.empty()) throw FlagsError("--options", "NAME=VALUE,...");
  }
  if (options.fits) {
    for (std::string& name : options.workloads) {
      if (!known_redis_workload(name).fits) name += "-fits";
    }
  }
  // A name that is given twice would share a row.
  std::vector<std::string> once;
  for (const std::string& name : options.workloads) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  options.workloads = once;
  if (options.redis_server.empty()) options.redis_server = find_in_path("redis-server");
  if (options.redis_server.empty() || access(options.redis_server.c_str(), X_OK) != 0) {
    throw FlagsError("--redis-server", "redis-server is not there: apt-get install redis-server");
  }
  if (!options.module.empty() && access(options.module.c_str(), R_OK) != 0) {
    throw FlagsError("--module", options.module + " cannot be read");
  }
  // The server has another working directory.
  if (!options.module.empty()) options.module = std::filesystem::absolute(options.module);
}

}  // namespace

void parse_redis_options(Flags& flags, RedisOptions& options, int argc, char** argv) {
  std::string value_size = "1k";
  options.workloads = kDefault;
  options.systems = {"lunar", "run", "swap"};
  MemoryFlags memory(flags, options, {"256m", "64m", "48m"});
  flags.add("--value-size", value_size, "bytes of a value");
  flags.add("--connections", options.connections, "clients").range(2, 1000);
  flags.add("--pipeline", options.pipeline, "requests at once of the -pipe workloads")
      .range(1, 1000);
  flags
      .add("--shards", options.shards,
           "servers of each system, which share its DRAM, LUN space and keys")
      .range(1, 16);
  flags.add("--compressible", options.compressible,
            "make values that repeat their first third twice");
  flags
      .add("--swap", options.swap,
           "target of kernel swap: file, a file with zswap before it, or zram")
      .one_of({"file", "zswap", "zram"});
  const Flag workloads =
      flags.add("--workloads", options.workloads, "such as get,zipf,hotcold-fits; see below")
          .list()
          .checked(check_workload, "WORKLOAD");
  flags.add("--fits", options.fits, "run the workloads on data that fits into DRAM only");
  flags
      .add("--rate", options.rate,
           "requests per second of clients that send by the clock: save, paced, expire")
      .range(1.0, 1e6);
  flags.add("--redis-server", options.redis_server, "the server (default: the first in PATH)");
  flags.add("--module", options.module,
            "the Lunar module (default: liblunar-redis.so of this Lunar)");
  const BenchFlags common(
      flags, options, "directory for LUNs, swap file and dumps, or Lunar's LUN: file, device, URI",
      "a rough answer within a minute: get,zipf,hotcold,get-fits (a save takes longer)");
  flags.footer(footer());
  flags.parse(argc, argv);
  common.settle(1, 1);
  if (options.quick && !workloads.given()) options.workloads = kQuick;
  memory.settle();
  finish(options, value_size);
}

std::vector<std::pair<std::string, std::string>> lunar_options(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t equals = std::min(word.find('='), word.size());
    std::string name = word.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    pairs.emplace_back(name, equals < word.size() ? word.substr(equals + 1) : "");
  }
  return pairs;
}

uint64_t redis_footprint(uint64_t data_bytes, size_t value_bytes) {
  return data_bytes / 20 * 27 + data_bytes / value_bytes * kKeyBytes;
}

uint64_t stage_data_bytes(const RedisOptions& options, DataKind kind, bool fits) {
  uint64_t bytes = options.data_bytes;
  if (fits) {
    const double footprint_per_byte =
        1.35 + static_cast<double>(kKeyBytes) / static_cast<double>(options.value_bytes);
    bytes =
        static_cast<uint64_t>(0.75 * static_cast<double>(options.dram_bytes) / footprint_per_byte);
  }
  return kind == DataKind::kSortedSets ? bytes / 2 : bytes;
}

}  // namespace lunar::tools
