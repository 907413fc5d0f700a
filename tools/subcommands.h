// SPDX-License-Identifier: Apache-2.0
// The subcommands of `lunar`, one folder each. Each gets its own name as argv[0] and answers --help
// by itself. Threading: called once from main, on its thread.
#pragma once
#include <cstddef>

namespace lunar::tools {

int cmd_run(int argc, char** argv);     // run/run.cpp; comes back only with a failure
int cmd_doctor(int argc, char** argv);  // doctor/doctor.cpp
int cmd_lun(int argc, char** argv);     // lun/lun.cpp
int cmd_kv(int argc, char** argv);      // kv/kv_verbs.cpp
int cmd_bench(int argc, char** argv);   // bench/bench.cpp
int cmd_help(int argc, char** argv);    // help.cpp

// Wrong use of any subcommand but run (whose own failures are 125).
constexpr int kExitUsage = 2;

struct Subcommand {
  const char* name;
  const char* summary;  // one line for `lunar --help`
  int (*run)(int argc, char** argv);
};
extern const Subcommand kSubcommands[];
extern const size_t kSubcommandCount;

}  // namespace lunar::tools
