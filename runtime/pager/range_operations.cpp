// SPDX-License-Identifier: Apache-2.0
// Range operations: touch, prefetch, discard, advise, pin, evict.
// Threading: the caller's thread, which must not be a service thread. They wait for the device, but
// take no page fault on tiered memory.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>

#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/evict/pins.h"
#include "pager/fault/bring_in.h"
#include "pager/fault/kept_pages.h"
#include "pager/fault/zero_fill.h"
#include "pager/fork/wipe.h"
#include "pager/guard.h"
#include "pager/lock_pages.h"
#include "pager/pager.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/state/install.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/memory_constants.h"

namespace lunar {
namespace {

int drop_advice(Discard what) {
  return what == Discard::kContents ? MADV_DONTNEED : MADV_DONTNEED_LOCKED;
}

// At once. Not more, because threads with the smallest stacks (16 KiB) free memory as well.
constexpr uint64_t kDiscardPages = kChunkPages / 2;

int discard_piece(PagerState& state, Region& region, uint64_t first, uint64_t end, Discard what) {
  PageWord was[kDiscardPages];
  bool stays[kDiscardPages] = {};
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    const PageWord w = lock_page_with_content(region, p);
    was[p - first] = w;
    if (what != Discard::kContents || !pinned_by_program(region, p)) continue;
    if (has_content(w)) release_page(state, region, PageIndex(p), w);
    end = p;
    rc = -EINVAL;
  }
  if (int left = drop_present(state, region, first, end, was, drop_advice(what), stays); left < 0)
    rc = left;
  int64_t resident = 0, maybe_shared = 0;
  for (uint64_t p = first; p < end; ++p) {
    PageWord w = was[p - first];
    if (what == Discard::kMapping && w.pinned())
      state.pinned_pages.fetch_sub(page_clear_pinned(region.table.at(p)));
    if (!has_content(w)) continue;
    if (stays[p - first]) {
      release_page(state, region, PageIndex(p), w);
      continue;
    }
    if (w.state() == PageState::kResident) {
      count_resident(state, region, PageIndex(p), -1);
      ++(still_exclusive(w.epoch(), exclusive_epoch(state)) ? resident : maybe_shared);
    }
    drop_content(state, w);
    uncharge_touched(state, region, w);
    release_page(state, region, PageIndex(p), w.emptied(PageState::kEmpty));
  }
  table_retire(state, region, first, end);
  state.account.give(resident);
  state.account.give_maybe_shared(maybe_shared);
  return rc;
}

}  // namespace

int pager_touch(const void* address, size_t bytes) {
  if (!pager_active()) return region_find(address) != nullptr ? 0 : -EINVAL;
  lunar_range range{address, bytes};
  return bring_in_ranges(pager_state(), &range, 1, Want::kTouch);
}

void pager_fill_ahead(const void* address) {
  auto& state = pager_state();
  PageRange range;
  if (!pager_active() || state.account.free_pages() < state.account.cap_pages() / 4 ||
      !uffd_in_place(state) || pages_of(state, address, 1, false, &range) < 0)
    return;
  const sys::ScopedSignalBlock signals;
  const TableScope scope;
  if (range.region->table.peek(range.first).state() == PageState::kEmpty)
    (void)zero_fill(state, *range.region, PageIndex(range.first), {1, kHeatReadAhead});
}

int pager_prefetch(const lunar_range* ranges, size_t count) {
  return pager_active() ? bring_in_ranges(pager_state(), ranges, count, Want::kRead) : 0;
}

namespace {

// A piece (kPatternPages) of which less than half is covered keeps its pattern.
void set_pattern(const PageRange& range, Access access) {
  Region& region = *range.region;
  if (access != Access::kNormal) region.has_patterns.store(true, std::memory_order_relaxed);
  if (!region.has_patterns.load(std::memory_order_relaxed)) return;
  for (uint64_t p = range.first; p < range.end;) {
    const uint64_t piece = p / kPatternPages, begin = piece * kPatternPages,
                   limit = std::min(begin + kPatternPages, region.pages),
                   to = std::min(limit, range.end);
    if (2 * (to - p) >= limit - begin)
      region.patterns[piece].store(access, std::memory_order_relaxed);
    p = to;
  }
}

// wait: waits for a running fork. If false, returns -EAGAIN instead; some pages may be discarded by
// then.
int discard(PagerState& state, void* address, size_t bytes, Discard what, bool wait) {
  PageRange range;
  int rc = pages_of(state, address, bytes, true, &range);
  if (rc == 0 && what == Discard::kMapping) set_pattern(range, Access::kNormal);
  if (rc == 0 && what == Discard::kMapping && wait && wipe_any())
    rc = pager_wipe_on_fork(address, bytes, false);
  if (rc == 0 && what == Discard::kMapping &&
      range.region->has_guards.load(std::memory_order_acquire))
    rc = guard_range(state, range, false, wait);
  if (rc < 0) return rc;
  if (!pager_active()) {
    CommitLock lock(state);
    if (!pager_active()) {
      char* from = range.region->address_of(PageIndex(range.first));
      uint64_t length = (range.end - range.first) << state.page_shift;
      rc = sys::advise(from, length, drop_advice(what));
      // without the lock, an activation may have adopted pages before they were dropped
      if (rc < 0 || lock.plain()) return rc;
    }
  }
  range.end = std::min(range.end, range.region->table_pages.load(std::memory_order_acquire));
  for (uint64_t p = range.first; p < range.end;) {
    p = range.region->table.next_used(p, range.end);
    if (p == range.end) break;
    const uint64_t next = std::min((p / kDiscardPages + 1) * kDiscardPages, range.end);
    MutatorScope scope(state, wait);
    if (!scope.entered()) return -EAGAIN;
    int one = discard_piece(state, *range.region, p, next, what);
    if (one < 0 && what == Discard::kContents) return one;
    if (one < 0 && rc == 0) rc = one;
    p = next;
  }
  return rc;
}

}  // namespace

int pager_wipe_on_fork(void* address, size_t bytes, bool wipe) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0 || (!wipe && !wipe_any())) return rc;
  return wipe_set(state, range.region->address_of(PageIndex(range.first)),
                  (range.end - range.first) << state.page_shift, wipe);
}

int pager_discard(void* address, size_t bytes, Discard what) {
  return discard(pager_state(), address, bytes, what, true);
}
int pager_try_discard(void* address, size_t bytes) {
  return discard(pager_state(), address, bytes, Discard::kMapping, false);
}

int pager_advise(const void* address, size_t bytes, lunar_advice advice) {
  PageRange range;
  int rc = pages_of(pager_state(), address, bytes, false, &range);
  if (rc < 0) return rc;
  if (advice < LUNAR_NORMAL || advice > LUNAR_RANDOM) return -EINVAL;
  if (advice == LUNAR_NORMAL) set_pattern(range, Access::kNormal);
  if (advice == LUNAR_SEQUENTIAL) set_pattern(range, Access::kSequential);
  if (advice == LUNAR_RANDOM) set_pattern(range, Access::kRandom);
  if (!pager_active() || advice == LUNAR_RANDOM) return 0;
  if (advice == LUNAR_COLD) {
    int64_t n = pager_evict(address, bytes);
    return n < 0 ? static_cast<int>(n) : 0;
  }
  unsigned heat = advice == LUNAR_HOT          ? kHeatHot
                  : advice == LUNAR_SEQUENTIAL ? kHeatReadAhead
                                               : kHeatFault;
  const sys::ScopedSignalBlock signals;
  const TableScope scope;
  range.region->table.for_words(range.first, range.end, [heat](uint64_t, AtomicPageWord& word) {
    PageWord seen = word.load(std::memory_order_relaxed);
    if (seen.state() == PageState::kResident)
      word.compare_exchange_strong(seen, seen.with_heat(heat), std::memory_order_relaxed);
  });
  return 0;
}

int pager_advise_huge(void* address, size_t bytes, int advice) {
  auto& state = pager_state();
  Region* region = state.regions.find(address);
  if (region == nullptr) return -EINVAL;
  // MADV_COLLAPSE is not a hint: success would mean a huge page
  const int refused = advice == MADV_COLLAPSE ? -EINVAL : 0;
  return plain_or_active(
      state,
      [&] {
        const bool allowed = advice == MADV_NOHUGEPAGE || plain_allow_huge(state, *region);
        return allowed ? sys::advise(address, bytes, advice) : refused;
      },
      [&] { return refused; });
}

namespace {

bool all_resident(const PageRange& range) {
  for (uint64_t p = range.first; p < range.end; ++p)
    if (word_of(*range.region, PageIndex(p)).state() != PageState::kResident) return false;
  return true;
}

int64_t not_pinned(const PageRange& range) {
  int64_t pages = 0;
  for (uint64_t p = range.first; p < range.end; ++p)
    pages += !word_of(*range.region, PageIndex(p)).pinned();
  return pages;
}

// Whether so many pages in all may be pinned. Beside them there must be room for the page tables
// that are promised.
bool may_pin(const PagerState& state, int64_t pages) {
  const int64_t cap = state.account.cap_pages();
  return pages <= cap / 2 && pages <= cap - state.account.fixed_total() - kTableRoom;
}

// Sets the pins of a range. Returns how many pages were pinned before, or -ENOMEM: too much would
// be pinned.
int64_t set_pins(PagerState& state, const PageRange& range) {
  const int64_t more = not_pinned(range);
  const int64_t pinned = state.pinned_pages.fetch_add(more) + more;
  const int64_t before = may_pin(state, pinned)
                             ? program_pins(state, *range.region, range.first, range.end, true)
                             : -ENOMEM;
  // Other threads may have pinned and unpinned some meanwhile.
  const int64_t set = before < 0 ? 0 : static_cast<int64_t>(range.end - range.first) - before;
  state.pinned_pages.fetch_add(set - more);
  return before;
}

}  // namespace

int pager_pin(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  if (!pager_active()) {
    ErrorText why;
    rc = pager_activate(&why);
    if (rc < 0) return rc;
  }
  if (static_cast<int64_t>(range.end - range.first) > state.account.cap_pages() / 2) return -ENOMEM;
  if (!may_pin(state, state.pinned_pages.load() + not_pinned(range))) return -ENOMEM;
  // A page that cannot be brought in is found before any pin has changed.
  if (rc = pager_touch(address, bytes); rc < 0) return rc;
  const int64_t were_pinned = set_pins(state, range);
  if (were_pinned < 0) return -ENOMEM;
  // The evictor takes no pinned page, except one that it had locked before.
  for (;;) {
    rc = pager_touch(address, bytes);
    if (rc < 0) {  // a page was evicted again before it was pinned, and is lost
      if (were_pinned == 0) (void)pager_unpin(address, bytes);
      return rc;
    }
    if (all_resident(range)) return 0;
  }
}

bool pager_pinned(const void* address) {
  Region* region = region_find(address);
  return region != nullptr && pinned_by_program(*region, region->page_of(address).value);
}

int pager_unpin(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  state.pinned_pages.fetch_sub(program_pins(state, *range.region, range.first, range.end, false));
  return 0;
}

int64_t pager_evict(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  if (!pager_active()) return 0;
  Evictor& evictor = *state.evictor;
  const int64_t evicted =
      evictor.evict_range(range.region, PageIndex(range.first), PageIndex(range.end));
  // The evictor passes over a page that another thread has locked, which may be resident when it is
  // released: once more for these.
  bool left = false;
  const PageTable& table = range.region->table;
  for (uint64_t p = table.next_used(range.first, range.end); p < range.end;
       p = table.next_used(p + 1, range.end)) {
    const sys::ScopedSignalBlock signals;
    const TableScope scope;
    const PageWord word = wait_while_busy(*range.region, p);
    left |= word.state() == PageState::kResident && !word.pinned();
  }
  return left ? evicted +
                    evictor.evict_range(range.region, PageIndex(range.first), PageIndex(range.end))
              : evicted;
}

void pager_note_pinning(const char* sign) {
  auto& state = pager_state();
  pins_note(sign);
  // a process that a raw fork made has no evictor
  if (pager_active() && !pager_forked_past_us()) state.account.wait_for_own_batch();
}

long pager_write_elsewhere(const long (&arguments)[6]) {
  Account& account = pager_state().account;
  // write_elsewhere would not end if a handler left by longjmp
  const sys::ScopedSignalBlock signals;
  if (!account.write_elsewhere_begin()) {
    LUNAR_LOG_LIMITED(log_warning, 4,
                      "process_vm_writev fails with EAGAIN: a process of this tree was stopped in "
                      "the middle of an eviction, which would lose what is written to its pages; "
                      "let it go on");
    errno = EAGAIN;
    return -1;
  }
  const long result = sys::kernel_call_errno(SYS_process_vm_writev, arguments);
  account.write_elsewhere_end();
  return result;
}

int pager_page_state(const void* address) {
  Region* region = region_find(address);
  return region == nullptr ? -1
                           : static_cast<int>(word_of(*region, region->page_of(address)).state());
}

void pager_unpin_all() {
  auto& state = pager_state();
  if (!pager_active()) return;
  for (Region& region : state.regions) {
    uint64_t end = region.table_pages.load(std::memory_order_acquire);
    int64_t cleared = 0;
    for (uint64_t p = 0, next; p < end; p = next) {
      next = chunk_end(p, end);
      if (region.table.uses(p, next)) cleared += program_pins(state, region, p, next, false);
    }
    state.pinned_pages.fetch_sub(cleared);
  }
}

}  // namespace lunar
