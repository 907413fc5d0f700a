// SPDX-License-Identifier: Apache-2.0
// Starting the tier of a process: options into log and pager, in one order for the API and the preload.
// Threading: once a process, before other threads use the tier. Allocates nothing from the program's heap.
#pragma once
#include "base/error.h"
#include "config/options.h"

namespace lunar {

// Points the log where the options say. 0, or -errno when log_file cannot be opened.
[[nodiscard]] int start_log(const Options& options, ErrorText* why);
// Log, then pager_create. Nothing is activated. -EEXIST when the process has a pager.
[[nodiscard]] int start_tier(const Options& options, ErrorText* why);

}  // namespace lunar
