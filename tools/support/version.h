// SPDX-License-Identifier: Apache-2.0
// What this program was built from.
// Threading: any.
#pragma once
#include <string>

namespace lunar::tools {

// "0.2.0 (1234567890)", with -dirty behind the commit when there were changes; without it outside
// of a git checkout.
std::string version_text();

}  // namespace lunar::tools
