// SPDX-License-Identifier: Apache-2.0
// Service threads: handlers, evictor and the housekeeping thread, with their DRAM; in a forked
// child too. 0 or -errno with *why.
// Threading: under activation's lock, or in a forked child.
#pragma once
#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

[[nodiscard]] int start_threads(PagerState& state, ErrorText* why);
[[nodiscard]] int no_room(const PagerState& state, ErrorText* why);  // for them: -ENOMEM

}  // namespace lunar
