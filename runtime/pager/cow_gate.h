// SPDX-License-Identifier: Apache-2.0
// The copy-on-write gate. After a fork, a write to a page that both processes have copies it: DRAM that nobody asked the account for, and
// copies are made faster than pages are evicted. So where the budget has no room for all of them, what is resident is write-protected by
// userfaultfd in both processes: in the parent before the fork, in the child before it runs anything of the program. A write to such a page
// is a message; the handler lifts the protection when the account has room for the copy (Account::unshare), and the writer waits until then.
//
// A protected page cannot be written, so eviction gathers it as it is: it is not made exclusive first, which would copy it.
// Kernels that cannot write-protect anonymous memory (before 5.7, some architectures): what a fork shares is charged in full, both processes
// evict, and copies may pass the cap until they have.
// Threading: gate_close by a forking thread or in its child; gate_lift by handlers. No allocation.
#pragma once
#include "pager/region.h"

namespace lunar {

struct PagerState;

// Write-protects what is resident in all regions. pre: nothing is evicted or discarded meanwhile.
void gate_close(PagerState& state);

enum class Lift { kLifted, kBusy, kNoRoom, kNotThere };
// Lets `page` be written, and some behind it as room allows. force: without asking for room. kBusy: marked as waited for.
// pagemap: sys::open_own_file, or negative: then every page counts as shared.
Lift gate_lift(Region& region, PageIndex page, int pagemap, bool force);

}  // namespace lunar
