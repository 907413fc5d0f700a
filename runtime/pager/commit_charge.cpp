// SPDX-License-Identifier: Apache-2.0
// See commit_charge.h.
#include "pager/commit_charge.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "pager/activation.h"
#include "pager/descriptors.h"
#include "pager/pager.h"
#include "pager/region.h"
#include "pager/seize.h"
#include "pager/state.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/mem.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

constexpr uint64_t kChunksAtOnce = 64;
constexpr uint64_t kNeighbourPages = 128;  // so many a first touch before the range may fill (resolver.cpp)

int map_fresh(const PagerState& state, const Region& region, uint64_t first, uint64_t end) {
  void* at = nullptr;
  return sys::map(region.address_of(PageIndex(first)), (end - first) << state.page_shift, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0, &at);
}

// Keeps all pages of a range kBusy during its life: nothing is installed between the old map and the new one. Those
// that have no word are not locked: the program has given them up, and only a neighbour's first touch fills the first.
class LockedPages {
 public:
  LockedPages(PagerState& state, Region& region, uint64_t first, uint64_t end)
      : region_(region), first_(first), end_(end) {
    const uint64_t near = end - first < kNeighbourPages ? end : first + kNeighbourPages;
    ready_ = table_reach(state, region, first, near, 0) == 0;
    for (uint64_t page = region.table.next_used(first, end); ready_ && page < end;
         page = region.table.next_used(page + 1, end)) {
      PageWord was;
      if (!take_there(region, page, &was)) {
        page = last_of_leaf(page);  // it has been retired; all of a leaf is held, or nothing
        continue;
      }
      const uint64_t group = page / kLeafPages - first / kLeafPages;
      held_[group / 64] |= uint64_t{1} << group % 64;
    }
  }
  bool ready() const { return ready_; }
  void release(PagerState& state, bool emptied) {
    for (uint64_t page = first_; page < end_; ++page) {
      const uint64_t group = page / kLeafPages - first_ / kLeafPages;
      AtomicPageWord* word = (held_[group / 64] >> group % 64 & 1) != 0 ? region_.table.find(page) : nullptr;
      const PageWord busy = word != nullptr ? word->load(std::memory_order_relaxed) : PageWord{};
      if (busy.state() != PageState::kBusy) continue;
      const PageWord was = busy.with_state(busy.settled());
      put_back(state, region_, page, emptied ? empty_word(state, region_, page, was, PageState::kEmpty) : was);
    }
    table_retire(state, region_, first_, end_);
  }

 private:
  Region& region_;
  uint64_t first_, end_;
  uint64_t held_[kChunksAtOnce * kChunkPages / kLeafPages / 64 + 1] = {};  // bits of leaves
  bool ready_ = false;
};

// pre: at most kChunksAtOnce chunks.
int map_watched_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait) {
  char* at = region.address_of(PageIndex(first));
  const uint64_t bytes = (end - first) << state.page_shift;
  MutatorScope scope(state, wait);
  if (!scope.entered()) return -EAGAIN;
  if (!descriptors_in_place(state)) return -EBADF;  // the new map could not be registered
  LockedPages pages(state, region, first, end);
  int rc = pages.ready() ? sys::uffd_unregister(state.uffd, at, bytes) : -ENOMEM;  // else there would be an event
  if (rc == 0) {
    rc = map_fresh(state, region, first, end);
    if (int watched = watch_fresh_range(state, at, bytes); watched < 0)
      fatal("pages from %p on cannot be registered again (%s)", static_cast<void*>(at), errno_name(watched));
  }
  pages.release(state, rc == 0);
  return rc;
}

int map_run_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait) {
  if (!pager_active()) {
    CommitLock lock(state);
    if (lock.passed()) return -EAGAIN;
    if (lock.plain()) return map_fresh(state, region, first, end);
  }
  int rc = 0;
  for (uint64_t next; first < end && rc == 0; first = next) {
    next = (first / kChunkPages + kChunksAtOnce) * kChunkPages;
    if (next > end) next = end;
    rc = map_watched_anew(state, region, first, next, wait);
  }
  return rc;
}

}  // namespace

int map_plain_anew(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  if (pager_active()) return -EAGAIN;
  CommitLock lock(state);
  return lock.plain() ? map_fresh(state, region, first, end) : -EAGAIN;
}

int map_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait) {
  return region.counted_by_kernel ? map_run_anew(state, region, first, end, wait) : 0;
}

}  // namespace lunar
