// SPDX-License-Identifier: Apache-2.0
// A run of one of our own backends: threads that read and write random units of a device, and the clock over them.
// Threading: call from one thread at a time; its workers live for one run. May not be used by runtime/ (it allocates).
#pragma once
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/io_run.h"

namespace lunar::tools {

// System "lunar", "cblk", "perio", "libaio": one thread, order.depth in flight. "raw" (as legacy), "legacy",
// "buffered": order.depth threads with one blocking pread or pwrite each, O_DIRECT or through the page cache (cold at
// the start; writes are synced before the clock stops). The clock starts when all are set up. Throws
// std::runtime_error, Interrupted.
IoRun measure_io_run(const BenchBacking& backing, const IoOrder& order);

// Derived figures from ops, seconds and CPU seconds.
void finish_io_run(IoRun* run);

}  // namespace lunar::tools
