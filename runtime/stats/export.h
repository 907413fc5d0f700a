// SPDX-License-Identifier: Apache-2.0
// Live counters in a file that other programs map or read: a 64-byte header, then struct lunar_stats (lunar/lunar.h).
// Written by the pager's housekeeping thread every 50 ms and at exit, under a sequence number (odd while it changes).
#pragma once
#include <cstdint>

#include "lunar/lunar.h"

namespace lunar {

struct StatsFileHeader {
  char magic[8];         // "LUNARST1"
  uint32_t stats_bytes;  // sizeof(struct lunar_stats)
  uint32_t pid;
  uint64_t sequence;    // odd: being written
  uint64_t updated_ns;  // CLOCK_MONOTONIC
  uint8_t reserved[32];
};
static_assert(sizeof(StatsFileHeader) == 64);

// Creates or replaces `path`. 0 or -errno. Not for the fault path.
[[nodiscard]] int stats_file_open(const char* path);
void stats_file_write(const lunar_stats& stats);  // no-op when none is open

}  // namespace lunar
