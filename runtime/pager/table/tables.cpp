// SPDX-License-Identifier: Apache-2.0
#include "pager/table/tables.h"

#include <errno.h>

#include "pager/state/requests.h"
#include "pager/table/leaf_pool.h"

namespace lunar {

static constinit LeafPool g_pool;

void table_note_committed(Region& region, uint64_t end) {
  uint64_t now = region.table_pages.load(std::memory_order_relaxed);
  while (now < end &&
         !region.table_pages.compare_exchange_weak(now, end, std::memory_order_acq_rel)) {}
}

int table_reach(PagerState& state, Region& region, uint64_t first, uint64_t end,
                int64_t keep_free) {
  if (first >= end) return 0;
  table_note_committed(region, end);
  for (uint64_t group = first / kLeafPages; group <= (end - 1) / kLeafPages; ++group) {
    if (region.table.find(group * kLeafPages) != nullptr) continue;
    const int rc = g_pool.add(state, region, group, keep_free);
    if (rc < 0) {
      if (state.is_active()) housekeeping_wake(state, kHousekeepingTables);
      return rc;
    }
  }
  return 0;
}

int table_reach_waiting(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  constexpr uint64_t kMostNs = 1'000'000'000;
  const uint64_t until = sys::now_ns() + kMostNs;
  for (;;) {
    int rc;
    {
      const sys::ScopedSignalBlock signals;
      rc = table_reach(state, region, first, end, kKeepFreePages);
    }
    if (rc == 0) return 0;
    if (!state.is_active() || sys::now_ns() > until) return -ENOMEM;
    evictor_wake(state);
    sys::sleep_ns(200'000);
  }
}

void table_retire(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  const TableScope scope;
  for (uint64_t page = region.table.next_used(first, end); page < end;
       page = region.table.next_used(round_down(page, kLeafPages) + kLeafPages, end))
    g_pool.retire(state, region, page / kLeafPages, false);
}

void table_retire_all(PagerState& state, Region& region) {
  const TableScope scope;
  for (uint64_t page = region.table.next_used(0, region.pages); page < region.pages;
       page = region.table.next_used(round_down(page, kLeafPages) + kLeafPages, region.pages))
    g_pool.retire(state, region, page / kLeafPages, true);
  g_pool.end_region(state, region);
}

bool table_trim(PagerState& state) { return g_pool.trim(state); }
int64_t table_pages() { return g_pool.pages(); }
int64_t tables_loose_units() { return g_pool.loose_units(); }
void tables_go_live(PagerState& state) { g_pool.go_live(state); }
void tables_enter_child(PagerState& state) { g_pool.enter_child(state); }

}  // namespace lunar
