// SPDX-License-Identifier: Apache-2.0
// Live counters in a file that other programs map or read: lunar_stats_file_header, then
// lunar_stats (lunar/lunar.h). A separate thread writes them once a second, and more often while
// they change, under a sequence number (odd while it writes). A hanging file system or a truncated
// file affects only this thread.
// Threading: stats_file_open at start.
#pragma once
#include <cstddef>

#include "lunar/lunar.h"

namespace lunar {

static_assert(sizeof(lunar_stats_file_header) == 64 &&
              offsetof(lunar_stats_file_header, sequence) == 16);

// Creates or replaces `path`. `read` supplies the counters. 0 or -errno. Not for the fault path.
[[nodiscard]] int stats_file_open(const char* path, void (*read)(lunar_stats*));
bool stats_file_is_open();   // by this process, not by a parent
void stats_file_run(void*);  // the thread's loop; never returns. pre: stats_file_is_open()

}  // namespace lunar
