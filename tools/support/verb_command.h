// SPDX-License-Identifier: Apache-2.0
// Subcommands, and the command line and refusals of one of them.
// Threading: one thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tools/support/exit_code.h"
#include "tools/support/flags.h"

namespace lunar::tools {

// A word that is followed by a command line of its own: `kv` of `lunar kv`, `get` of `lunar kv
// get`.
struct Subcommand {
  const char* name;
  const char* summary;  // one line for --help
  int (*run)(int argc, char** argv);
};

// "  NAME  summary" for each, one per line.
std::string summaries(std::span<const Subcommand> known);
// Runs the one that argv[1] names, prints `help`, or refuses. program: "lunar kv". kind: "verb".
// flags: those that `program` itself takes. Returns the exit code.
int run_subcommand(const char* program, const char* kind, std::span<const Subcommand> known,
                   const std::string& help, int argc, char** argv,
                   std::vector<std::string> flags = {"--help"});

// The command line of a verb (or of `lunar doctor`). The verb adds its flags to flags() before it
// calls parse().
class VerbCommand {
 public:
  // group: "lunar kv". Every verb takes --json.
  VerbCommand(const std::string& group, const std::string& verb, const std::string& description);
  // Nothing, or the exit code to end with (help was asked for, or the line is wrong).
  std::optional<int> parse(int argc, char** argv);
  Flags& flags() { return flags_; }
  bool json = false;

  // Prints "GROUP VERB: text" to standard error. Returns `code`.
  int refuse(const std::string& text, int code = kExitRefused) const;
  // The same with the exit code for `error`, which is -errno of the runtime.
  int failed(int64_t error, const std::string& text) const;
  // The same with the runtime's own line, or errno's text if there is none.
  int failed(int error, const ErrorText& why) const;

 private:
  Flags flags_;
};

}  // namespace lunar::tools
