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
    if (until != from) protect_by_halves(state, from, static_cast<uint64_t>(until - from));
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

Lift gate_lift(PagerState& state, Region& region, PageIndex page, int pagemap, bool force) {
  PageWord was[kLiftMax];
  for (;;) {
    was[0] = region.table.peek(page.value);
    if (was[0].state() == PageState::kBusy) {
      if (set_waiter(region, page, was[0])) return Lift::kBusy;
      continue;
    }
    if (was[0].state() != PageState::kResident) return Lift::kNotThere;
    if (region.table.lock(page.value, was[0])) break;
  }
  int64_t spare = state.account.free_pages() / kLiftShare;
  unsigned want = force || spare < 1 ? 1
                  : spare > kLiftMax || state.account.shared_pages() == 0
                      ? kLiftMax
                      : static_cast<unsigned>(spare);
  unsigned count = 1;
  for (; count < want && page.value + count < region.pages; ++count) {
    was[count] = region.table.peek(page.value + count);
    if (was[count].state() != PageState::kResident ||
        !region.table.lock(page.value + count, was[count]))
      break;
  }
  bool room = false;
  for (;;) {
    int64_t shared = count_shared(region, page.value, count, pagemap);
    if (force) state.account.unshare_always(shared);
    // A page that only this process has is written in place.
    room = force || shared == 0 || state.account.unshare(shared, kKeepFreePages);
    if (room || count == 1) break;
    while (count > 1) {
      --count;
      release_page(state, region, PageIndex(page.value + count), was[count]);
    }
  }
  // The protection goes before the words do: the next eviction of the page finds its true state.
  bool lifted = room && lift(state, region.address_of(page), count << state.page_shift);
  if (room && !lifted) {
    lifted = lift(state, region.address_of(page), state.page_size);
    for (unsigned i = 1; i < count; ++i)
      (void)lift(state, region.address_of(PageIndex(page.value + i)), state.page_size);
  }
  for (unsigned i = 0; i < count; ++i)
    release_page(state, region, PageIndex(page.value + i), was[i]);
  return !room ? Lift::kNoRoom : lifted ? Lift::kLifted : Lift::kNotThere;
}

bool fork_guards(const PagerState& state) {
  return state.write_protect && state.fork.forking.load(std::memory_order_seq_cst);
}

void fork_guard_lift(PagerState& state, void* address, uint64_t bytes) {
  if (!state.fork.gate_closing.load(std::memory_order_seq_cst) && !lift(state, address, bytes))
    wake_waiters(state, address, bytes);
}

}  // namespace lunar
