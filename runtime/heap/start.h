// SPDX-License-Identifier: Apache-2.0
// Starts the tier of a process: applies the options to the log and the pager, in one order for the
// API, the preload and the Redis module.
// Threading: once a process, before other threads use the tier. Allocates nothing from the
// program's heap.
#pragma once
#include "base/error.h"
#include "config/options.h"

namespace lunar {

// Directs the log as the options say. 0, or -errno if log_file cannot be opened.
[[nodiscard]] int start_log(const Options& options, ErrorText* why);
// start_log, then pager_create. Activates nothing. 0 or -errno (-EEXIST: the process has a pager).
[[nodiscard]] int start_tier(const Options& options, ErrorText* why);

}  // namespace lunar
