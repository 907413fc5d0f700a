// SPDX-License-Identifier: Apache-2.0
// Guard pages. The kernel's own markers raise SIGSEGV and are inherited by fork. The page table has
// a state for them, so that nothing is copied over a marker: UFFDIO_COPY would replace it.
// Threading: any thread; see lock_pages.h.
#include "pager/guard.h"

#include <errno.h>
#include <sys/mman.h>

#include "pager/activation/activation.h"
#include "pager/fault/kept_pages.h"
#include "pager/lock_pages.h"
#include "pager/pager.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "pager/table/tables.h"
#include "sys/memory_constants.h"

namespace lunar {

// pre: in one chunk; inside a MutatorScope, or before activation under its lock.
static int guard_pages(PagerState& state, Region& region, uint64_t first, uint64_t end,
                       bool install) {
  PageWord was[kChunkPages];
  bool done[kChunkPages] = {}, taken[kChunkPages] = {};
  if (int rc = install ? lock_pages(state, region, first, end, was) : 0; rc < 0) return rc;
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    taken[p - first] = install || lock_page(region, p, &was[p - first]);
    if (install && pinned_by_program(region, p)) rc = -EINVAL;
  }
  if (rc == 0) {
    const int advice = install ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE;
    rc =
        sys::advise(region.address_of(PageIndex(first)), (end - first) << state.page_shift, advice);
    // after an error some pages may be done: page by page shows which
    for (uint64_t p = first; p < end; ++p)
      done[p - first] =
          rc == 0 || sys::advise(region.address_of(PageIndex(p)), state.page_size, advice) == 0;
  }
  for (uint64_t p = first; p < end; ++p) {
    if (!taken[p - first]) continue;
    PageWord next = was[p - first];
    if (done[p - first] && install) next = empty_word(state, region, p, next, PageState::kGuard);
    if (done[p - first] && next.state() == PageState::kGuard && !install)
      next = next.with_state(PageState::kEmpty);
    release_page(state, region, PageIndex(p), next);
  }
  if (!install) table_retire(state, region, first, end);
  return rc;
}

int guard_range(PagerState& state, const PageRange& range, bool install, bool wait) {
  for (uint64_t p = range.first; p < range.end;) {
    const uint64_t next = chunk_end(p, range.end);
    int rc = install ? table_reach_waiting(state, *range.region, p, next) : 0;
    if (rc < 0) return rc;
    const auto change = [&] { return guard_pages(state, *range.region, p, next, install); };
    rc = plain_or_active(state, change, [&] {
      const MutatorScope scope(state, wait);
      return scope.entered() ? change() : -EAGAIN;
    });
    if (rc < 0) return rc;
    p = next;
  }
  return 0;
}

int pager_guard(void* address, size_t bytes, bool install) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, true, &range);
  if (rc < 0 || range.first == range.end) return rc;
  // with 0 bytes it only shows whether the kernel knows the advice
  rc = sys::advise(address, 0, install ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE);
  if (rc < 0) return rc;
  if (install) range.region->has_guards.store(true, std::memory_order_release);
  return install || range.region->has_guards.load(std::memory_order_acquire)
             ? guard_range(state, range, install, true)
             : 0;
}

}  // namespace lunar
