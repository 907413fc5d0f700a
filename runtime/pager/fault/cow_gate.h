// SPDX-License-Identifier: Apache-2.0
// The copy-on-write gate. After a fork, a write to a page that both processes have copies it: DRAM that was not taken
// from the account, and copies are made faster than pages are evicted. So if the budget has no room for all copies,
// resident pages are write-protected by userfaultfd in both processes: in the parent before the fork, in the child
// before any code of the program runs. A write to such a page sends a message; the handler lifts the protection once
// the account has room for the copy (Account::unshare), and the writer waits until then.
//
// A protected page cannot be written, so the evictor gathers it as it is; making it exclusive first would copy it. On
// architectures whose userfaultfd cannot write-protect anonymous memory a fork charges shared pages in full, both
// processes evict, and copies may pass the cap until they have.
// Threading: gate_close by a forking thread or in its child; gate_lift by handlers. No allocation.
#pragma once
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Write-protects the resident pages of all regions. pre: nothing is evicted or discarded meanwhile.
void gate_close(PagerState& state);

enum class Lift { kLifted, kBusy, kNoRoom, kNotThere };
// Lifts the protection of `page`, and of some pages after it as room allows. force: without taking room. kBusy: the
// page now has a waiter. pagemap: sys::open_own_file, or negative: then every page counts as shared.
Lift gate_lift(PagerState& state, Region& region, PageIndex page, int pagemap, bool force);

// While a fork goes on, an evicted page comes back write-protected, and stays so until its word says that it is
// resident: so a child knows it by its content. Read inside of Resolver::releases_.
bool fork_guards(const PagerState& state);
void fork_guard_lift(PagerState& state, void* address, uint64_t bytes);  // pre: the words are released

}  // namespace lunar
