// SPDX-License-Identifier: Apache-2.0
// A page whose content cannot be read back (kPoisoned): every access raises SIGBUS, or EFAULT or EHWPOISON in a system
// call, until it is discarded (UFFDIO_POISON).
//
// pre of all: the caller holds the page busy.
#pragma once
#include "pager/region.h"

namespace lunar {

struct PagerState;

// 0 or -errno: not marked (no memory now, an unread event; -ENOENT: another map is there). The page is missing then,
// and a handler tries again at its next fault.
[[nodiscard]] int lost_page_mark(const PagerState& state, const Region& region, PageIndex page);
// Makes the place missing memory of the tier again.
void lost_page_clear(const PagerState& state, const Region& region, PageIndex page);

}  // namespace lunar
