// SPDX-License-Identifier: Apache-2.0
// What `lunar run` checks before anything is touched: sizes against the machine, the LUN, the right
// to userfaultfd. Light, by plain system calls; the runtime checks again, and deeper, when it
// starts in the program.
// Threading: free functions, one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/units.h"
#include "config/options.h"

namespace lunar::tools {

constexpr uint64_t kDramMin = 16 * kMiB;

// Names where the value of an option came from: "--dram", "LUNAR_DRAM", "the config file's dram",
// "the default dram".
using OriginOf = std::function<std::string(const char* option)>;

// Fills options->dram when it is not set (a quarter of the available memory). true, or false with
// one line in *why.
bool check_sizes(Options* options, const OriginOf& origin_of, std::string* why);
// Every LUN of the list (see scratch_open), and the room of all together.
bool check_lun(const Options& options, const OriginOf& origin_of, std::string* why);
// Last, as it is the one check that may change something: opens what `--lun` names as the program
// will (a blank device gets its format here) and releases it again. Directories and sim: were
// looked at by check_lun already.
bool open_lun(const Options& options, const OriginOf& origin_of, std::string* why);
bool check_kernel_calls(std::string* why);

// A list of LUNs with its paths made absolute (programs change directory): "x" -> "/cwd/x",
// "file:x" -> "file:/cwd/x", "stripe:x;y" -> "stripe:/cwd/x;/cwd/y".
std::string absolute_lun(const std::string& lun);
std::string absolute_path(const std::string& path);

}  // namespace lunar::tools
