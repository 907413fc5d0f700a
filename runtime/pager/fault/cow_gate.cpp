// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/cow_gate.h"

#include <errno.h>

#include <algorithm>

#include "pager/fault/kept_pages.h"
#include "pager/state/install.h"
#include "pager/state/requests.h"

namespace lunar {
namespace {

// chunks protected by one call, which locks the address space meanwhile
constexpr uint64_t kCloseChunks = 128;
constexpr unsigned kLiftMax = 64;    // pages lifted at once
constexpr int64_t kLiftShare = 256;  // one page is lifted for each so many free pages

// Lifts the protection and wakes the waiters. False: the place is no longer registered.
bool lift(PagerState& state, void* address, uint64_t bytes) {
  return protect_pages(state, address, bytes, false) == 0;
}

// Write-protects a range, except kept pages. The kernel writes to kept pages where it takes no page
// faults, so they must never be write-protected.
void close_but_kept(PagerState& state, char* from, uint64_t bytes, const void* const* kept,
                    unsigned kept_count) {
  const char* end = from + bytes;
  const void* const* stop = kept + kept_count;
  for (const void* const* next = std::lower_bound(kept, stop, static_cast<const void*>(from));
       from < end; ++next) {
    const char* until = next != stop && *next < end ? static_cast<const char*>(*next) : end;
    if (until < from) continue;  // the list has the page twice
    if (until != from) protect_where_possible(state, from, static_cast<uint64_t>(until - from));
    from += static_cast<uint64_t>(until - from) + state.page_size;
  }
}

// Returns how many of the pages a related process maps as well.
int64_t count_shared(const Region& region, uint64_t first, unsigned count, int pagemap) {
  const void* pages[kLiftMax];
  sys::PageFacts facts[kLiftMax];
  for (unsigned i = 0; i < count; ++i) pages[i] = region.address_of(PageIndex(first + i));
  if (pagemap < 0 || sys::page_facts(pagemap, pages, count, facts) < 0) return count;
  int64_t shared = 0;
  for (unsigned i = 0; i < count; ++i) shared += facts[i].write_protected && !facts[i].exclusive;
  return shared;
}

}  // namespace

void gate_close(PagerState& state) {
  const void* const* kept = nullptr;
  const unsigned kept_count = kept_pages_gate_closes(&kept);
  for (const Region& region : state.regions) {
    uint64_t chunks = (region.table_pages.load() + kChunkPages - 1) / kChunkPages;
    auto used = [&](uint64_t chunk) {
      return region.chunk_resident[chunk].load(std::memory_order_relaxed) > 0;
    };
    for (uint64_t chunk = 0; chunk < chunks;) {
      uint64_t end = chunk;
      while (end < chunks && end - chunk < kCloseChunks && used(end)) ++end;
      if (end == chunk) {
        ++chunk;
        continue;
      }
      uint64_t last = end * kChunkPages < region.pages ? end * kChunkPages : region.pages;
      close_but_kept(state, region.address_of(PageIndex(chunk * kChunkPages)),
                     (last - chunk * kChunkPages) << state.page_shift, kept, kept_count);
      chunk = end;
    }
  }
  kept_pages_gate_closed();
}

namespace {

// Pages that are locked to lift their protection, and their words from before.
struct LiftRun {
  Region& region;
  uint64_t first;
  unsigned count = 0;
  PageWord was[kLiftMax] = {};

  char* address(unsigned i) const { return region.address_of(PageIndex(first + i)); }
  void release(PagerState& state, unsigned i) const {
    release_page(state, region, PageIndex(first + i), was[i]);
  }
};

// Locks the first page. kLifted: it is locked; else the result of gate_lift.
Lift lock_first(LiftRun& run) {
  for (;;) {
    const PageWord seen = run.region.table.peek(run.first);
    if (seen.state() == PageState::kBusy) {
      if (set_waiter(run.region, PageIndex(run.first), seen)) return Lift::kBusy;
      continue;
    }
    if (seen.state() != PageState::kResident) return Lift::kNotThere;
    if (!run.region.table.lock(run.first, seen)) continue;
    run.was[run.count++] = seen;
    return Lift::kLifted;
  }
}

// How many pages may be lifted together.
unsigned lift_limit(const PagerState& state, bool force) {
  const int64_t spare = state.account.free_pages() / kLiftShare;
  if (force || spare < 1) return 1;
  if (state.account.shared_pages() == 0) return kLiftMax;
  return static_cast<unsigned>(std::min<int64_t>(spare, kLiftMax));
}

// Locks the resident pages behind the first one, up to `limit` in all.
void lock_following(LiftRun& run, unsigned limit) {
  while (run.count < limit && run.first + run.count < run.region.pages) {
    const uint64_t page = run.first + run.count;
    const PageWord seen = run.region.table.peek(page);
    if (seen.state() != PageState::kResident || !run.region.table.lock(page, seen)) return;
    run.was[run.count++] = seen;
  }
}

// Takes room for the copies of all pages, else of the first one alone, and releases the others. A
// page that only this process maps is written in place.
bool take_room(PagerState& state, LiftRun& run, int pagemap, bool force) {
  for (;;) {
    const int64_t shared = count_shared(run.region, run.first, run.count, pagemap);
    if (force) state.account.unshare_always(shared);
    if (force || shared == 0 || state.account.unshare(shared, kKeepFreePages)) return true;
    if (run.count == 1) return false;
    while (run.count > 1) run.release(state, --run.count);
  }
}

// Lifts the protection of all pages, one by one if a border of the kernel's maps is inside. False:
// the first page's place is no longer registered.
bool lift_run(PagerState& state, const LiftRun& run) {
  if (lift(state, run.address(0), run.count << state.page_shift)) return true;
  const bool lifted = lift(state, run.address(0), state.page_size);
  for (unsigned i = 1; i < run.count; ++i) (void)lift(state, run.address(i), state.page_size);
  return lifted;
}

}  // namespace

Lift gate_lift(PagerState& state, Region& region, PageIndex page, int pagemap, bool force) {
  LiftRun run{region, page.value};
  if (const Lift locked = lock_first(run); locked != Lift::kLifted) return locked;
  lock_following(run, lift_limit(state, force));
  const bool room = take_room(state, run, pagemap, force);
  // The protection is lifted before the words are released: the next eviction finds the page's true
  // state.
  const bool lifted = room && lift_run(state, run);
  for (unsigned i = 0; i < run.count; ++i) run.release(state, i);
  if (!room) return Lift::kNoRoom;
  return lifted ? Lift::kLifted : Lift::kNotThere;
}

bool fork_guards(const PagerState& state) {
  return state.write_protect && state.fork.forking.load(std::memory_order_seq_cst);
}

void fork_guard_lift(PagerState& state, void* address, uint64_t bytes) {
  if (!state.fork.gate_closing.load(std::memory_order_seq_cst) && !lift(state, address, bytes))
    wake_waiters(state, address, bytes);
}

}  // namespace lunar
