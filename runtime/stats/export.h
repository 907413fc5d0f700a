// SPDX-License-Identifier: Apache-2.0
// Live counters in a file that other programs map or read: lunar_stats_file_header, then lunar_stats (lunar/lunar.h).
// Written by a thread of its own, once a second and more often while they change, under a sequence number (odd while it
// changes). The file system may hang, and the file may be cut: that stops or hurts nothing else.
#pragma once
#include <cstddef>

#include "lunar/lunar.h"

namespace lunar {

static_assert(sizeof(lunar_stats_file_header) == 64 && offsetof(lunar_stats_file_header, sequence) == 16);

// Creates or replaces `path`. 0 or -errno. Not for the fault path.
[[nodiscard]] int stats_file_open(const char* path);
bool stats_file_is_open();                        // by this process, not by a parent
void stats_file_write(const lunar_stats& stats);  // pre: it is. May block for as long as the file system does

}  // namespace lunar
