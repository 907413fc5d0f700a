// SPDX-License-Identifier: Apache-2.0
// Activation itself: see activation.h.
#pragma once
#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

// Opens and checks the LUN without reserving anything. 0 or -errno with *why.
[[nodiscard]] int check_lun(PagerState& state, ErrorText* why);
// The LUN's part of standby_open.
void standby_lun(PagerState& state, bool child);
void activation_prepare();  // once, at the start
// See pager_activate.
[[nodiscard]] int activate(PagerState& state, ErrorText* why);

}  // namespace lunar
