// SPDX-License-Identifier: Apache-2.0
// The command line of `lunar bench kv`.
// Threading: free functions. May not be used by runtime/ (it allocates).
#pragma once
#include <optional>

#include "tools/bench/kv/kv_report.h"

namespace lunar::tools {

// An exit code when there is nothing to measure: help was asked for, or an option is wrong (and it was said).
std::optional<int> parse_kv_options(int argc, char** argv, KvOptions* options);

}  // namespace lunar::tools
