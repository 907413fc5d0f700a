// SPDX-License-Identifier: Apache-2.0
// The checks of `lunar run` before anything is changed: sizes against the machine, the LUN, the
// right to userfaultfd. They are light; the runtime checks more when it starts in the program. Each
// refusal is one line: what, where, what to do.
// Threading: free functions, one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/units.h"
#include "config/options.h"

namespace lunar::tools {

constexpr uint64_t kDramMin = 16 * kMiB;

// Names the origin of an option's value: "--dram", "LUNAR_DRAM", "config file, dram", "default
// --dram".
using OriginOf = std::function<std::string(const char* option)>;

inline bool refuse(std::string* why, std::string line) {
  *why = std::move(line);
  return false;
}

// Sets options->dram to a quarter of the available memory if it is not set. The checks return true,
// or false with one line in *why.
bool check_sizes(Options* options, const OriginOf& origin_of, std::string* why);
// Checks every LUN of the list (see scratch_open), and their space together.
bool check_lun(const Options& options, const OriginOf& origin_of, std::string* why);
// Opens the LUNs as the program will, and closes them. It comes last because it may change
// something: a blank device is formatted. Directories and sim: are left to check_lun.
bool open_lun(const Options& options, const OriginOf& origin_of, std::string* why);
bool check_kernel_calls(std::string* why);

// Makes the paths in a list of LUNs absolute (programs change directory): "x" -> "/cwd/x",
// "file:x" -> "file:/cwd/x", "stripe:x;y" -> "stripe:/cwd/x;/cwd/y".
std::string absolute_lun(const std::string& lun);
std::string absolute_path(const std::string& path);

}  // namespace lunar::tools
