// SPDX-License-Identifier: Apache-2.0
// The help text of `lunar` itself.
// Threading: free functions, no state.
#pragma once
#include <string>

namespace lunar::tools {

std::string main_help();  // of `lunar --help`

}  // namespace lunar::tools
