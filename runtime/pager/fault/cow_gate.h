// SPDX-License-Identifier: Apache-2.0
// The copy-on-write gate (fork/README.md): after a fork, a write to a page that both processes map
// waits until the account has room for the copy (Account::unshare). Such pages are write-protected
// by userfaultfd. Threading: gate_close by a forking thread or in its child; gate_lift by handlers.
// No allocation.
#pragma once
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Write-protects the resident pages of all regions. pre: nothing is evicted or discarded meanwhile.
void gate_close(PagerState& state);

enum class Lift { kLifted, kBusy, kNoRoom, kNotThere };
// Lifts the protection of `page`, and of some pages after it as room allows. force: even without
// room. kBusy: another thread has locked the page, and will wake the writer. pagemap: the
// descriptor, or negative: then every page counts as shared.
Lift gate_lift(PagerState& state, Region& region, PageIndex page, int pagemap, bool force);

// Whether evicted pages come back write-protected, which they do during a fork. They stay so until
// their words say that they are resident, so a child recognizes them by their content
// (check_brought_in). Called inside Resolver::releases_.
bool fork_guards(const PagerState& state);
// Lifts that protection. pre: the words are released.
void fork_guard_lift(PagerState& state, void* address, uint64_t bytes);

}  // namespace lunar
