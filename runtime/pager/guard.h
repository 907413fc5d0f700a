// SPDX-License-Identifier: Apache-2.0
// Guard pages, for the other range operations. See pager_guard.
#pragma once
#include "pager/fault/bring_in.h"

namespace lunar {

// Installs or removes guard pages. 0 or -errno. wait: waits for a running fork. If false, returns
// -EAGAIN instead.
[[nodiscard]] int guard_range(PagerState& state, const PageRange& range, bool install, bool wait);

}  // namespace lunar
