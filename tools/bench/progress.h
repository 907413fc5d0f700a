// SPDX-License-Identifier: Apache-2.0
// What every bench says while it runs.
// Threading: one thread an object. May not be used by runtime/ (it allocates).
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace lunar::tools {

// One line on standard error that follows the run; a line a step without a terminal.
class Progress {
 public:
  Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  void say(const std::string& text) {
    if (terminal_)
      fmt::print(stderr, "\r\033[K{}", text);
    else
      fmt::print(stderr, "{}\n", text);
    std::fflush(stderr);
  }
  // A step within a step: only on a terminal.
  void follow(const std::string& text) {
    if (terminal_) say(text);
  }
  void clear() {
    if (terminal_) fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
  unsigned done = 0, total = 0;
  std::string count() { return fmt::format("[{}/{}]", ++done, total); }

 private:
  bool terminal_;
};

}  // namespace lunar::tools
