// SPDX-License-Identifier: Apache-2.0
// Service threads: handlers, the evictor and the housekeeping thread.
// Threading: under activation's lock, or in a forked child.
#pragma once
#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

// Takes their DRAM and starts them. 0 or -errno with *why.
[[nodiscard]] int start_threads(PagerState& state, ErrorText* why);
// Fills in *why, that the tree has no DRAM for them, and returns -ENOMEM.
[[nodiscard]] int no_room(const PagerState& state, ErrorText* why);

}  // namespace lunar
