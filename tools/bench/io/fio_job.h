// SPDX-License-Identifier: Apache-2.0
// The alternatives to Lunar, measured by fio: its io_uring engine (the limit), Linux AIO, and
// blocking threads.
// Threading: one thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/io/io_order.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// A range of a file or block device, which fio reads and writes.
struct FioTarget {
  std::string path, disk_stat;  // disk_stat "": not known
  uint64_t offset = 0, bytes = 0;
  size_t unit_bytes = 4096;
};

// The command of a system: "fio" (io_uring with registered file and buffers), "libaio", "legacy"
// (order.depth threads with one blocking read or write each). Batches as for Lunar, O_DIRECT, no
// map of the blocks already read, JSON output.
std::vector<std::string> fio_command(const std::string& fio, const FioTarget& target,
                                     const IoOrder& order);
// Reads operations, rates and latencies of fio's JSON into *run. False: the text is not JSON of
// fio, or its job failed.
bool parse_fio(std::string_view text, RunResult* run);

// Runs fio. CPU time is the machine's, measured in the middle of the run (start and end are other
// work), and scaled to all operations. Throws std::runtime_error, Interrupted.
RunResult measure_fio_run(const std::string& fio, const FioTarget& target, const IoOrder& order);

// Sets the CPU figures per operation from operations and CPU seconds.
void put_cpu_figures(RunResult* run);

}  // namespace lunar::tools
