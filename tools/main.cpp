// SPDX-License-Identifier: Apache-2.0
// lunar: the command. Finds the subcommand and runs it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sys/mem.h"
#include "tools/help.h"
#include "tools/run/program.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"
#include "tools/support/version.h"

namespace lunar::tools {

std::span<const Subcommand> subcommands() {
  static constexpr Subcommand kAll[] = {
      {"run", "run a command with its heap extended onto a LUN", cmd_run},
      {"doctor", "show what this host offers and lacks, and the command that fixes each lack",
       cmd_doctor},
      {"lun", "create, list, resize, remove and check virtual LUNs", cmd_lun},
      {"kv", "create, check, read, write, load and dump key/value stores", cmd_kv},
      {"bench", "measure Lunar against the alternatives", cmd_bench},
      {"help", "show help on a subcommand, or on the options", cmd_help},
  };
  return kAll;
}

namespace {

int dispatch(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--version") == 0) {
    printf("lunar %s\n", version_text().c_str());
    return kExitDone;
  }
  return run_subcommand("lunar", "subcommand", subcommands(), main_help(), argc, argv,
                        {"--help", "--version"});
}

// The initialisers of some libraries allocate, and crash if there is no memory.
void refuse_without_memory() {
  constexpr size_t kEnoughToStart = 1 << 20;
  void* volatile memory = malloc(kEnoughToStart);
  if (memory == nullptr) {
    char line[128];
    const int length = snprintf(
        line, sizeof line,
        "lunar: the kernel does not give this process the memory to start; raise the limit (%s)\n",
        sys::memory_limit());
    (void)!write(STDERR_FILENO, line, static_cast<size_t>(length));
    _exit(kExitOwnFailure);
  }
  free(memory);
}

// Runs before these initialisers.
__attribute__((section(".preinit_array"), used)) void (*const g_first)() = refuse_without_memory;

}  // namespace
}  // namespace lunar::tools

int main(int argc, char** argv) {
  return lunar::tools::finish_output("lunar", lunar::tools::dispatch(argc, argv));
}
