// SPDX-License-Identifier: Apache-2.0
// Fills in lunar_stats from counters, the account and the own LUN, which may change meanwhile.
// Threading: any thread, at any time. Takes no lock.
#include <algorithm>

#include "pager/evict/evictor.h"
#include "pager/fault/fault_state.h"
#include "pager/pager.h"

namespace lunar {

// LUN space that both the tree's account and the own LUN still have. A living child has its charge
// in the account, and holds in the own LUN what it can reach there. The charge begins before the
// other and ends after it, so the larger one counts.
static void lun_space_stats(const PagerState& state, uint64_t committed, lunar_stats* out) {
  const int64_t used = state.account.lun_cap() - state.account.lun_free();
  int64_t free = state.account.lun_free(), forked = used - static_cast<int64_t>(committed);
  if (state.luns.ready.load()) {
    const SlotAllocator& lun = state.luns.slots[state.luns.own];
    const auto page = static_cast<int64_t>(state.page_size),
               charged = static_cast<int64_t>(lun.charged_slots()) * page;
    const int64_t own = static_cast<int64_t>(lun.capacity_slots()) * page - charged,
                  held = charged - static_cast<int64_t>(committed);
    free = std::min(free, own);
    forked = std::max(forked, held);
  }
  out->lun_free_bytes = static_cast<uint64_t>(std::max<int64_t>(free, 0));
  out->lun_forked_bytes = static_cast<uint64_t>(std::max<int64_t>(forked, 0));
}

void pager_watch_thread(int thread_id) {
  g_fault.watched.thread_id.store(thread_id, std::memory_order_relaxed);
}
const std::atomic<uint64_t>* pager_watched_reads() { return &g_fault.watched.reads; }
const std::atomic<uint64_t>* pager_watched_read_ns() { return &g_fault.watched.read_ns; }
uint64_t pager_take_longest_fault_ns() {
  return g_fault.watched.longest_ns.exchange(0, std::memory_order_relaxed);
}

bool pager_tree_says_once() { return pager_state().account.says_once(); }

void pager_stats(lunar_stats* out) {
  auto& state = pager_state();
  auto& c = counters();
  size_t size = out->struct_size;
  *out = {};
  out->struct_size = size != 0 ? size : sizeof *out;
  out->page_bytes = state.page_size;
  out->dram_budget_bytes = state.dram_bytes;
  uint64_t committed = 0;
  for (const Region& region : state.regions)
    committed += region.committed_pages.load(std::memory_order_relaxed) << state.page_shift;
  out->committed_bytes = committed;
  out->lun_capacity_bytes = state.luns.bytes;
  // nothing is charged before activation
  out->lun_free_bytes = state.luns.bytes > committed ? state.luns.bytes - committed : 0;
  if (pager_active()) {
    out->dram_budget_bytes = static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift;
    out->fixed_bytes = static_cast<uint64_t>(state.account.own_fixed() + state.evictor->low_water())
                       << state.page_shift;
    out->dram_used_bytes = static_cast<uint64_t>(state.account.own_pages()) << state.page_shift;
    if (state.luns.ready.load()) {
      uint64_t used = state.luns.slots[state.luns.own].used_slots() << state.page_shift;
      out->lun_used_bytes = used;
    }
    lun_space_stats(state, committed, out);
  }
  int64_t resident = c.resident.load(std::memory_order_relaxed);
  out->resident_bytes = static_cast<uint64_t>(resident > 0 ? resident : 0) << state.page_shift;
  out->resident_peak_bytes =
      static_cast<uint64_t>(state.resident_peak.load(std::memory_order_relaxed))
      << state.page_shift;
  int64_t evicted = c.evicted.load(std::memory_order_relaxed);
  out->evicted_bytes = static_cast<uint64_t>(evicted > 0 ? evicted : 0) << state.page_shift;
  out->pinned_bytes = static_cast<uint64_t>(state.pinned_pages.load(std::memory_order_relaxed))
                      << state.page_shift;
  out->faults = c.faults;
  out->zero_fills = c.zero_fills;
  out->major_faults = c.major_faults;
  out->second_chances = c.second_chances;
  out->prefetched = c.prefetched;
  out->evictions = c.evictions;
  out->evicted_clean = c.evicted_clean;
  out->evicted_zero = c.evicted_zero;
  out->lun_read_bytes = c.read_bytes;
  out->lun_written_bytes = c.written_bytes;
  out->read_errors = c.read_errors;
  out->write_errors = c.write_errors;
  out->poisoned = c.poisoned;
  out->budget_waits = c.budget_waits;
  out->fork_count = c.forks;
}

}  // namespace lunar
