// SPDX-License-Identifier: Apache-2.0
// Live counters in a file that other programs map or read: a 64-byte header, then struct lunar_stats (lunar/lunar.h).
// Written by a thread of its own, once a second and more often while they change, under a sequence number (odd while it
// changes). The file system may hang, and the file may be cut: that stops or hurts nothing else.
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
bool stats_file_is_open();                        // by this process, not by a parent
void stats_file_write(const lunar_stats& stats);  // pre: it is. May block for as long as the file system does

}  // namespace lunar
