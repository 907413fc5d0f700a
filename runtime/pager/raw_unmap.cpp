// SPDX-License-Identifier: Apache-2.0
// Settles notes (unmapped.h) of ranges that raw system calls unmapped or mapped over, and of pages that were lost.
// Threading: the housekeeping thread, which may wait for pages that other threads have busy.
#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "pager/resolver.h"
#include "pager/unmap_notes.h"
#include "sys/fatal.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {

// pre: the page has a word, and keeps it: only this thread takes pages of it away from the tier.
static PageWord hold_any(PagerState& state, Region& region, uint64_t page) {
  return hold_page(state, region, page, true, [] {});
}

void release_held(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next) {
  AtomicPageWord* word = region.table.find(page);  // a page that is gone need not be held
  if (was.state() == PageState::kGone) {
    if (word != nullptr) word->compare_exchange_strong(was, was.with_state(next).with_slot(kNoSlot));
    return;
  }
  if (was.state() == PageState::kResident) {
    count_resident(state, region, PageIndex(page), -1);
    still_exclusive(was.epoch(), exclusive_epoch(state)) ? state.account.give(1) : state.account.give_maybe_shared(1);
  }
  if (seized(was)) drop_content(state, was);
  uncharge_touched(state, region, was);
  if (was.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(*word));
  put_back(state, region, page, was.with_state(next).with_slot(kNoSlot).with_heat(0).with_charged(false));
}

void release_page(PagerState& state, Region& region, uint64_t page, PageState next) {
  release_held(state, region, page, hold_any(state, region, page), next);
}

static void release_pages(PagerState& state, Region& region, uint64_t first, uint64_t end, PageState next) {
  for (uint64_t page = region.table.next_used(first, end); page < end; page = region.table.next_used(page + 1, end))
    release_page(state, region, page, next);
  table_retire(state, region, first, end);
}

// Takes the place back, as far as no other map has it. pre: its pages are released. (Else a read that was under way
// would find memory to put its page into: old content for the next owner of the place.)
static void take_place(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  claim_place(region, first, end, [&](uint64_t from, uint64_t to, int rc) {
    if (rc == 0 && watch_fresh_range(state, region.address_of(PageIndex(from)), (to - from) << state.page_shift) == 0)
      return;
    // the words tell what the maps' owner will be told
    if (table_reach_waiting(state, region, from, to) < 0)
      fatal(
          "a raw call has mapped over tiered memory at %p, and the page tables that this takes do not fit into the "
          "DRAM budget; give a larger --dram",
          static_cast<void*>(region.address_of(PageIndex(from))));
    release_pages(state, region, from, to, PageState::kGone);
  });
}

void settle_unmapped(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  release_pages(state, region, first, end, PageState::kEmpty);
  take_place(state, region, first, end);
}

int map_lost_page(PagerState& state, void* to) {
  const int protection = sys::protection_of(to);
  if (protection < 0) return protection;
  g_notes.marking.store(reinterpret_cast<uintptr_t>(to));
  const int rc = sys::map_past_end(to, state.page_size, protection);
  state.event_gate.wait_for_readers();
  g_notes.marking.store(0);
  return rc;
}

bool is_watched(PagerState& state, void* at) {
  void* unreadable = nullptr;
  if (sys::map(nullptr, state.page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &unreadable) <
      0)
    return true;
  const int64_t rc = when_events_are_read([&] { return sys::uffd_copy(state.uffd, at, unreadable, state.page_size); });
  (void)sys::unmap(unreadable, state.page_size);
  return rc == -EFAULT;
}

// Wakes the threads that wait for a page when its access raises SIGBUS.
void settle_lost(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  for (uint64_t page = first; page < end; ++page) {
    char* at = region.address_of(PageIndex(page));
    const PageWord was = hold_any(state, region, page);
    if (was.state() == PageState::kGone) continue;
    if (was.state() == PageState::kPoisoned && is_watched(state, at)) {  // else discarded, or unmapped
      const int rc = map_lost_page(state, at);
      if (rc < 0 && is_watched(state, at))
        fatal("page %p was lost to a read error, and cannot be made to say so (%s)", static_cast<void*>(at),
              errno_name(rc));
    }
    put_back(state, region, page, was);
    (void)sys::uffd_wake(state.uffd, at, state.page_size);
  }
}

}  // namespace lunar
