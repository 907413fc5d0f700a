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
constexpr uint64_t kTableStep = kGiB / 4096;  // pages: whole pages of words and of hashes, also where pages are larger

int map_fresh(const PagerState& state, const Region& region, uint64_t first, uint64_t end) {
  void* at = nullptr;
  return sys::map(region.address_of(PageIndex(first)), (end - first) << state.page_shift, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0, &at);
}

// Keeps all pages of a range kBusy during its life: nothing is installed between the old map and the new one. Chunks
// without a page table in use have no pages to lock.
class LockedPages {
 public:
  LockedPages(Region& region, uint64_t first, uint64_t end) : region_(region), first_(first), end_(end) {
    for (uint64_t chunk = first / kChunkPages; chunk * kChunkPages < end; ++chunk)
      if (region.chunk_used[chunk].load(std::memory_order_acquire) != 0)
        used_ |= uint64_t{1} << (chunk - first / kChunkPages);
    visit([this](uint64_t page) { gone_ |= take_any(region_, page).state() == PageState::kGone; });
  }
  bool gone() const { return gone_; }  // a raw call has taken a page meanwhile
  void release(PagerState& state, bool emptied) {
    visit([&](uint64_t page) {
      const PageWord busy = region_.words[page].load(std::memory_order_relaxed);
      if (busy.state() != PageState::kBusy) return;
      const PageWord was = busy.with_state(busy.settled());
      put_back(state, region_, page, emptied ? empty_word(state, region_, page, was, PageState::kEmpty) : was);
    });
  }

 private:
  template <class Visit>
  void visit(Visit one) {
    for (uint64_t page = first_; page < end_; ++page)
      if ((used_ >> (page / kChunkPages - first_ / kChunkPages) & 1) != 0) one(page);
  }

  Region& region_;
  uint64_t first_, end_, used_ = 0;
  bool gone_ = false;
};

// pre: at most kChunksAtOnce chunks.
int map_watched_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait) {
  char* at = region.address_of(PageIndex(first));
  const uint64_t bytes = (end - first) << state.page_shift;
  MutatorScope scope(state, wait);
  if (!scope.entered()) return -EAGAIN;
  if (!descriptors_in_place(state)) return -EBADF;  // the new map could not be registered
  LockedPages pages(region, first, end);
  int rc = pages.gone() ? -EBUSY : sys::uffd_unregister(state.uffd, at, bytes);  // else there would be an event
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

bool tables_map(Region& region) {
  const uint64_t bytes = region.pages * sizeof(PageWord);
  static_assert(sizeof(PageWord) == sizeof(uint64_t));
  const bool counted = region.counted_by_kernel;
  const auto map = [=] { return counted ? map_readable(bytes) : map_private(bytes, ForkPolicy::kInherit); };
  region.words = static_cast<AtomicPageWord*>(map());
  region.hashes = static_cast<uint64_t*>(map());
  region.open_pages.store(counted ? 0 : region.pages);
  return region.words != nullptr && region.hashes != nullptr;
}

int table_open_further(Region& region, uint64_t end) {
  sys::Locked<sys::Mutex> lock(region.grow_lock);
  const uint64_t open = region.open_pages.load(std::memory_order_relaxed);
  if (end <= open) return 0;
  uint64_t to = round_up(end, kTableStep);
  if (to > region.pages) to = region.pages;
  const uint64_t bytes = (to - open) * sizeof(PageWord);
  int rc = sys::protect(region.words + open, bytes, PROT_READ | PROT_WRITE);
  if (rc == 0) rc = sys::protect(region.hashes + open, bytes, PROT_READ | PROT_WRITE);
  if (rc == 0) region.open_pages.store(to, std::memory_order_release);
  return rc;
}

int map_plain_anew(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  if (pager_active()) return -EAGAIN;
  CommitLock lock(state);
  return lock.plain() ? map_fresh(state, region, first, end) : -EAGAIN;
}

int map_anew(PagerState& state, Region& region, uint64_t first, uint64_t end, bool wait) {
  if (!region.counted_by_kernel) return 0;
  int rc = 0;
  for_taken(region, first, end, [&](uint64_t from, uint64_t to, bool taken) {
    if (!taken && rc == 0) rc = map_run_anew(state, region, from, to, wait);
  });
  return rc;
}

}  // namespace lunar
