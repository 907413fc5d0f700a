// SPDX-License-Identifier: Apache-2.0
// The program that `lunar run` is to start: found as a shell would find it, and looked at before it
// is started, because a program that ld.so does not preload into would run untiered without a word.
// Threading: free functions, one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

namespace lunar::tools {

// Exit codes of a runner: what env(1), timeout(1) and nohup(1) use.
constexpr int kExitOwnFailure = 125;
constexpr int kExitNotExecutable = 126;
constexpr int kExitNotFound = 127;

struct Program {
  std::string path;    // to be executed
  bool shell = false;  // no format the kernel knows: a script without #!, to be given to /bin/sh
};

// Finds the first word of `command` (by PATH unless it holds a '/'), follows #! lines and the
// command line of ld.so, and checks that ld.so will preload into what runs. 0, or the exit code to
// leave with and one line in *why.
int find_program(const std::vector<char*>& command, Program* out, std::string* why);

}  // namespace lunar::tools
