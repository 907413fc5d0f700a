// SPDX-License-Identifier: Apache-2.0
// The options of `lunar bench kv`, its stores of `overwrite`, and what the store is to show.
// Threading: plain data. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "tools/bench/bench_options.h"

namespace lunar::tools {

struct KvOptions : BenchOptions {
  std::vector<std::string> experiments{"memory", "index", "load", "cold", "overwrite", "ycsb"};
  std::vector<std::string> durability{"flush"};
  std::string library;
};

// The stores of `overwrite`, each by so many threads.
struct KvOverwrite {
  const char* durability;
  unsigned full_percent, threads;
  std::string workload() const;  // "flush_80_t16"
};
std::vector<KvOverwrite> kv_overwrites();

// Each aim with its figure in this run: the median of the rounds; a ratio is that of one round.
std::vector<BenchTarget> kv_targets(const BenchReport& report);

}  // namespace lunar::tools
