// SPDX-License-Identifier: Apache-2.0
// Handing a range with its contents over to the kernel: code that a program generates stays in DRAM like all other
// code. Brings the pages in, ends their registration, and marks them gone in the page table (PageWord::handed_over).
// They do not come back. Nor does what another map of the program's has been put over (MAP_FIXED).
// Threading: any thread; see seize.h. Waits for the device and for room.
#include <errno.h>
#include <sys/mman.h>

#include "pager/descriptors.h"
#include "pager/evictor.h"
#include "pager/pager.h"
#include "pager/seize.h"
#include "pager/state.h"
#include "pager/unmapped.h"
#include "pager/wipe.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

constexpr uint64_t kAtOnce = 64;

// All of them are on the LUN no more: taken. Else none is.
bool take_present(PagerState& state, Region& region, uint64_t first, uint64_t end, PageWord* was) {
  bool all = true;
  uint64_t p = first;
  for (; p < end && all; ++p) {
    PageWord seen = was[p - first] = take_any(region, p);
    all = seen.state() != PageState::kEvicted && seen.state() != PageState::kInFrame;
  }
  if (all) return true;
  while (p-- > first)
    if (was[p - first].state() != PageState::kGone) put_back(state, region, p, was[p - first]);
  return false;
}

int hand_over_pages(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  PageWord was[kAtOnce];
  char* address = region.address_of(PageIndex(first));
  const lunar_range range{address, (end - first) << state.page_shift};
  for (;;) {
    int rc = pager_prefetch(&range, 1);
    if (rc < 0 && rc != -EIO && rc != -EFAULT) return rc;  // a poisoned page stays one
    MutatorScope scope(state);
    if (!take_present(state, region, first, end, was)) continue;
    rc = sys::uffd_unregister(state.uffd, address, range.bytes);
    for (uint64_t p = first; p < end; ++p) {
      PageWord w = was[p - first];
      if (w.state() == PageState::kGone) continue;
      if (rc == 0 && w.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(region.words[p]));
      put_back(state, region, p,
               rc == 0 ? empty_word(state, region, p, w, PageState::kGone).with_index(PageWord::kHandedOver) : w);
    }
    return rc;
  }
}

// The kernel has it, or will: the contents are not needed. pre: not active.
void give_up(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  table_reach(state, region, first, end);
  region.has_handed_over.store(true, std::memory_order_release);
  for (uint64_t p = first; p < end; ++p) {
    PageWord was = take_any(region, p);
    if (was.state() != PageState::kGone)
      put_back(state, region, p, was.with_state(PageState::kGone).with_index(PageWord::kHandedOver));
  }
}

int map_in_place(char* at, size_t bytes, const OtherMap& map) {
  void* out = nullptr;
  return sys::map(at, bytes, map.prot, map.flags | MAP_FIXED, map.fd, map.offset, &out);
}

// All words are kBusy while the map changes: a thread that faults in between waits and then finds the new one.
int map_over_pages(PagerState& state, Region& region, uint64_t first, uint64_t end, const OtherMap& map) {
  table_reach(state, region, first, end);
  region.has_handed_over.store(true, std::memory_order_release);
  char* at = region.address_of(PageIndex(first));
  MutatorScope scope(state);
  for (uint64_t p = first; p < end; ++p) (void)take_any(region, p);
  OwnUnmap own(state, at, (end - first) << state.page_shift);
  const int rc = map_in_place(at, (end - first) << state.page_shift, map);
  own.end();
  for (uint64_t p = first; p < end; ++p) {
    AtomicPageWord& word = region.words[p];
    const PageWord busy = word.load(std::memory_order_relaxed), was = busy.with_state(busy.settled());
    if (was.state() == PageState::kGone) continue;
    if (rc == 0 && was.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(word));
    put_back(state, region, p,
             rc == 0 ? empty_word(state, region, p, was, PageState::kGone).with_index(PageWord::kHandedOver) : was);
  }
  if (rc < 0) own.tell();  // it has been unmapped all the same
  return rc;
}

}  // namespace

int region_map_over(Region* region, size_t offset, size_t bytes, const OtherMap& map) {
  auto& state = pager_state();
  const uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  char* at = region->address_of(PageIndex(first));
  if (int rc = wipe_any() ? pager_wipe_on_fork(at, bytes, false) : 0; rc < 0) return rc;
  if (!pager_active()) {
    sys::Locked<sys::Mutex> lock(state.activation_lock);
    if (!pager_active()) {
      const int rc = map_in_place(at, bytes, map);
      if (rc == 0) give_up(state, *region, first, end);
      return rc;
    }
  }
  return map_over_pages(state, *region, first, end, map);
}

int region_hand_over(Region* region, size_t offset, size_t bytes, size_t* done) {
  auto& state = pager_state();
  *done = 0;
  if (!pager_active()) {
    sys::Locked<sys::Mutex> lock(state.activation_lock);
    if (!pager_active()) {
      give_up(state, *region, offset >> state.page_shift, (offset + bytes) >> state.page_shift);
      *done = bytes;
      return 0;
    }
  }
  if (!descriptors_in_place(state)) return -ENOMEM;
  uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  table_reach(state, *region, first, end);
  region->has_handed_over.store(true, std::memory_order_release);
  for (uint64_t p = first; p < end;) {
    uint64_t next = p + kAtOnce < end ? p + kAtOnce : end;
    if (int rc = hand_over_pages(state, *region, p, next); rc < 0) return rc;
    *done += (next - p) << state.page_shift;
    p = next;
  }
  return 0;
}

}  // namespace lunar
