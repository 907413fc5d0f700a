// SPDX-License-Identifier: Apache-2.0
// See lost_page.h.
#include "pager/lost_page.h"

#include <sys/mman.h>

#include "pager/state.h"
#include "sys/mem.h"
#include "sys/uffd.h"

namespace lunar {

int lost_page_mark(const PagerState& state, const Region& region, PageIndex page) {
  return sys::uffd_poison(state.uffd, region.address_of(page), state.page_size);
}

void lost_page_clear(const PagerState& state, const Region& region, PageIndex page) {
  (void)sys::advise(region.address_of(page), state.page_size, MADV_DONTNEED);
}

}  // namespace lunar
