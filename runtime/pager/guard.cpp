// SPDX-License-Identifier: Apache-2.0
// Guard pages. The kernel's own markers do the work (SIGSEGV, inherited by fork); the page table knows them so that
// nothing is copied over a marker: UFFDIO_COPY would replace it.
// Threading: any thread; see seize.h.
#include <errno.h>
#include <sys/mman.h>

#include "pager/fault/kept_pages.h"
#include "pager/pager.h"
#include "pager/seize.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "pager/table/leaf_pool.h"
#include "sys/memory_constants.h"

namespace lunar {

bool take_there(Region& region, uint64_t page, PageWord* was) {
  for (;;) {
    *was = seize(region, page);
    if (seized(*was) || region.table.lock(page, *was)) return true;
    if (region.table.find(page) == nullptr) return false;
  }
}

int take_all(PagerState& state, Region& region, uint64_t first, uint64_t end, PageWord* was) {
  for (uint64_t p = first; p < end; ++p)
    while (!take_there(region, p, &was[p - first])) {
      if (table_reach(state, region, p, p + 1, 0) == 0) continue;
      while (p-- > first) release_page(state, region, PageIndex(p), was[p - first]);
      return -ENOMEM;
    }
  return 0;
}

PageWord empty_word(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next) {
  if (was.state() == PageState::kResident && pager_active()) {
    count_resident(state, region, PageIndex(page), -1);
    still_exclusive(was.epoch(), exclusive_epoch(state)) ? state.account.give(1) : state.account.give_maybe_shared(1);
  }
  if (seized(was)) drop_content(state, was);
  uncharge_touched(state, region, was);
  return was.with_state(next).with_slot(kNoSlot).with_heat(0).with_charged(false);
}

int guard_pages(PagerState& state, Region& region, uint64_t first, uint64_t end, bool install) {
  PageWord was[kChunkPages];
  bool done[kChunkPages], taken[kChunkPages] = {};
  if (int rc = install ? take_all(state, region, first, end, was) : 0; rc < 0) return rc;
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    taken[p - first] = install || take_there(region, p, &was[p - first]);
    if (install && pinned_by_program(region, p)) rc = -EINVAL;
  }
  if (rc == 0) {
    const int advice = install ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE;
    rc = sys::advise(region.address_of(PageIndex(first)), (end - first) << state.page_shift, advice);
    for (uint64_t p = first; p < end; ++p)  // what stopped it may have done so half way
      done[p - first] = rc == 0 || sys::advise(region.address_of(PageIndex(p)), state.page_size, advice) == 0;
  } else {
    for (bool& one : done) one = false;
  }
  for (uint64_t p = first; p < end; ++p) {
    PageWord w = was[p - first];
    if (!taken[p - first]) continue;
    PageWord next = w;
    if (done[p - first] && install) next = empty_word(state, region, p, w, PageState::kGuard);
    if (done[p - first] && !install && w.state() == PageState::kGuard) next = w.with_state(PageState::kEmpty);
    release_page(state, region, PageIndex(p), next);
  }
  if (!install) table_retire(state, region, first, end);
  return rc;
}

void pager_unpin_all() {
  auto& state = pager_state();
  if (!pager_active()) return;
  for (Region& region : state.regions) {
    uint64_t end = region.table_pages.load(std::memory_order_acquire);
    int64_t cleared = 0;
    for (uint64_t p = 0, next; p < end; p = next) {
      next = p + kChunkPages < end ? p + kChunkPages : end;
      if (region.table.uses(p, next)) cleared += program_pins(state, region, p, next, false);
    }
    state.pinned_pages.fetch_sub(cleared);
  }
}

char* region_boundary(char* address, char* end) {
  auto& state = pager_state();
  for (const Region& region : state.regions) {
    char *base = region.base, *limit = base + (region.pages << state.page_shift);
    if (base > address && base < end) end = base;
    if (limit > address && limit < end) end = limit;
  }
  bool foreign = false;
  return state.foreign.run(address, end, &foreign);
}

}  // namespace lunar
