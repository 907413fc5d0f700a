// SPDX-License-Identifier: Apache-2.0
// The memory of page tables (page_table.h): a leaf comes when one of its pages is first used
// (table_reach) and goes when all of them are empty (table_retire). Leaves and directory pages are
// DRAM: once the process is active they are taken from the account like a resident page, so
// table_reach can fail. Empty pool and directory pages go back (table_trim). table_promise.h says
// how many there may be.
//
// Threading: any thread, also on the fault path: one spin lock, no wait, no allocation but the map
// of a new segment. Program threads block signals around calls (a handler may fork). table_retire
// and table_trim: see there.
// A forked child takes the directories as they were; the pool follows from them
// (tables_enter_child).
#pragma once
#include <cstdint>

#include "pager/page/page_table.h"

namespace lunar {

struct PagerState;
struct Region;

// Gives the pages of [first, end) words. 0; -EAGAIN: no DRAM now (the budget would have fewer than
// `keep_free` pages free); -ENOMEM: the tables take all the room that they may, or the kernel gives
// no memory. What has been added stays.
[[nodiscard]] int table_reach(PagerState& state, Region& region, uint64_t first, uint64_t end,
                              int64_t keep_free);
void table_note_committed(Region& region, uint64_t end);  // scans go so far from now on
// The same for program threads: waits up to a second for room. 0 or -ENOMEM. pre: no scope.
[[nodiscard]] int table_reach_waiting(PagerState& state, Region& region, uint64_t first,
                                      uint64_t end);

// Takes the leaves of [first, end) whose pages are all empty out of the directory. pre: no fork can
// come in between (MutatorScope, the evictor, activation.lock, settling a note).
void table_retire(PagerState& state, Region& region, uint64_t first, uint64_t end);
// When the region ends: all of them, whatever they hold, and its directory's pages. pre: no thread
// uses the region.
void table_retire_all(PagerState& state, Region& region);
// Gives empty pages back. By the housekeeping thread. False: more will come soon.
bool table_trim(PagerState& state);

int64_t table_pages();         // of DRAM that all tables take now
int64_t tables_loose_units();  // leaves (and pages of the directory, as leaves) that are loose
void tables_go_live(PagerState& state);  // the account counts them from now on
// In a forked child, before its words are looked at: the pool as the directories say, and the
// regions' table_pages. The account counts nothing yet (tables_go_live).
void tables_enter_child(PagerState& state);

}  // namespace lunar
