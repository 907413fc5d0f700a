// SPDX-License-Identifier: Apache-2.0
// Pictures of a bench's results, drawn by gnuplot (Debian: gnuplot-nox), a program like any other.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>

namespace lunar::tools {

// Whether plots can be made in `directory` (made when it is not there). "" or one line: what, where, how to fix it.
std::string plot_obstacle(const std::string& directory);
// A string for a script, in double quotes.
std::string gnuplot_quoted(const std::string& text);
// Has gnuplot run `script`. It holds the data, and stays as DIRECTORY/NAME next to the pictures so that they can be
// redrawn. Throws std::runtime_error with gnuplot's words.
void run_gnuplot(const std::string& directory, const std::string& name, const std::string& script);

}  // namespace lunar::tools
