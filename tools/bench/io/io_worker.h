// SPDX-License-Identifier: Apache-2.0
// A run of Lunar's own systems: a thread that reads and writes random blocks of a device, and the
// clock over it. Threading: call from one thread at a time. May not be used by runtime/ (it
// allocates).
#pragma once
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/io_order.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// System "lunar" or "cblk": one thread, order.depth in flight. The clock starts when all is set up
// and warm. Throws std::runtime_error, Interrupted.
RunResult measure_io_run(const BenchBacking& backing, const IoOrder& order);

}  // namespace lunar::tools
