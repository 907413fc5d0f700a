// SPDX-License-Identifier: Apache-2.0
// Gives places of a region to the kernel, and takes them back (foreign.h): for maps that the
// program puts over them (MAP_FIXED), and for code that it generates, which stays in DRAM like all
// other code. Pages that are given away are kEmpty. Threading: any thread, one at a time; see
// lock_pages.h. Waits for the device and for room.
#include <errno.h>
#include <sys/mman.h>

#include "pager/activation/activation.h"
#include "pager/fault/map_events.h"
#include "pager/fork/wipe.h"
#include "pager/lock_pages.h"
#include "pager/pager.h"
#include "pager/state/descriptors.h"
#include "pager/state/install.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/by_halves.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

constexpr uint64_t kAtOnce = 64;

bool in_use(const Region& region, uint64_t chunk) {
  return region.table.uses(chunk * kChunkPages, chunk * kChunkPages + region.chunk_size(chunk));
}

// The place of a locked page is given away.
void forget_locked(PagerState& state, Region& region, uint64_t page, PageWord was) {
  AtomicPageWord& word = region.table.at(page);
  if (was.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(word));
  release_page(state, region, PageIndex(page),
               empty_word(state, region, page, was, PageState::kEmpty));
}

void forget_pages(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  const TableScope scope;
  PageWord was;
  for (uint64_t p = region.table.next_used(first, end); p < end;
       p = region.table.next_used(p + 1, end))
    if (region.table.peek(p).state() != PageState::kEmpty && lock_page(region, p, &was))
      forget_locked(state, region, p, was);
  table_retire(state, region, first, end);
}

// The same for a large range, in most of which no page table is in use.
void forget_range(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  for (uint64_t p = first, next; p < end; p = next) {
    next = chunk_end(p, end);
    if (in_use(region, p / kChunkPages)) forget_pages(state, region, p, next);
  }
}

// Locks the pages. 0: no content of theirs is on the LUN. -EAGAIN: some is, and no page is locked;
// -ENOMEM: likewise.
int lock_present(PagerState& state, Region& region, uint64_t first, uint64_t end, PageWord* was) {
  if (int rc = lock_pages(state, region, first, end, was); rc < 0) return rc;
  bool all = true;
  for (uint64_t p = first; p < end; ++p)
    all &= was[p - first].state() != PageState::kEvicted &&
           was[p - first].state() != PageState::kInFrame;
  for (uint64_t p = first; p < end && !all; ++p)
    release_page(state, region, PageIndex(p), was[p - first]);
  return all ? 0 : -EAGAIN;
}

// From now on the range is foreign.
int end_watch(PagerState& state, char* address, uint64_t bytes) {
  if (const int rc = sys::uffd_unregister(state.uffd, address, bytes); rc < 0) return rc;
  (void)sys::advise(address, bytes, MADV_DOFORK);
  state.foreign.add(address, bytes);
  return 0;
}

int hand_over_pages(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  PageWord was[kAtOnce];
  char* address = region.address_of(PageIndex(first));
  const lunar_range range{address, (end - first) << state.page_shift};
  for (;;) {
    int rc = pager_prefetch(&range, 1);
    // a poisoned page stays poisoned, a guard page a guard page
    if (rc < 0 && rc != -EIO && rc != -EFAULT) return rc;
    MutatorScope scope(state);
    rc = lock_present(state, region, first, end, was);
    if (rc == -EAGAIN) continue;
    if (rc < 0) return rc;
    rc = end_watch(state, address, range.bytes);
    for (uint64_t p = first; p < end; ++p) {
      if (rc == 0)
        forget_locked(state, region, p, was[p - first]);
      else
        release_page(state, region, PageIndex(p), was[p - first]);
    }
    if (rc == 0) table_retire(state, region, first, end);
    return rc;
  }
}

// pre: no page of the range is in use.
int hand_over_unused(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  MutatorScope scope(state);
  const int rc =
      end_watch(state, region.address_of(PageIndex(first)), (end - first) << state.page_shift);
  if (rc == 0)
    forget_range(state, region, first, end);  // pages that a thread has touched meanwhile
  return rc;
}

int map_in_place(char* at, size_t bytes, const OtherMap& map) {
  void* out = nullptr;
  return sys::map(at, bytes, map.prot, map.flags | MAP_FIXED, map.fd, map.offset, &out);
}

// Locks the pages of a range that have words, until release(): a thread that faults in between
// waits and then finds the new map.
class LockedPages {
 public:
  LockedPages(Region& region, uint64_t first, uint64_t end)
      : region_(region), first_(first), end_(end) {
    held_ = static_cast<bool*>(map_private(leaves(), ForkPolicy::kDontFork));
    PageWord was;
    for (uint64_t p = region.table.next_used(first, end); held_ != nullptr && p < end;
         p = region.table.next_used(p + 1, end)) {
      if (lock_page(region, p, &was))
        held(p) = true;
      else  // the leaf has been retired: its pages are all locked, or none is
        p = last_of_leaf(p);
    }
  }
  ~LockedPages() {
    if (held_ != nullptr) unmap_private(held_, leaves());
  }
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;
  bool ready() const { return held_ != nullptr; }

  void release(PagerState& state, bool gone) {
    for (uint64_t p = region_.table.next_used(first_, end_); p < end_;
         p = region_.table.next_used(p + 1, end_)) {
      if (!held(p)) {
        if (gone) forget_pages(state, region_, p, p + 1);  // a thread has touched it meanwhile
        continue;
      }
      const PageWord now = region_.table.peek(p), was = now.with_state(now.settled());
      if (gone)
        forget_locked(state, region_, p, was);
      else
        release_page(state, region_, PageIndex(p), was);
    }
    table_retire(state, region_, first_, end_);
  }

 private:
  uint64_t leaves() const { return (end_ - 1) / kLeafPages - first_ / kLeafPages + 1; }
  bool& held(uint64_t page) { return held_[page / kLeafPages - first_ / kLeafPages]; }

  Region& region_;
  uint64_t first_, end_;
  bool* held_;
};

int map_over_pages(PagerState& state, Region& region, uint64_t first, uint64_t end,
                   const OtherMap& map) {
  char* at = region.address_of(PageIndex(first));
  const uint64_t bytes = (end - first) << state.page_shift;
  MutatorScope scope(state);
  LockedPages pages(region, first, end);
  if (!pages.ready()) return -ENOMEM;
  const int rc = [&] {
    const OwnUnmap own(state, at, bytes);
    return map_in_place(at, bytes, map);
  }();
  if (rc < 0 && !sys::is_mapped(at, bytes))
    fatal(
        "mmap with MAP_FIXED at %p has failed (%s) when the kernel had unmapped the place: its "
        "content is lost",
        static_cast<void*>(at), errno_name(rc));
  if (rc == 0) state.foreign.add(at, bytes);
  pages.release(state, rc == 0);
  return rc;
}

// The advice for the old map does not hold for the pager's next map there.
int forget_advice(PagerState& state, const Region& region, char* at, uint64_t bytes) {
  const bool has_patterns = region.has_patterns.load(std::memory_order_relaxed);
  return for_own(state.foreign, at, at + bytes, [has_patterns](char* from, size_t part) {
    const int rc = wipe_any() ? pager_wipe_on_fork(from, part, false) : 0;
    return rc == 0 && has_patterns ? pager_advise(from, part, LUNAR_NORMAL) : rc;
  });
}

// Reserves the place again, registered if the process is active. vacated: only if no map is there.
int take_back(PagerState& state, char* at, size_t bytes, bool vacated) {
  constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  int rc = vacated ? sys::claim(at, bytes) : map_in_place(at, bytes, {PROT_NONE, kReserved, -1, 0});
  if (rc == 0 && pager_active())
    rc = watch_fresh_range(state, at, bytes);
  else if (rc == 0)
    (void)sys::advise(at, bytes, MADV_UNMERGEABLE);
  if (rc == 0) state.foreign.remove(at, bytes);
  return rc;
}

int take_back_vacated(PagerState& state, char* at, size_t bytes) {
  return sys::by_halves(at, bytes, -EBUSY, [&state](char* from, size_t part) {
    int rc = state.foreign.reserve();
    if (rc == 0) rc = take_back(state, from, part, true);
    const bool is_mapped = rc == -EEXIST || (rc == -EBUSY && part == state.page_size);
    return is_mapped ? 0 : rc;
  });
}

}  // namespace

int region_map_over(Region* region, size_t offset, size_t bytes, const OtherMap& map) {
  auto& state = pager_state();
  const uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  char* at = region->base + offset;
  if (state.foreign.reserve() < 0) return -ENOMEM;
  if (const int rc = forget_advice(state, *region, at, bytes); rc < 0) return rc;
  return plain_or_active(
      state,
      [&] {
        const int rc = map_in_place(at, bytes, map);
        if (rc < 0) return rc;
        state.foreign.add(at, bytes);
        forget_range(state, *region, first, end);  // words of guard pages
        return 0;
      },
      [&] { return map_over_pages(state, *region, first, end, map); });
}

int region_hand_over(Region* region, size_t offset, size_t bytes, bool committed, size_t* done) {
  auto& state = pager_state();
  const uint64_t end = (offset + bytes) >> state.page_shift;
  *done = 0;
  return plain_or_active(
      state,
      [&] {
        if (state.foreign.reserve() < 0) return -ENOMEM;
        state.foreign.add(region->base + offset, bytes);
        forget_range(state, *region, offset >> state.page_shift, end);
        *done = bytes;
        return 0;
      },
      [&] {
        if (!descriptors_in_place(state)) return -ENOMEM;
        if (committed)
          if (int rc = table_reach_waiting(state, *region, offset >> state.page_shift, end); rc < 0)
            return rc;
        for (uint64_t p = offset >> state.page_shift, next; p < end; p = next) {
          if (state.foreign.reserve() < 0) return -ENOMEM;
          const bool used = in_use(*region, p / kChunkPages);
          next = chunk_end(p, end);
          if (used && next > p + kAtOnce) next = p + kAtOnce;
          while (!used && next < end && !in_use(*region, next / kChunkPages))
            next = chunk_end(next, end);
          const int rc = used ? hand_over_pages(state, *region, p, next)
                              : hand_over_unused(state, *region, p, next);
          if (rc < 0) return rc;
          *done += (next - p) << state.page_shift;
        }
        return 0;
      });
}

int region_reclaim(Region* region, size_t offset, size_t bytes, bool vacated) {
  auto& state = pager_state();
  char* at = region->base + offset;
  const auto take = [&] {
    if (vacated) return take_back_vacated(state, at, bytes);
    const int rc = state.foreign.reserve();
    return rc < 0 ? rc : take_back(state, at, bytes, false);
  };
  return plain_or_active(state, take, take);
}

}  // namespace lunar
