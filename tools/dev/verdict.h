// SPDX-License-Identifier: Apache-2.0
// The record of a demo, its verdict and its table.
// Threading: plain data.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "tools/dev/watch.h"

namespace lunar::tools {

// Allowances above --dram, for the cgroup and for the resident set of the process.
inline constexpr uint64_t kGroupAboveCap = 128 * kMiB;
inline constexpr uint64_t kResidentAboveCap = 64 * kMiB;

inline uint64_t mib(uint64_t bytes) { return (bytes + kMiB / 2) / kMiB; }

struct DemoPhase {
  std::string name;
  double seconds = 0;
  double per_second = 0;  // operations; 0: the phase has none
};

struct DemoRecord {
  uint64_t dram_bytes = 0, values = 0, value_bytes = 0;
  std::string no_group;  // why there is no memory cgroup; "": there is one
  std::vector<DemoPhase> phases;
  uint64_t mismatches = 0, dump_bytes = 0, oom_kills = 0;
  std::string digest, dump_digest, forks;
  Sample last;  // of the tiered server
  double seconds = 0;
  std::vector<std::string> failures;  // one line each; empty: PASS

  uint64_t data_bytes() const { return values * value_bytes; }
};

// Adds a line to record.failures for each condition that failed.
void check_result(DemoRecord& record);
std::string record_table(const DemoRecord& record);

}  // namespace lunar::tools
