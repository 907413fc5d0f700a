// SPDX-License-Identifier: Apache-2.0
// The progress of a bench on standard error.
// Threading: one thread per object.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace lunar::tools {

// On a terminal, one line that is overwritten; otherwise one line per step.
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
  // A part of a step, which is shown only on a terminal.
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
