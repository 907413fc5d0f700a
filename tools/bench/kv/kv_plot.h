// SPDX-License-Identifier: Apache-2.0
// The results of `lunar bench kv` as pictures.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

#include "tools/bench/kv/kv_report.h"

namespace lunar::tools {

// gnuplot's script: a chart of the systems for each experiment that compares some, and of the paper's experiment
// one of reads and one of writes, as DIRECTORY/NAME.svg.
std::string plot_script(const KvReport& report, const std::string& directory, std::vector<std::string>* files);
// Draws them; the files made. Throws std::runtime_error with gnuplot's words.
std::vector<std::string> draw_plots(const KvReport& report, const std::string& directory);

}  // namespace lunar::tools
