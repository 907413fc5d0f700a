// SPDX-License-Identifier: Apache-2.0
// Guard pages, for the other range operations. See pager_guard.
#pragma once
#include "pager/fault/bring_in.h"

namespace lunar {

// Installs or removes guard pages. 0 or -errno. `wait`: for a fork under way; else -EAGAIN.
[[nodiscard]] int guard_range(PagerState& state, const PageRange& range, bool install, bool wait);

}  // namespace lunar
