// SPDX-License-Identifier: Apache-2.0
// The promise of page tables (account/README.md): a commit is refused if its tables could come to
// fill the budget. Pages that were not committed (MAP_NORESERVE) are *loose*: each leaf of theirs
// asks when it is made.
//
// The unit is a leaf. A chunk in which c pages are committed may need c leaves, or all of its 32; a
// heap chunk all of them, as a huge page populates what is not committed; and a span a page of the
// directory.
// Threading: any thread with signals blocked; short spin locks. promise_change may be called on the
// fault path.
#pragma once
#include <cstdint>

#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Pages that remain for work beside all that cannot be evicted: what eviction keeps free in the
// smallest budget, a batch, a window of a range operation. (Measured at --dram 16m: 3 GiB of
// committed memory are written and read.)
constexpr int64_t kTableRoom = 320;

struct Committed {
  int64_t pages;  // by how many the charge of a plain process changes
  int64_t units;  // and the tables that the memory takes at most
};
// Counts [first, end) as committed (sign 1) or not any more (-1).
Committed count_committed(const PagerState& state, Region& region, uint64_t first, uint64_t end,
                          int sign);
// Whether only committed pages can be populated: in regions of maps, where the rest is
// inaccessible, and without huge pages.
bool charged_exactly(const PagerState& state, const Region& region);

// Changes the process' promise. False: it does not fit (never if units <= 0, or before activation).
[[nodiscard]] bool promise_change(PagerState& state, int64_t units);
int64_t promise_pages();                 // of DRAM
int64_t pages_for_units(int64_t units);  // the same of a promise of so many
// It counts in the account from now on, where `handed` pages of it are already.
void promise_go_live(PagerState& state, int64_t handed = 0);
// counted anew, after tables_enter_child; in the account nothing
void promise_enter_child(PagerState& state);

// What a commit of an active process needs: a promise for [first, end). 0 or -ENOMEM, with nothing
// changed.
[[nodiscard]] int promise_commit(PagerState& state, Region& region, uint64_t first, uint64_t end);
void promise_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end);

}  // namespace lunar
