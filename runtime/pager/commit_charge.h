// SPDX-License-Identifier: Apache-2.0
// vm.overcommit_memory=2: the kernel counts writable memory against its commit limit, and continues to count what was
// once writable until it is unmapped. PROT_NONE and MADV_DONTNEED free none of it, so memory that such a region gives
// up is mapped anew.
// RLIMIT_DATA: the same for memory that is writable; here PROT_NONE ends the count. One rule serves both.
// Threading: any thread that may discard.
#pragma once
#include <cstdint>

#include "pager/region.h"

namespace lunar {

struct PagerState;

// Puts a fresh PROT_NONE map in the place of [first, end), if the kernel counts the region's memory. After an error the
// range is as it was, and counted. wait false: -EAGAIN while this process forks. pre: discarded (Discard::kMapping).
// While the process is not active, map_plain_anew does so for any region, and takes content, locks, guard pages and
// advice with the old map (not the list of wipe.h). -EAGAIN: it is active, or about to be.
[[nodiscard]] int map_plain_anew(PagerState& state, Region& region, uint64_t first, uint64_t end);
[[nodiscard]] int map_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait);

}  // namespace lunar
