// SPDX-License-Identifier: Apache-2.0
// A measured run of Lunar's own systems: a thread reads and writes random blocks of a device.
// Threading: call from one thread at a time.
#pragma once
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/io_order.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// Runs "lunar" or "cblk" in the calling thread, with order.depth operations in flight. The clock
// starts after the setup and the warm-up. Throws std::runtime_error, Interrupted.
RunResult measure_io_run(const BenchBacking& backing, const IoOrder& order);

}  // namespace lunar::tools
