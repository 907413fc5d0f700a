// SPDX-License-Identifier: Apache-2.0
// The promise of page tables (account/README.md): a commit is refused if its tables might fill the
// budget. Leaves of pages that were not committed (MAP_NORESERVE) are *loose*: each is promised
// when it is made.
//
// The unit is a leaf. A chunk with c committed pages needs at most c leaves, and at most its 32. A
// heap chunk may need all 32, because a huge page also populates pages that are not committed. A
// span needs a page of the directory. Threading: any thread with signals blocked; short spin locks.
// promise_change may be called on the fault path.
#pragma once
#include <cstdint>

#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Pages of the cap that must not be fixed: what eviction keeps free in the smallest budget, a
// batch, and the window of a range operation. (Measured at --dram 16m: 3 GiB of committed memory
// are written and read.)
constexpr int64_t kTableRoom = 320;

struct Committed {
  int64_t pages;  // change of a plain process' charge
  int64_t units;  // change of the most that tables may take
};
// Counts [first, end) as committed (sign 1) or not any more (-1).
Committed count_committed(const PagerState& state, Region& region, uint64_t first, uint64_t end,
                          int sign);
// Whether only committed pages can be populated: in regions of maps, where the rest is
// inaccessible, and without huge pages.
bool charged_exactly(const PagerState& state, const Region& region);

// Changes the process' promise. False: it does not fit (never if units <= 0, or before activation).
[[nodiscard]] bool promise_change(PagerState& state, int64_t units);
int64_t promise_pages();                 // the process' promise in pages of DRAM
int64_t pages_for_units(int64_t units);  // pages of DRAM for a promise of `units`
// The promise counts in the account from now on. `handed` pages of it are there already.
void promise_go_live(PagerState& state, int64_t handed = 0);
// In a forked child, after tables_enter_child: counts the promise anew. The account has none of it
// yet.
void promise_enter_child(PagerState& state);

// Promises the tables of [first, end), for a commit of an active process. 0 or -ENOMEM, with
// nothing changed.
[[nodiscard]] int promise_commit(PagerState& state, Region& region, uint64_t first, uint64_t end);
void promise_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end);

}  // namespace lunar
