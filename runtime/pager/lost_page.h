// SPDX-License-Identifier: Apache-2.0
// A page whose content cannot be read back (kPoisoned): every access raises SIGBUS, or EFAULT or EHWPOISON in a system
// call, until it is discarded. Done with UFFDIO_POISON, or on kernels without it (before 6.6) with a mapping past the
// end of its file, which the housekeeping thread puts in the page's place (unmapped.h).
//
// pre of all: the page is the caller's (busy). Rare: may read /proc and map memory; no allocation.
#pragma once
#include "pager/region.h"

namespace lunar {

struct PagerState;

// 0; -EINPROGRESS: the housekeeping thread marks it and wakes its waiters once the page is released and no fork is
// under way; another -errno: not marked (no memory just now; -ENOENT: it is unmapped, or another map's). The page is
// then missing, and a handler tries again at its next fault.
[[nodiscard]] int lost_page_mark(PagerState& state, Region& region, PageIndex page);
// The place is missing memory of the tier again.
void lost_page_clear(PagerState& state, const Region& region, PageIndex page);

}  // namespace lunar
