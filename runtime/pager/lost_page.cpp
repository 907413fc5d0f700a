// SPDX-License-Identifier: Apache-2.0
// See lost_page.h.
#include "pager/lost_page.h"

#include <errno.h>
#include <sys/mman.h>

#include "pager/state.h"
#include "pager/unmapped.h"
#include "sys/proc.h"

namespace lunar {

int lost_page_mark(PagerState& state, Region& region, PageIndex page) {
  char* address = region.address_of(page);
  if (state.features.poison)
    return static_cast<int>(change_pages(state, address, state.page_size,
                                         [&] { return sys::uffd_poison(state.uffd, address, state.page_size); }));
  lost_note(state, region, page);
  return -EINPROGRESS;
}

void lost_page_clear(PagerState& state, const Region& region, PageIndex page) {
  void* address = region.address_of(page);
  if (state.features.poison) {
    (void)sys::advise(address, state.page_size, MADV_DONTNEED);
    return;
  }
  const int protection = sys::protection_of(address);
  void* out = nullptr;
  // it may not be marked yet: to map over it is no event then
  (void)sys::uffd_unregister(state.uffd, address, state.page_size);
  // A touch between the two calls finds memory that handlers then take over as it is. What cannot be registered (the
  // program has closed our descriptor) is plain memory until it is unmapped.
  if (sys::map(address, state.page_size, protection < 0 ? PROT_READ | PROT_WRITE : protection,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0, &out) < 0)
    return;  // it goes on to raise SIGBUS
  (void)watch_fresh_range(state, address, state.page_size);
}

}  // namespace lunar
