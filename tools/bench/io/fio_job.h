// SPDX-License-Identifier: Apache-2.0
// What a program gets without Lunar, measured by fio: its io_uring engine (the limit), Linux AIO,
// and blocking threads. Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/io/io_order.h"
#include "tools/bench/run_result.h"

namespace lunar::tools {

// What fio reads and writes: so many bytes of a file or block device, from an offset on.
struct FioTarget {
  std::string path, disk_stat;  // disk_stat "": not known
  uint64_t offset = 0, bytes = 0;
  size_t unit_bytes = 4096;
};

// The command of a system: "fio" (io_uring with registered file and buffers), "libaio", "legacy"
// (order.depth threads with one blocking read or write each). Batches as ours, O_DIRECT, no map of
// what was read already, JSON out.
std::vector<std::string> fio_command(const std::string& fio, const FioTarget& target,
                                     const IoOrder& order);
// Operations, rates and latencies of fio's JSON into *run. False when the text is not that, or its
// job failed.
bool parse_fio(std::string_view text, RunResult* run);

// Runs it. CPU is the machine's, measured over the middle of its run (its start and end are work of
// another kind), and scaled to all its operations. Throws std::runtime_error, Interrupted.
RunResult measure_fio_run(const std::string& fio, const FioTarget& target, const IoOrder& order);

// CPU figures per operation, from operations and CPU seconds.
void put_cpu_figures(RunResult* run);

}  // namespace lunar::tools
