// SPDX-License-Identifier: Apache-2.0
// A walk over the chunks of a region that may hold pages, with what the kernel has present there.
#pragma once
#include <algorithm>

#include "pager/page/foreign.h"
#include "pager/page/region.h"

namespace lunar {

// Calls visit(first, count, present) for the chunks below `end` that have words or are committed:
// libc may have touched a committed page that has no word. present: a byte for each page; foreign
// pages are not present. Returns 0; an error of pagemap; or the first error of visit.
template <class Visit>
int for_present_chunks(const ForeignRanges& foreign, const Region& region, uint64_t end,
                       Visit visit) {
  uint8_t present[kChunkPages];
  for (uint64_t first = 0; first < end; first += kChunkPages) {
    const uint64_t count = std::min(end - first, kChunkPages);
    if (!region.table.uses(first, first + count) &&
        region.chunk_committed[first / kChunkPages].load(std::memory_order_relaxed) == 0)
      continue;
    int rc = present_own(foreign, region.address_of(PageIndex(first)), count, present);
    if (rc == 0) rc = visit(first, count, present);
    if (rc < 0) return rc;
  }
  return 0;
}

}  // namespace lunar
