// SPDX-License-Identifier: Apache-2.0
// lunar: the command. Finds the subcommand and hands over; each subcommand is a folder of its own.
// Threading: one thread. May not be used by runtime/ (it allocates).
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

const Subcommand kSubcommands[] = {
    {"run", "run a command with its heap extended onto a LUN", cmd_run},
    {"doctor", "show what this host offers and lacks, and the command that fixes each lack",
     cmd_doctor},
    {"lun", "create, list, resize, remove and check virtual LUNs", cmd_lun},
    {"kv", "create, check, read, write, load and dump key/value stores", cmd_kv},
    {"bench", "measure Lunar against the alternatives", cmd_bench},
    {"help", "show help on a subcommand, or on the options", cmd_help},
};
const size_t kSubcommandCount = sizeof kSubcommands / sizeof kSubcommands[0];

namespace {

int unknown(const char* word) {
  std::vector<std::string> known = {"--help", "--version"};
  for (size_t i = 0; i < kSubcommandCount; ++i) known.push_back(kSubcommands[i].name);
  say_unknown("lunar", "subcommand", word, known);
  return kExitUsage;
}

int dispatch(int argc, char** argv) {
  if (argc < 2) {
    fputs(main_help().c_str(), stderr);
    return kExitUsage;
  }
  const char* word = argv[1];
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
    fputs(main_help().c_str(), stdout);
    return 0;
  }
  if (strcmp(word, "--version") == 0) {
    printf("lunar %s\n", version_text().c_str());
    return 0;
  }
  for (size_t i = 0; i < kSubcommandCount; ++i) {
    if (strcmp(word, kSubcommands[i].name) == 0) return kSubcommands[i].run(argc - 1, argv + 1);
  }
  return unknown(word);
}

// Some libraries' initialisers allocate, and crash where there is no memory.
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

// Runs before any of them.
__attribute__((section(".preinit_array"), used)) void (*const g_first)() = refuse_without_memory;

}  // namespace
}  // namespace lunar::tools

int main(int argc, char** argv) {
  return lunar::tools::finish_output("lunar", lunar::tools::dispatch(argc, argv));
}
