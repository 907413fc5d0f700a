// SPDX-License-Identifier: Apache-2.0
#include "pager/lock_pages.h"

#include <errno.h>
#include <sys/mman.h>

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

int drop_present(const PagerState& state, const Region& region, uint64_t first, uint64_t end,
                 const PageWord* was, int advice, bool* stays) {
  constexpr unsigned kRunsMax = 32;
  iovec runs[kRunsMax];
  unsigned n = 0;
  int64_t bytes = 0;
  bool all = true;
  const auto drop = [&] {
    if (n != 0) all &= sys::advise_vector(runs, n, MADV_DONTNEED) == bytes;
    n = 0;
    bytes = 0;
  };
  for (uint64_t p = first; p < end;) {
    uint64_t from = p;
    while (p < end && is_present(was[p - first])) ++p;
    if (p == from) {
      ++p;
      continue;
    }
    runs[n] = {region.address_of(PageIndex(from)), (p - from) << state.page_shift};
    bytes += static_cast<int64_t>(runs[n].iov_len);
    if (++n == kRunsMax) drop();
  }
  drop();
  if (all) return 0;
  // A raw call has locked some pages, or the range is sealed: page by page.
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    if (!is_present(was[p - first])) continue;
    void* address = region.address_of(PageIndex(p));
    int one = sys::advise(address, state.page_size, advice);
    stays[p - first] = one < 0 && one != -ENOMEM;  // -ENOMEM: not mapped any more
    if (stays[p - first] && rc == 0) rc = one;
  }
  return rc;
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
