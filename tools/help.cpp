// SPDX-License-Identifier: Apache-2.0
// lunar help: the list of subcommands, the help of a subcommand, and the options page (plain, or
// Markdown for the docs).
#include "tools/help.h"

#include <cstdio>
#include <string_view>

#include "tools/run/run_flags.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {

std::string main_help() {
  return "Usage: lunar SUBCOMMAND [ARGUMENT]...\n\n"
         "Lunar (LUN-Augmented RAM) lets a program's heap exceed DRAM: cold pages live on "
         "flash.\n\n"
         "Subcommands:\n" +
         summaries(subcommands()) +
         "\n  --help     this text; `lunar SUBCOMMAND --help` has the details\n"
         "  --version  the version\n\n"
         "Start here:\n"
         "  lunar doctor\n"
         "  lunar run --dram 1g -- COMMAND\n";
}

namespace {

constexpr char kUsage[] =
    "Usage: lunar help [SUBCOMMAND]\n"
    "       lunar help options [--markdown]\n\n"
    "Prints the help of a subcommand, or all options with their variables and defaults.\n";

int refuse(const std::string& text) {
  fprintf(stderr, "lunar help: %s\n", text.c_str());
  return kExitRefused;
}

}  // namespace

int cmd_help(int argc, char** argv) {
  if (argc < 2) {
    fputs(main_help().c_str(), stdout);
    return kExitDone;
  }
  const std::string_view topic = argv[1];
  if (topic == "--help" || topic == "-h" || topic == "help") {
    fputs(kUsage, stdout);
    return kExitDone;
  }
  if (topic == "options") {
    const bool markdown = argc > 2 && std::string_view(argv[2]) == "--markdown";
    if (argc > (markdown ? 3 : 2))
      return refuse(text_of("unknown flag %s; did you mean --markdown?",
                            printable(argv[markdown ? 3 : 2]).c_str()));
    fputs((markdown ? options_markdown() : options_text()).c_str(), stdout);
    return kExitDone;
  }
  std::vector<std::string> known = {"options"};
  for (const Subcommand& one : subcommands()) {
    if (topic == one.name) {
      char flag[] = "--help";
      char* arguments[] = {argv[1], flag, nullptr};
      return one.run(2, arguments);
    }
    known.emplace_back(one.name);
  }
  const std::string near = nearest_word(topic, known);
  return refuse(text_of("unknown topic %s; ", printable(topic).c_str()) +
                (near.empty()
                     ? "`lunar --help` lists the subcommands, `lunar help options` the options"
                     : "did you mean " + near + "?"));
}

}  // namespace lunar::tools
