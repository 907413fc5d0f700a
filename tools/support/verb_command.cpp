// SPDX-License-Identifier: Apache-2.0
// See verb_command.h.
#include "tools/support/verb_command.h"

#include <cstdio>
#include <string_view>

#include "tools/support/text.h"

namespace lunar::tools {

std::string summaries(std::span<const Subcommand> known) {
  std::string out;
  for (const Subcommand& one : known) out += text_of("  %-10s %s\n", one.name, one.summary);
  return out;
}

int run_subcommand(const char* program, const char* kind, std::span<const Subcommand> known,
                   const std::string& help, int argc, char** argv, std::vector<std::string> flags) {
  if (argc < 2) {
    fputs(help.c_str(), stderr);
    return kExitRefused;
  }
  const std::string_view word = argv[1];
  if (word == "--help" || word == "-h") {
    fputs(help.c_str(), stdout);
    return kExitDone;
  }
  for (const Subcommand& one : known) {
    if (word == one.name) return one.run(argc - 1, argv + 1);
    flags.emplace_back(one.name);
  }
  say_unknown(program, kind, argv[1], flags);
  return kExitRefused;
}

VerbCommand::VerbCommand(const std::string& group, const std::string& verb,
                         const std::string& description)
    : flags_(description, group + " " + verb) {
  flags_.add("--json", json, "print JSON to standard output");
}

std::optional<int> VerbCommand::parse(int argc, char** argv) {
  try {
    flags_.parse(argc, argv);
  } catch (const FlagsError& error) { return flags_.refuse(error); }
  return std::nullopt;
}

int VerbCommand::refuse(const std::string& text, int code) const {
  fflush(stdout);
  fprintf(stderr, "%s: %s\n", flags_.name().c_str(), printable(text).c_str());
  return code;
}

int VerbCommand::failed(int64_t error, const std::string& text) const {
  return refuse(text, exit_code_of(error));
}

int VerbCommand::failed(int error, const ErrorText& why) const {
  return failed(error, std::string(why.text[0] ? why.text : errno_text(error)));
}

}  // namespace lunar::tools
