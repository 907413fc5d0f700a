// SPDX-License-Identifier: Apache-2.0
// Keeps pages in DRAM until a thread is gone (README.md, "Kept pages").
//
// A thread keeps its pages by an entry in the list and the pin bit of the page word. Later calls
// look for threads that have ended, and remove their pins. Other pages are kept until the caller
// says so (Keep::kUntilTold), as far as there is room. The program's own pins (mlock) use the same
// bit: an entry says whether it owns the pin, and mlock and munlock change that. Kept pages stay
// outside the copy-on-write gate (cow_gate.h).
//
// Threading: any thread of the program; may fault. Signals are blocked inside, because a handler
// could end the thread.
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
  bool pinned = false;     // this entry owns the pin, which goes with the last entry of the page
  bool a_process = false;  // thread_id is that of a process that shares our memory
  Keep use = Keep::kThreadEnd;
  unsigned holders = 0;  // of kUntilTold
  [[nodiscard]] bool ended() const {
    if (thread_id == kUntilTold || sys::thread_lives(thread_id)) return false;
    return !a_process || !sys::process_lives(thread_id);
  }
};
struct KeptPages {
  sys::Mutex lock;  // held for a look at all entries, with a system call each
  Kept entries[kKeptMax];
  unsigned next_look = 0;
  unsigned until_told = 0;                          // entries of kUntilTold
  std::atomic<bool> full{false}, full_said{false};  // a thread has found no entry
  std::atomic<bool> gate_closes{false};
};
constinit KeptPages g_kept;
// Used by the fork that closes the gate, one at a time. Not on its stack, which may be small.
constinit const void* g_left_open[kKeptMax];
constinit unsigned g_left_open_count = 0;

// Returns 1 if the page was pinned, otherwise 0. A page without a word is not pinned.
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
  gone = {};  // last: a child that is forked in between has no pin without an entry
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

// Returns a free entry; nullptr: all are in use. pre: the lock.
Kept* free_entry(PagerState& state) {
  Kept* entry = look_for_gone(state, kLooksAtOnce);
  if (entry == nullptr) entry = look_for_gone(state, kKeptMax);
  if (entry == nullptr) g_kept.full.store(true, std::memory_order_relaxed);
  return entry;
}

// Finds an entry. There is at most one for a page, thread and use, except for new threads. pre: the
// lock.
Kept* entry_of(const void* page, int thread_id, Keep use) {
  for (Kept& entry : g_kept.entries)
    if (entry.thread_id == thread_id && entry.page == page && entry.use == use) return &entry;
  return nullptr;
}

// Adds an entry for a page, and sets its pin. -ENOSPC: there is no room for one more of kUntilTold;
// -EAGAIN: the page has no word.
int pin(PagerState& state, Region& region, PageIndex page, int thread_id, Keep use) {
  const void* address = region.address_of(page);
  sys::Locked<sys::Mutex> lock(g_kept.lock);
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
  // before the pin: this may remove the pin of an ended thread that kept the same page
  Kept* entry = free_entry(state);
  if (thread_id == kUntilTold && entry == nullptr) return -ENOSPC;
  const bool ours = !word_of(region, page).pinned();
  // before the pin: a child that is forked in between has no pin without an entry
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
    sys::yield_cpu();  // an eviction had locked the page before it was pinned
  }
}

// Sets a bit for each page of a piece that is kept for a thread. From now on its pin is the entry's
// (`ours`), or the program's. pre: the lock.
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
    entry.pinned = ours && (kept[at / 64] & bit) == 0;  // one of the page's entries
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
      // pins that were there before stay, and all others with them: which they are is not known
      const int64_t set_here = static_cast<int64_t>(first - begin) - were_pinned;
      const int64_t taken_back =
          were_pinned == 0 ? program_pins(state, region, begin, first, false) : 0;
      state.pinned_pages.fetch_add(set_here - taken_back);
      return -ENOMEM;
    }
    sys::ScopedSignalBlock signals;
    sys::Locked<sys::Mutex> lock(g_kept.lock);
    uint64_t kept[kChunkPages / 64] = {};
    hand_over_pins(state, region, first, next, !set, kept);
    for (uint64_t p = first; p < next; ++p) {
      const bool is_kept = (kept[(p - first) / 64] >> (p - first) % 64 & 1) != 0;
      const int was = set       ? set_pin(region, PageIndex(p))
                      : is_kept ? 0
                                : clear_pin(region, PageIndex(p));
      if (was < 0) next = p;  // the leaf has just been retired: again from here on
      if (was > 0) were_pinned += was;
    }
  }
  return were_pinned;
}

bool pinned_by_program(Region& region, uint64_t page) {
  if (!word_of(region, PageIndex(page)).pinned()) return false;
  const void* address = region.address_of(PageIndex(page));
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::Mutex> lock(g_kept.lock);
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
    if (state.foreign.overlaps(page, state.page_size)) continue;  // stays in DRAM anyway
    int rc;
    while ((rc = pin(state, *region, PageIndex(p), thread_id, use)) == -EAGAIN) {
      if (state.is_active())
        touch_pinned(state, *region, PageIndex(p));
      else if (table_reach(state, *region, p, p + 1, 0) < 0)
        return;
    }
    if (g_kept.full.load(std::memory_order_relaxed) && !g_kept.full_said.exchange(true))
      log_warning(
          "more than %u threads have their stacks in tiered memory; the ends of these stacks stay "
          "in DRAM",
          kKeptMax);
    if (rc < 0) continue;
    touch_pinned(state, *region, PageIndex(p));
    // The entry is added first, so later forks skip the page. A fork that has already read the list
    // may still protect it, so wait for that fork. (The kernel does not write to a page that is
    // read-only.)
    while (g_kept.gate_closes.load()) sys::yield_cpu();
    if (state.is_active()) (void)sys::advise(page, state.page_size, MADV_POPULATE_WRITE);
  }
}

void pager_exec_failed() {
  auto& state = pager_state();
  const int thread_id = sys::thread_id();
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::Mutex> lock(g_kept.lock);
  for (Kept& entry : g_kept.entries)
    if (entry.thread_id == thread_id && entry.use == Keep::kExec) unpin_kept(state, entry);
}

void pager_keep_no_more(const void* address, size_t bytes) {
  auto& state = pager_state();
  const Region* region = own_region(state, address);
  if (region == nullptr || bytes == 0) return;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::Mutex> lock(g_kept.lock);
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
  sys::Locked<sys::Mutex> lock(g_kept.lock);
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
    sys::Locked<sys::Mutex> lock(g_kept.lock);
    g_kept.gate_closes.store(true);
    // all entries, also several of one page: any of them may own the pin
    for (const Kept& entry : g_kept.entries)
      if (entry.thread_id != 0) g_left_open[count++] = entry.page;
  }
  std::sort(g_left_open, g_left_open + count);
  g_left_open_count = count;
  *pages = g_left_open;
  return count;
}

void kept_pages_gate_closed() { g_kept.gate_closes.store(false); }

// The pages count as copied, because no write asks for room later. An earlier fork may have
// protected them.
void kept_pages_open(PagerState& state) {
  for (unsigned i = 0; i < g_left_open_count; ++i) {
    (void)protect_pages(state, const_cast<void*>(g_left_open[i]), state.page_size, false);
    state.account.unshare_always(1);
  }
}

void kept_pages_enter_child() { g_kept.lock.reset_in_child(); }

}  // namespace lunar
