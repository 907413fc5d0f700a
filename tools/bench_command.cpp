// SPDX-License-Identifier: Apache-2.0
// `lunar bench`: replaces this process by lunar-bench. The benches are a program of their own,
// which a system may lack, because with them `lunar` would take four times as long to build.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "tools/subcommands.h"
#include "tools/support/host.h"

namespace lunar::tools {

int cmd_bench(int, char** argv) {
  const std::string program = own_directory() + "/lunar-bench";
  execv(program.c_str(), argv);
  if (errno == ENOENT)
    fprintf(stderr,
            "lunar bench: %s is missing; build it (ninja -C build tools/lunar-bench), or install "
            "the package that has it\n",
            program.c_str());
  else
    fprintf(stderr, "lunar bench: %s: %s\n", program.c_str(), strerror(errno));
  return kExitNo;  // as when a bench fails
}

}  // namespace lunar::tools
