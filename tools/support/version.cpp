// SPDX-License-Identifier: Apache-2.0
#include "tools/support/version.h"

#include "commit.h"

namespace lunar::tools {

std::string version_text() {
  constexpr bool known = LUNAR_COMMIT[0] != 0;
  return std::string(LUNAR_VERSION) + (known ? " (" LUNAR_COMMIT ")" : "");
}

}  // namespace lunar::tools
