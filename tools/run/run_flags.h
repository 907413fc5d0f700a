// SPDX-License-Identifier: Apache-2.0
// The command line of `lunar run`, which follows from the options table, and the generated help.
// Threading: free functions, one thread.
#pragma once
#include <string>
#include <vector>

#include "config/options.h"

namespace lunar::tools {

struct RunFlag {
  size_t option = 0;    // index into the table
  std::string spelled;  // "--dram", "--no-mmap": for messages
  std::string value;
};

struct RunLine {
  bool help = false;
  std::vector<RunFlag> flags;  // in the order given; all --lun are one flag
  std::vector<char*> command;  // argv of the program, without the closing nullptr
};

// 0, or -EINVAL with one line in *why.
int parse_run_line(int argc, char** argv, RunLine* out, std::string* why);

std::string run_help();
// The options as a table in Markdown, and as plain text for `lunar help options`.
std::string options_markdown();
std::string options_text();

std::string flag_name(const OptionInfo& info);      // "--stats-file"
std::string variable_name(const OptionInfo& info);  // "LUNAR_STATS_FILE"

}  // namespace lunar::tools
