// SPDX-License-Identifier: Apache-2.0
// Bad flags of a command that CLI11 reads: one line that says what, where and what to do, and exit code 2.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

namespace lunar::tools {

// The exit code: 0 where help was asked for, which is printed.
inline int refuse_flags(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  fmt::print(stderr, "{0}: {1}; `{0} --help` shows how it is used\n", app.get_name(), error.what());
  return 2;
}

}  // namespace lunar::tools
