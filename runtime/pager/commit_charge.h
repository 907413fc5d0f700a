// SPDX-License-Identifier: Apache-2.0
// vm.overcommit_memory=2: the kernel counts writable memory against its commit limit, and continues to count what was
// once writable until it is unmapped. PROT_NONE and MADV_DONTNEED free none of it, so memory that such a region gives
// up is mapped anew.
// RLIMIT_DATA: the same for memory that is writable; here PROT_NONE ends the count. One rule serves both.
// Of the page tables only the part in use is writable; as a whole they would count 1/256 of the address space.
// Threading: map_anew: any thread that may discard. Tables: any.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/region.h"

namespace lunar {

struct PagerState;

// Maps words and hashes. False: no memory.
[[nodiscard]] bool tables_map(Region& region);
// Makes the words and hashes of [0, end) writable. Called before a word is changed for which table_reach has not been
// called, in a place that may not be committed. 0 or -ENOMEM.
[[nodiscard]] int table_open_further(Region& region, uint64_t end);
[[nodiscard]] inline int table_open(Region& region, uint64_t end) {
  return end <= region.open_pages.load(std::memory_order_acquire) ? 0 : table_open_further(region, end);
}

// Puts a fresh PROT_NONE map in the place of [first, end), if the kernel counts the region's memory. After an error the
// range is as it was, and counted. wait false: -EAGAIN while this process forks. pre: discarded (Discard::kMapping).
// While the process is not active, map_plain_anew does so for any region, and takes content, locks, guard pages and
// advice with the old map (not the list of wipe.h). -EAGAIN: it is active, or about to be.
[[nodiscard]] int map_plain_anew(PagerState& state, Region& region, uint64_t first, uint64_t end);
[[nodiscard]] int map_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait);

}  // namespace lunar
