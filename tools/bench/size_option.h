// SPDX-License-Identifier: Apache-2.0
// Sizes on the command lines of benches and the demo: k/m/g/t, powers of 1024.
// Threading: free function.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tools/support/flags.h"

namespace lunar::tools {

// "512", "64k", "256M", "1.5g", "2t", "4gib". Throws FlagsError.
inline uint64_t size_option(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double number = strtod(text.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.size() > 1 && unit.substr(1) == "ib")
    unit.resize(1);
  else if (unit.size() > 1 && unit.substr(1) == "b")
    unit.resize(1);
  const size_t power = unit.empty() || unit == "b" ? 0 : std::string("kmgt").find(unit) + 1;
  const bool known = unit.empty() || unit == "b" || (unit.size() == 1 && power >= 1 && power <= 4);
  const double bytes = number * std::pow(1024.0, static_cast<double>(power));
  if (end == text.c_str() || !known || !std::isfinite(number) || number < 0 || bytes > 9e18) {
    throw FlagsError(name, "'" + text + "' is not a size (as 512m, 2g)");
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace lunar::tools
