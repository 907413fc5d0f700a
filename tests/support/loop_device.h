// SPDX-License-Identifier: Apache-2.0
// A block device for a test: a loop device on a file. Threading: a test's.
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include <cstring>
#include <string>

namespace lunar_test {

inline std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  char line[256] = {};
  if (pipe && fgets(line, sizeof line, pipe)) line[strcspn(line, "\n")] = '\0';
  return pipe && pclose(pipe) == 0 ? line : "";
}

// The name is empty if the host gives no loop device.
struct Loop {
  std::string name;
  explicit Loop(const std::string& file)
      : name(output_of("losetup -f --show " + file + " 2>/dev/null")) {}
  ~Loop() {
    if (!name.empty()) (void)!system(("losetup -d " + name).c_str());
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
};

}  // namespace lunar_test
