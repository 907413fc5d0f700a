// SPDX-License-Identifier: Apache-2.0
// The help texts of `lunar` itself.
// Threading: free functions, no state. May not be used by runtime/ (it allocates).
#pragma once
#include <string>

namespace lunar::tools {

std::string main_help();  // `lunar --help`

}  // namespace lunar::tools
