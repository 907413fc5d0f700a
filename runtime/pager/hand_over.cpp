// SPDX-License-Identifier: Apache-2.0
// Handing a range over to the kernel, contents and all: code that a program generates stays in DRAM like all other code. Its pages are
// brought in, their registration ends, and the page table calls them gone (PageWord::handed_over). They do not come back.
// Threading: any thread; see seize.h. Waits for the device and for room.
#include <errno.h>

#include "pager/descriptors.h"
#include "pager/evictor.h"
#include "pager/pager.h"
#include "pager/seize.h"
#include "pager/state.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

constexpr uint64_t kAtOnce = 64;

// All of them are on the LUN no more: taken. Else none is.
bool take_present(Region& region, uint64_t first, uint64_t end, PageWord* was) {
  bool all = true;
  uint64_t p = first;
  for (; p < end && all; ++p) {
    PageWord seen = was[p - first] = take_any(region, p);
    all = seen.state() != PageState::kEvicted && seen.state() != PageState::kInFrame;
  }
  if (all) return true;
  while (p-- > first)
    if (was[p - first].state() != PageState::kGone) put_back(region, p, was[p - first]);
  return false;
}

int hand_over_pages(Region& region, uint64_t first, uint64_t end) {
  auto& state = pager_state();
  PageWord was[kAtOnce];
  char* address = region.address_of(PageIndex(first));
  const lunar_range range{address, (end - first) << state.page_shift};
  for (;;) {
    int rc = pager_prefetch(&range, 1);
    if (rc < 0 && rc != -EIO && rc != -EFAULT) return rc;   // a poisoned page stays one
    MutatorScope scope;
    if (!take_present(region, first, end, was)) continue;
    rc = sys::uffd_unregister(state.uffd, address, range.bytes);
    for (uint64_t p = first; p < end; ++p) {
      PageWord w = was[p - first];
      if (w.state() == PageState::kGone) continue;
      if (rc == 0 && w.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(region.words[p]));
      put_back(region, p, rc == 0 ? empty_word(region, p, w, PageState::kGone).with_index(PageWord::kHandedOver) : w);
    }
    return rc;
  }
}

}  // namespace

void region_give_up(Region* region, size_t offset, size_t bytes) {
  const unsigned shift = pager_state().page_shift;
  uint64_t first = offset >> shift, end = (offset + bytes) >> shift;
  table_reach(*region, first, end);
  region->has_handed_over.store(true, std::memory_order_release);
  for (uint64_t p = first; p < end; ++p) {
    PageWord was = take_any(*region, p);
    if (was.state() != PageState::kGone) put_back(*region, p, was.with_state(PageState::kGone).with_index(PageWord::kHandedOver));
  }
}

int region_hand_over(Region* region, size_t offset, size_t bytes, size_t* done) {
  auto& state = pager_state();
  *done = 0;
  if (!pager_armed()) {
    sys::Locked<sys::Mutex> hold(state.arm_lock);
    if (!pager_armed()) {
      region_give_up(region, offset, bytes);
      *done = bytes;
      return 0;
    }
  }
  if (!descriptors_in_place(state)) return -ENOMEM;
  uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  table_reach(*region, first, end);
  region->has_handed_over.store(true, std::memory_order_release);
  for (uint64_t p = first; p < end;) {
    uint64_t next = p + kAtOnce < end ? p + kAtOnce : end;
    if (int rc = hand_over_pages(*region, p, next); rc < 0) return rc;
    *done += (next - p) << state.page_shift;
    p = next;
  }
  return 0;
}

}  // namespace lunar
