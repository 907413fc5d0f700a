// SPDX-License-Identifier: Apache-2.0
// Pages that stay in DRAM until a thread is gone. The kernel reads a thread's list of robust mutexes and clears its thread id when
// that thread ends, and it refuses page faults of a thread that ends: on an evicted page the mutex would stay locked and a
// pthread_join would wait for ever.
//
// Idea: the thread has its pages kept itself, by the pin bit of the page word. Who has it done later looks for threads that are gone.
// Threading: any thread of the program; may fault. Signals are blocked inside: a handler could end the thread.
#include <atomic>

#include "base/log.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr unsigned kKeptMax = 1024, kLooksAtOnce = 16;

struct Kept {
  int thread_id = 0;         // 0: free
  const void* page = nullptr;
};
struct KeptPages {
  sys::SpinLock lock;
  Kept entries[kKeptMax];
  unsigned next_look = 0;
  bool full_said = false;
};
constinit KeptPages g_kept;

void let_go(const void* page) {
  Region* region = region_find(page);
  if (region == nullptr) return;
  pager_state().pinned_pages.fetch_sub(page_clear_pinned(region->words[region->page_of(page).value]));
}

// Some of the entries, the next ones at the next call. pre: the lock.
Kept* look_for_gone(unsigned looks) {
  Kept* free = nullptr;
  for (unsigned i = 0; i < looks; ++i) {
    Kept& entry = g_kept.entries[g_kept.next_look++ % kKeptMax];
    if (entry.thread_id != 0 && !sys::thread_lives(entry.thread_id)) {
      let_go(entry.page);
      entry = {};
    }
    if (entry.thread_id == 0 && free == nullptr) free = &entry;
  }
  return free;
}

// True: it was not pinned before, so the pin is ours. Returns when the page is there.
bool pin_and_touch(Region& region, PageIndex page) {
  AtomicPageWord& word = region.words[page.value];
  const bool ours = page_set_pinned(word) == 0;
  if (ours) pager_state().pinned_pages.fetch_add(1);
  while (pager_armed()) {
    (void)*static_cast<const volatile char*>(region.address_of(page));
    const PageState now = word.load(std::memory_order_acquire).state();
    if (now != PageState::kBusy && now != PageState::kInFrame && now != PageState::kEvicted && now != PageState::kEmpty) break;
    sys::yield_cpu();   // an eviction had it in hand when the pin came
  }
  return ours;
}

}  // namespace

void pager_keep_for_thread(const void* address, size_t bytes) {
  Region* region = region_find(address);
  if (region == nullptr || bytes == 0) return;
  sys::SignalsHeld signals;
  const uint64_t first = region->page_of(address).value;
  for (uint64_t p = first; p < region->pages && region->address_of(PageIndex(p)) < static_cast<const char*>(address) + bytes; ++p) {
    if (p >= region->table_pages.load() || !pin_and_touch(*region, PageIndex(p))) continue;
    sys::Locked<sys::SpinLock> hold(g_kept.lock);
    Kept* entry = look_for_gone(kLooksAtOnce);
    if (entry == nullptr) entry = look_for_gone(kKeptMax);
    if (entry != nullptr) {
      *entry = {sys::thread_id(), region->address_of(PageIndex(p))};
    } else if (!g_kept.full_said) {
      g_kept.full_said = true;
      log_warning("more than %u threads have their stacks in tiered memory; the ends of these stacks stay in DRAM", kKeptMax);
    }
  }
}

void kept_pages_enter_child() { g_kept.lock.unlock(); }

}  // namespace lunar
