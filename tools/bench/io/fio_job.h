// SPDX-License-Identifier: Apache-2.0
// fio's io_uring engine on the same file: the limit of what a program with the kernel's fastest interface gets.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/io/io_run.h"

namespace lunar::tools {

// What fio reads and writes: so many bytes of a file or block device, from an offset on.
struct FioTarget {
  std::string path, disk_stat;  // disk_stat "": not known
  uint64_t offset = 0, bytes = 0;
  size_t unit_bytes = 4096;
};

// The command: registered file and buffers, batches as ours, no map of what was read already, JSON out.
std::vector<std::string> fio_command(const std::string& fio, const FioTarget& target, const IoOrder& order);
std::string command_text(const std::vector<std::string>& words);
// Operations, rates and latencies of fio's JSON into *run. False when the text is not that, or its job failed.
bool parse_fio(std::string_view text, IoRun* run);

// Runs it. CPU is the machine's, measured over the middle of its run (its start and end are work of another kind), and
// scaled to all its operations. Throws std::runtime_error, Interrupted.
IoRun measure_fio_run(const std::string& fio, const FioTarget& target, const IoOrder& order);

}  // namespace lunar::tools
