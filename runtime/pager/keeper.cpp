// SPDX-License-Identifier: Apache-2.0
// The housekeeper: a thread that wakes a few times a second for what must not burden faults or evictions: dead members of the
// account, slots held for children that are gone, LUN space ahead of charge-on-touch memory, the live stats file.
#include <errno.h>

#include "base/log.h"
#include "pager/evictor.h"
#include "pager/fork.h"
#include "pager/handler.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "stats/export.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr uint64_t kPeriodNs = 50000000;

void grow_ahead(PagerState& state) {
  bool on_touch = false;
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr && (region->flags & kRegionChargeOnTouch) != 0 && region->table_pages.load() != 0) on_touch = true;
  }
  if (!on_touch || !state.lun_ready.load()) return;
  // Reserving happens in charge(): take a step and give it back, so that charge_fast finds reserved space.
  uint64_t step = (64 * kMiB) >> state.page_shift;
  if (state.luns[state.own_lun].charge(step) == 0) state.luns[state.own_lun].uncharge(step);
}

void release_holds(PagerState& state) {
  for (auto& hold : state.fork_holds) {
    if (hold.epoch == 0 || state.account.child_lives(hold.epoch)) continue;
    state.luns[state.own_lun].uncharge(hold.slots);
    hold = {};
  }
}

}  // namespace

void keeper_run() {
  auto& state = pager_state();
  for (uint64_t round = 0;; ++round) {
    // A fork's prepare holds this lock; what it set (oldest_child) must not be overwritten from an older sweep.
    if (!state.forking.load(std::memory_order_acquire)) {
      uint32_t oldest = 0;
      sys::Locked<sys::Mutex> hold(state.fork_lock);
      state.account.sweep(&oldest);
      state.oldest_child.store(oldest, std::memory_order_release);
      release_holds(state);
    }
    deferred_slots_release();
    grow_ahead(state);
    lunar_stats stats{};
    pager_stats(&stats);
    stats_file_write(stats);
    if (state.account.free_pages() < static_cast<int64_t>(state.evictor->low_water())) state.evictor->kick();
    sys::sleep_ns(kPeriodNs);
  }
}

void pager_stats(lunar_stats* out) {
  auto& state = pager_state();
  auto& c = counters();
  size_t size = out->struct_size;
  *out = {};
  out->struct_size = size != 0 ? size : sizeof *out;
  out->page_bytes = state.page_size;
  out->dram_budget_bytes = state.dram_bytes;
  uint64_t committed = 0;
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr) committed += region->committed_pages.load(std::memory_order_relaxed) << state.page_shift;
  }
  out->committed_bytes = committed;
  out->lun_capacity_bytes = state.lun_bytes;
  if (pager_armed()) {
    out->dram_budget_bytes = static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift;
    out->fixed_bytes = static_cast<uint64_t>(state.account.own_fixed() + state.evictor->low_water()) << state.page_shift;
    out->dram_used_bytes = static_cast<uint64_t>(state.account.own_pages()) << state.page_shift;
    if (state.lun_ready.load()) {
      uint64_t used = state.luns[state.own_lun].used_slots() << state.page_shift;
      out->lun_used_bytes = used;
    }
  }
  int64_t resident = c.resident.load(std::memory_order_relaxed);
  out->resident_bytes = static_cast<uint64_t>(resident > 0 ? resident : 0) << state.page_shift;
  out->resident_peak_bytes = static_cast<uint64_t>(state.resident_peak.load(std::memory_order_relaxed)) << state.page_shift;
  int64_t evicted = c.evicted.load(std::memory_order_relaxed);
  out->evicted_bytes = static_cast<uint64_t>(evicted > 0 ? evicted : 0) << state.page_shift;
  out->pinned_bytes = static_cast<uint64_t>(state.pinned_pages.load(std::memory_order_relaxed)) << state.page_shift;
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
