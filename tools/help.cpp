// SPDX-License-Identifier: Apache-2.0
// lunar help: the list of subcommands, a subcommand's own help, and the options page (plain or
// Markdown, for the docs). Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/help.h"

#include <cstdio>
#include <cstring>

#include "tools/run/run_flags.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {

std::string main_help() {
  std::string out =
      "Usage: lunar SUBCOMMAND [ARGUMENT]...\n\n"
      "Lunar (LUN-Augmented RAM) lets a program's heap exceed DRAM: cold pages live on flash.\n\n"
      "Subcommands:\n";
  for (size_t i = 0; i < kSubcommandCount; ++i)
    out += text_of("  %-10s %s\n", kSubcommands[i].name, kSubcommands[i].summary);
  out +=
      "\n  --help     this text; `lunar SUBCOMMAND --help` has the details\n"
      "  --version  the version\n\n"
      "Start here:\n"
      "  lunar doctor\n"
      "  lunar run --dram 1g -- COMMAND\n";
  return out;
}

namespace {
constexpr char kUsage[] =
    "Usage: lunar help [SUBCOMMAND]\n"
    "       lunar help options [--markdown]\n\n"
    "Prints the help of a subcommand, or all options with their variables and defaults.\n";
}  // namespace

int cmd_help(int argc, char** argv) {
  if (argc < 2) {
    fputs(main_help().c_str(), stdout);
    return 0;
  }
  const char* topic = argv[1];
  if (strcmp(topic, "--help") == 0 || strcmp(topic, "-h") == 0 || strcmp(topic, "help") == 0) {
    fputs(kUsage, stdout);
    return 0;
  }
  if (strcmp(topic, "options") == 0) {
    bool markdown = argc > 2 && strcmp(argv[2], "--markdown") == 0;
    if (argc > (markdown ? 3 : 2)) {
      fprintf(stderr, "lunar help: unknown flag %s; did you mean --markdown?\n",
              printable(argv[markdown ? 3 : 2]).c_str());
      return kExitUsage;
    }
    fputs((markdown ? options_markdown() : options_text()).c_str(), stdout);
    return 0;
  }
  std::vector<std::string> known = {"options"};
  for (size_t i = 0; i < kSubcommandCount; ++i) {
    if (strcmp(topic, kSubcommands[i].name) == 0) {
      char flag[] = "--help";
      char* arguments[] = {argv[1], flag, nullptr};
      return kSubcommands[i].run(2, arguments);
    }
    known.push_back(kSubcommands[i].name);
  }
  std::string near = nearest_word(topic, known);
  fprintf(stderr, "lunar help: nothing is called %s; %s%s%s\n", printable(topic).c_str(),
          near.empty() ? "`lunar --help` lists the subcommands, `lunar help options` the options"
                       : "did you mean ",
          near.c_str(), near.empty() ? "" : "?");
  return kExitUsage;
}

}  // namespace lunar::tools
