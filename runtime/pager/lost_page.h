// SPDX-License-Identifier: Apache-2.0
// A page whose content cannot be read back (kPoisoned): every access raises SIGBUS, or EFAULT or EHWPOISON in a system
// call, until it is discarded. Done with UFFDIO_POISON, or on kernels without it (before 6.6) with a mapping past the
// end of its file, which the housekeeping thread puts in the page's place (unmapped.h).
//
// pre of all: the caller holds the page busy. Rare: may read /proc and map memory; no allocation.
#pragma once
#include "pager/region.h"

namespace lunar {

struct PagerState;

// 0; -EINPROGRESS: the housekeeping thread marks it and wakes its waiters once the page is released and no fork is in
// progress; another -errno: not marked (no memory now; -ENOENT: it is unmapped, or in another map). The page is missing
// then, and a handler tries again at its next fault.
[[nodiscard]] int lost_page_mark(PagerState& state, Region& region, PageIndex page);
// Makes the place missing memory of the tier again.
void lost_page_clear(PagerState& state, const Region& region, PageIndex page);

}  // namespace lunar
