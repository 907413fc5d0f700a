// SPDX-License-Identifier: Apache-2.0
// The subcommands of `lunar`. Each has a folder, gets its own name as argv[0], and answers --help.
// Threading: called once from main, on its thread.
#pragma once
#include <span>

#include "tools/support/verb_command.h"

namespace lunar::tools {

int cmd_run(int argc, char** argv);     // run/run.cpp; returns only after a failure
int cmd_doctor(int argc, char** argv);  // doctor/doctor.cpp
int cmd_lun(int argc, char** argv);     // lun/lun.cpp
int cmd_kv(int argc, char** argv);      // kv/kv_verbs.cpp
int cmd_bench(int argc, char** argv);   // bench_command.cpp
int cmd_help(int argc, char** argv);    // help.cpp

std::span<const Subcommand> subcommands();  // main.cpp

}  // namespace lunar::tools
