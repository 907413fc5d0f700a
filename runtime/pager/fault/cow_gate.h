// SPDX-License-Identifier: Apache-2.0
// The copy-on-write gate (fork/README.md): after a fork, a write to a page that both processes have
// waits until the account has room for the copy (Account::unshare). Such pages are write-protected
// by userfaultfd.
// Threading: gate_close by a forking thread or in its child; gate_lift by handlers. No allocation.
#pragma once
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Write-protects the resident pages of all regions. pre: nothing is evicted or discarded meanwhile.
void gate_close(PagerState& state);

enum class Lift { kLifted, kBusy, kNoRoom, kNotThere };
// Lifts the protection of `page`, and of some pages after it as room allows. force: without taking
// room. kBusy: the page now has a waiter. pagemap: sys::open_own_file, or negative: then every page
// counts as shared.
Lift gate_lift(PagerState& state, Region& region, PageIndex page, int pagemap, bool force);

// While a fork goes on, an evicted page comes back write-protected, and stays so until its word
// says that it is resident: so a child knows it by its content. Read inside of Resolver::releases_.
bool fork_guards(const PagerState& state);
// pre: the words are released
void fork_guard_lift(PagerState& state, void* address, uint64_t bytes);

}  // namespace lunar
