// SPDX-License-Identifier: Apache-2.0
#include "pager/lock_pages.h"

#include <errno.h>

#include "pager/space/deferred_slots.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "pager/table/tables.h"

namespace lunar {

PageWord wait_while_busy(const Region& region, uint64_t page) {
  for (unsigned spins = 0;; ++spins) {
    const PageWord seen = region.table.peek(page);
    if (seen.state() != PageState::kBusy) return seen;
    spins < 100 ? sys::cpu_relax() : spins < 200 ? sys::yield_cpu() : sys::sleep_ns(10'000);
  }
}

PageWord lock_page_with_content(Region& region, uint64_t page) {
  for (;;) {
    PageWord seen = wait_while_busy(region, page);
    if (!has_content(seen) || region.table.lock(page, seen)) return seen;
  }
}

void drop_content(PagerState& state, PageWord was) {
  if (was.state() == PageState::kInFrame || was.state() == PageState::kEvicted) count_evicted(-1);
  if (was.state() == PageState::kInFrame) {
    FramePool& frames = state.frames;
    Slot slot = kNoSlot;
    unsigned lun = 0;
    if (frames.release(was.index(), &slot, &lun)) slot_release(state, lun, slot);
  } else if (was.state() != PageState::kPoisoned || was.has_slot()) {
    slot_release(state, was.lun(), was.slot());
  }
}

bool lock_page(Region& region, uint64_t page, PageWord* was) {
  for (;;) {
    *was = lock_page_with_content(region, page);
    if (has_content(*was) || region.table.lock(page, *was)) return true;
    if (region.table.find(page) == nullptr) return false;
  }
}

int lock_pages(PagerState& state, Region& region, uint64_t first, uint64_t end, PageWord* was) {
  for (uint64_t p = first; p < end; ++p)
    while (!lock_page(region, p, &was[p - first])) {
      if (table_reach(state, region, p, p + 1, 0) == 0) continue;
      while (p-- > first) release_page(state, region, PageIndex(p), was[p - first]);
      return -ENOMEM;
    }
  return 0;
}

PageWord empty_word(PagerState& state, Region& region, uint64_t page, PageWord was,
                    PageState next) {
  if (was.state() == PageState::kResident && state.is_active()) {
    count_resident(state, region, PageIndex(page), -1);
    still_exclusive(was.epoch(), exclusive_epoch(state)) ? state.account.give(1)
                                                         : state.account.give_maybe_shared(1);
  }
  if (has_content(was)) drop_content(state, was);
  uncharge_touched(state, region, was);
  return was.emptied(next);
}

}  // namespace lunar
