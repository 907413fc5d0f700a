// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench redis` as pictures, drawn by gnuplot (Debian: gnuplot-nox), a program like any other.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "tools/bench/redis/redis_report.h"

namespace lunar::tools {

// gnuplot's script: a chart of throughput and one of p99, by workload and system, as DIRECTORY/NAME.svg and .png.
std::string plot_script(const RedisReport& report, const std::string& directory);
// Draws them; the files made. Throws std::runtime_error with gnuplot's words.
std::vector<std::string> draw_plots(const RedisReport& report, const std::string& directory);

}  // namespace lunar::tools
