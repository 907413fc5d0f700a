// SPDX-License-Identifier: Apache-2.0
// The version of this program.
// Threading: any.
#pragma once
#include <string>

namespace lunar::tools {

// "0.2.0 (1234567890)", with -dirty after the commit if there were changes. Outside of a git
// checkout: "0.2.0".
std::string version_text();

}  // namespace lunar::tools
