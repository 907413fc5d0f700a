// SPDX-License-Identifier: Apache-2.0
// Finds the program of `lunar run` as a shell would, and examines it, because a program that ld.so
// does not preload into would silently run untiered.
// Threading: free functions, one thread.
#pragma once
#include <string>
#include <vector>

namespace lunar::tools {

// Exit codes of env(1), timeout(1) and nohup(1).
constexpr int kExitOwnFailure = 125;     // Lunar's own
constexpr int kExitNotExecutable = 126;  // the program's
constexpr int kExitNotFound = 127;       // the program's

struct Program {
  std::string path;
  bool shell = false;  // a script without #!, which only /bin/sh can run
};

// Finds the first word of `command` (by PATH unless it holds a '/'), follows #! lines and the
// command line of ld.so, and checks that ld.so will preload into the program. 0, or an exit code
// with one line in *why.
int find_program(const std::vector<char*>& command, Program* out, std::string* why);

}  // namespace lunar::tools
