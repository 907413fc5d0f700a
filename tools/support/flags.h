// SPDX-License-Identifier: Apache-2.0
// Bad flags of a command that CLI11 reads: one line that says what, where and what to do, and exit code 2.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <string_view>

namespace lunar::tools {

// CLI11's "Could not convert: --limit = x" in the words of all other refusals.
inline std::string flags_error_text(const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ", kIs = " = ";
  std::string text = error.what();
  const size_t is = text.find(kIs);
  if (text.compare(0, kConversion.size(), kConversion) != 0 || is == std::string::npos) return text;
  const std::string flag = text.substr(kConversion.size(), is - kConversion.size());
  return fmt::format("{}: '{}' is not a number", flag, text.substr(is + kIs.size()));
}

// The exit code: 0 where help was asked for, which is printed.
inline int refuse_flags(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  fmt::print(stderr, "{0}: {1}; `{0} --help` shows how it is used\n", app.get_name(), flags_error_text(error));
  return 2;
}

}  // namespace lunar::tools
