// SPDX-License-Identifier: Apache-2.0
// The options of `lunar bench kv`, the rows of `overwrite`, and the aims of the store.
// Threading: plain data.
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

// A row of `overwrite`.
struct KvOverwrite {
  const char* durability;
  unsigned full_percent, threads;
  std::string workload() const;  // "flush_80_t16"
};
std::vector<KvOverwrite> kv_overwrites();

// The aims, with their figures in this run.
std::vector<BenchTarget> kv_targets(const BenchReport& report);

}  // namespace lunar::tools
