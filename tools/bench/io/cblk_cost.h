// SPDX-License-Identifier: Apache-2.0
// What the block library's blocking read adds to the device: one thread that reads single blocks in runs, a few by
// cblk_read (no cache), a few without the library, so that whatever else disturbs the machine disturbs both alike.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <functional>

#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/io_report.h"

namespace lunar::tools {

// options.rounds rounds (5 at least) of options.seconds each; medians over the rounds' results. The baseline is a pread
// with O_DIRECT, or on persistent memory a copy out of a mapping. `pause` may throw. Throws std::runtime_error.
CblkCost measure_cblk_cost(const BenchBacking& backing, const IoOptions& options, const std::function<void()>& pause);

}  // namespace lunar::tools
