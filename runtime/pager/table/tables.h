// SPDX-License-Identifier: Apache-2.0
// The memory of page tables (page_table.h): a leaf is made when one of its pages is first used
// (table_reach), and retired when all of them are empty (table_retire). Leaves and directory pages
// are DRAM: an active process takes them from the account like resident pages, so table_reach can
// fail. Empty pages of the pool and of directories are given back (table_trim). table_promise.h
// limits how many there are.
//
// Threading: any thread, also on the fault path: one spin lock, no wait, no allocation except the
// map of a new segment. Program threads block signals around calls (a signal handler may fork).
// table_retire and table_trim have rules of their own.
#pragma once
#include <cstdint>

#include "pager/page/page_table.h"

namespace lunar {

struct PagerState;
struct Region;

// Gives the pages of [first, end) words. 0; -EAGAIN: no DRAM now (the budget would have fewer than
// `keep_free` pages free); -ENOMEM: the tables take all the room that they may, or the kernel gives
// no memory. After an error, leaves that were added stay.
[[nodiscard]] int table_reach(PagerState& state, Region& region, uint64_t first, uint64_t end,
                              int64_t keep_free);
void table_note_committed(Region& region, uint64_t end);  // scans go as far as `end` from now on
// table_reach for program threads: waits up to a second for room. 0 or -ENOMEM. pre: no scope.
[[nodiscard]] int table_reach_waiting(PagerState& state, Region& region, uint64_t first,
                                      uint64_t end);

// Takes the leaves of [first, end) whose pages are all empty out of the directory. pre: no fork can
// come in between (MutatorScope, the evictor, activation.lock).
void table_retire(PagerState& state, Region& region, uint64_t first, uint64_t end);
// When the region ends: retires all its leaves, whatever they hold, and gives back its directory's
// pages. pre: no thread uses the region.
void table_retire_all(PagerState& state, Region& region);
// Gives empty pages back. By the housekeeping thread. False: leaves wait for the end of scopes;
// call again soon.
bool table_trim(PagerState& state);

int64_t table_pages();         // pages of DRAM that all tables take now
int64_t tables_loose_units();  // loose leaves, and loose pages of the directory counted in leaves
void tables_go_live(PagerState& state);  // the account counts them from now on
// In a forked child, before its words are read: rebuilds the pool and the regions' table_pages from
// the directories. The account counts nothing yet (tables_go_live).
void tables_enter_child(PagerState& state);

}  // namespace lunar
