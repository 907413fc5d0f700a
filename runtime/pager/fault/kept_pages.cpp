// SPDX-License-Identifier: Apache-2.0
// Keeps pages in DRAM until a thread is gone (README.md, "Kept pages").
//
// Idea: the thread keeps its pages itself, by the pin bit of the page word. Later callers look for
// threads that are gone. Other pages are kept until the caller says (Keep::kUntilTold), as far as
// there is room. The program's own pins (mlock) use the same bit: an entry says whether it goes
// with the thread, and the program's calls hand it over, either way. Kept pages stay outside the
// copy-on-write gate (cow_gate.h).
//
// Threading: any thread of the program; may fault. Signals are blocked inside: a handler could end
// the thread.
#include "pager/fault/kept_pages.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "pager/fault/keep.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "pager/table/tables.h"
#include "sys/log.h"
#include "sys/memory_constants.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr unsigned kKeptMax = 1024, kUntilToldMax = kKeptMax / 2, kLooksAtOnce = 16;
constexpr int kUntilTold = -1;  // in place of a thread's id

struct Kept {
  int thread_id = 0;  // 0: free
  const void* page = nullptr;
  bool pinned = false;     // by this: the pin goes with the last entry of the page
  bool a_process = false;  // it is one that shares our memory, not a thread of ours
  Keep use = Keep::kThreadEnd;
  unsigned holders = 0;  // of kUntilTold
  [[nodiscard]] bool ended() const {
    if (thread_id == kUntilTold || sys::thread_lives(thread_id)) return false;
    return !a_process || !sys::process_lives(thread_id);
  }
};
struct KeptPages {
  sys::SpinLock lock;
  Kept entries[kKeptMax];
  unsigned next_look = 0;
  unsigned until_told = 0;  // entries of kUntilTold
  bool full_said = false;
  std::atomic<bool> gate_closes{false};
};
constinit KeptPages g_kept;
// By the fork that closes the gate: one at a time. Not on the stack of the fork, which may be
// small.
constinit const void* g_left_open[kKeptMax];
constinit unsigned g_left_open_count = 0;

// Returns 1 if the page was pinned. A page that has no word is not.
int clear_pin(const Region& region, PageIndex page) {
  const TableScope scope;
  AtomicPageWord* word = region.table.find(page.value);
  return word != nullptr && word->load(std::memory_order_acquire).pinned()
             ? page_clear_pinned(*word)
             : 0;
}

// Returns 1 if it was pinned before, otherwise 0, or -EAGAIN: it has no word.
int set_pin(const Region& region, PageIndex page) {
  const TableScope scope;
  AtomicPageWord* word = region.table.find(page.value);
  return word != nullptr ? page_set_pinned(*word) : -EAGAIN;
}

// pre: the lock.
void unpin_kept(PagerState& state, Kept& gone) {
  Kept* next = nullptr;
  for (Kept& other : g_kept.entries)
    if (gone.pinned && &other != &gone && other.thread_id != 0 && other.page == gone.page)
      next = &other;
  Region* region = gone.pinned && next == nullptr ? own_region(state, gone.page) : nullptr;
  if (next != nullptr) next->pinned = true;
  if (region != nullptr)
    state.pinned_pages.fetch_sub(clear_pin(*region, region->page_of(gone.page)));
  gone = {};  // last: in a child that is forked in between no pin is without an entry
}

// Looks at some of the entries; the next call continues. pre: the lock.
Kept* look_for_gone(PagerState& state, unsigned looks) {
  Kept* free = nullptr;
  for (unsigned i = 0; i < looks; ++i) {
    Kept& entry = g_kept.entries[g_kept.next_look++ % kKeptMax];
    if (entry.thread_id != 0 && entry.ended()) unpin_kept(state, entry);
    if (entry.thread_id == 0 && free == nullptr) free = &entry;
  }
  return free;
}

// A free entry, or nullptr: more threads than these. pre: the lock.
Kept* free_entry(PagerState& state) {
  Kept* entry = look_for_gone(state, kLooksAtOnce);
  if (entry == nullptr) entry = look_for_gone(state, kKeptMax);
  if (entry == nullptr && !g_kept.full_said) {
    g_kept.full_said = true;
    log_warning(
        "more than %u threads have their stacks in tiered memory; the ends of these stacks stay in "
        "DRAM",
        kKeptMax);
  }
  return entry;
}

// There is one of a kind, but for new threads. pre: the lock.
Kept* entry_of(const void* page, int thread_id, Keep use) {
  for (Kept& entry : g_kept.entries)
    if (entry.thread_id == thread_id && entry.page == page && entry.use == use) return &entry;
  return nullptr;
}

// Enters a page, and sets its pin. -ENOSPC: there is no room for one more until told; -EAGAIN: the
// page has no word.
int pin(PagerState& state, Region& region, PageIndex page, int thread_id, Keep use) {
  const void* address = region.address_of(page);
  sys::Locked<sys::SpinLock> lock(g_kept.lock);
  if (Kept* held = use == Keep::kNewThread ? nullptr : entry_of(address, thread_id, use);
      held != nullptr) {
    const bool pinned = word_of(region, page).pinned();
    const int was = pinned ? 1 : set_pin(region, page);
    if (was < 0) return was;
    ++held->holders;
    if (pinned) return 0;
    held->pinned = true;  // the page was unmapped since, and its pin with it
    state.pinned_pages.fetch_add(1 - was);
    return 0;
  }
  if (thread_id == kUntilTold && g_kept.until_told == kUntilToldMax) return -ENOSPC;
  // before the pin: a gone thread that had this page takes its own pin along
  Kept* entry = free_entry(state);
  if (thread_id == kUntilTold && entry == nullptr) return -ENOSPC;
  const bool ours = !word_of(region, page).pinned();
  // first: in a child that is forked in between no pin is without an entry
  if (entry != nullptr) *entry = {thread_id, address, ours, false, use, 1};
  const int was = set_pin(region, page);
  if (was < 0) {
    if (entry != nullptr) *entry = {};
    return was;
  }
  if (thread_id == kUntilTold) ++g_kept.until_told;
  state.pinned_pages.fetch_add(1 - was);
  return 0;
}

// Waits until the page is resident.
void touch_pinned(const PagerState& state, const Region& region, PageIndex page) {
  while (state.is_active()) {
    (void)*static_cast<const volatile char*>(region.address_of(page));
    const PageState now = word_of(region, page).state();
    if (now != PageState::kBusy && now != PageState::kInFrame && now != PageState::kEvicted &&
        now != PageState::kEmpty)
      break;
    sys::yield_cpu();  // an eviction had the page busy when the pin came
  }
}

// The pages of a piece that are kept for threads, a bit each. Their pins go with the threads from
// now on (`ours`), or are the program's. pre: the lock.
void hand_over_pins(PagerState& state, const Region& region, uint64_t first, uint64_t end,
                    bool ours, uint64_t* kept) {
  const char *from = region.address_of(PageIndex(first)), *to = region.address_of(PageIndex(end));
  for (Kept& entry : g_kept.entries) {
    if (entry.thread_id == 0 || entry.page < from || entry.page >= to) continue;
    if (entry.ended()) {
      unpin_kept(state, entry);
      continue;
    }
    const uint64_t at = region.page_of(entry.page).value - first, bit = uint64_t{1} << at % 64;
    entry.pinned = ours && (kept[at / 64] & bit) == 0;  // one entry of several
    kept[at / 64] |= bit;
  }
}

}  // namespace

int64_t program_pins(PagerState& state, Region& region, uint64_t first, uint64_t end, bool set) {
  int64_t were_pinned = 0;
  const uint64_t begin = first;
  for (uint64_t next; first < end; first = next) {
    next = chunk_end(first, end);
    if (!set && !region.table.uses(first, next)) continue;
    if (set && table_reach_waiting(state, region, first, next) < 0) {
      const int64_t set_here = static_cast<int64_t>(first - begin) - were_pinned;
      state.pinned_pages.fetch_add(set_here - program_pins(state, region, begin, first, false));
      return -ENOMEM;
    }
    sys::ScopedSignalBlock signals;
    sys::Locked<sys::SpinLock> lock(g_kept.lock);
    uint64_t kept[kChunkPages / 64] = {};
    hand_over_pins(state, region, first, next, !set, kept);
    for (uint64_t p = first; p < next; ++p) {
      const bool is_kept = (kept[(p - first) / 64] >> (p - first) % 64 & 1) != 0;
      const int was = set       ? set_pin(region, PageIndex(p))
                      : is_kept ? 0
                                : clear_pin(region, PageIndex(p));
      if (was < 0) next = p;  // a neighbour's pages have just become empty: from here on again
      if (was > 0) were_pinned += was;
    }
  }
  return were_pinned;
}

bool pinned_by_program(Region& region, uint64_t page) {
  if (!word_of(region, PageIndex(page)).pinned()) return false;
  const void* address = region.address_of(PageIndex(page));
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_kept.lock);
  for (const Kept& entry : g_kept.entries)
    if (entry.thread_id != 0 && entry.page == address && entry.pinned) return false;
  return true;
}

void pager_keep(const void* address, size_t bytes, Keep use) {
  auto& state = pager_state();
  const int thread_id = use == Keep::kUntilTold ? kUntilTold : sys::thread_id();
  Region* region = own_region(state, address);
  if (region == nullptr || bytes == 0) return;
  sys::ScopedSignalBlock signals;
  const uint64_t first = region->page_of(address).value;
  for (uint64_t p = first; p < region->pages && region->address_of(PageIndex(p)) <
                                                    static_cast<const char*>(address) + bytes;
       ++p) {
    if (p >= region->table_pages.load()) continue;
    void* page = region->address_of(PageIndex(p));
    if (state.foreign.overlaps(page, state.page_size)) continue;  // the kernel's, and stays
    int rc;
    while ((rc = pin(state, *region, PageIndex(p), thread_id, use)) == -EAGAIN) {
      if (state.is_active())
        touch_pinned(state, *region, PageIndex(p));
      else if (table_reach(state, *region, p, p + 1, 0) < 0)
        return;
    }
    if (rc < 0) continue;
    touch_pinned(state, *region, PageIndex(p));
    // In the list first: a fork from now on leaves it open; one that has read the list may close it
    // yet. (What is read-only the kernel will not write to.)
    while (g_kept.gate_closes.load()) sys::yield_cpu();
    if (state.is_active()) (void)sys::advise(page, state.page_size, MADV_POPULATE_WRITE);
  }
}

void pager_exec_failed() {
  auto& state = pager_state();
  const int thread_id = sys::thread_id();
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_kept.lock);
  for (Kept& entry : g_kept.entries)
    if (entry.thread_id == thread_id && entry.use == Keep::kExec) unpin_kept(state, entry);
}

void pager_keep_no_more(const void* address, size_t bytes) {
  auto& state = pager_state();
  const Region* region = own_region(state, address);
  if (region == nullptr || bytes == 0) return;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_kept.lock);
  const char* end = static_cast<const char*>(address) + bytes;
  for (uint64_t p = region->page_of(address).value;
       p < region->pages && region->address_of(PageIndex(p)) < end; ++p) {
    Kept* entry = entry_of(region->address_of(PageIndex(p)), kUntilTold, Keep::kUntilTold);
    if (entry == nullptr || --entry->holders != 0) continue;
    --g_kept.until_told;
    unpin_kept(state, *entry);
  }
}

void pager_kept_goes_to(const void* address, int child_id, bool a_process) {
  auto& state = pager_state();
  Region* region = own_region(state, address);
  if (region == nullptr) return;
  sys::ScopedSignalBlock signals;
  const void* page = region->address_of(region->page_of(address));
  const int thread_id = sys::thread_id();
  sys::Locked<sys::SpinLock> lock(g_kept.lock);
  Kept* entry = entry_of(page, thread_id, Keep::kNewThread);
  if (entry == nullptr) return;
  if (child_id <= 0) return unpin_kept(state, *entry);
  entry->thread_id = child_id;
  entry->a_process = a_process;
  entry->use = Keep::kThreadEnd;
}

unsigned kept_pages_gate_closes(const void* const** pages) {
  unsigned count = 0;
  {
    sys::Locked<sys::SpinLock> lock(g_kept.lock);
    g_kept.gate_closes.store(true);
    // some are there twice: the program pins pages too, so all count
    for (const Kept& entry : g_kept.entries)
      if (entry.thread_id != 0) g_left_open[count++] = entry.page;
  }
  std::sort(g_left_open, g_left_open + count);
  g_left_open_count = count;
  *pages = g_left_open;
  return count;
}

void kept_pages_gate_closed() { g_kept.gate_closes.store(false); }

// Counted as copied: there is no asking for room later. (An earlier fork may have closed the gate
// over them.)
void kept_pages_open(PagerState& state) {
  for (unsigned i = 0; i < g_left_open_count; ++i) {
    (void)protect_pages(state, const_cast<void*>(g_left_open[i]), state.page_size, false);
    state.account.unshare_always(1);
  }
}

void kept_pages_enter_child() { g_kept.lock.unlock(); }

}  // namespace lunar
