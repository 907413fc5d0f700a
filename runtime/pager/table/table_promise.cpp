// SPDX-License-Identifier: Apache-2.0
#include "pager/table/table_promise.h"

#include <errno.h>

#include "pager/state/requests.h"
#include "pager/table/tables.h"

namespace lunar {
namespace {

struct Promise {
  sys::SpinLock lock;
  int64_t units = 0;
  int64_t pages = 0;  // of these, in the account
  bool live = false;
};
constinit Promise g_promise;

int64_t units_of(const Region& region, uint64_t chunk, int32_t committed) {
  const auto all = static_cast<int64_t>((region.chunk_size(chunk) + kLeafPages - 1) / kLeafPages);
  if (committed == 0) return 0;
  return region.of_maps() && committed < all ? committed : all;
}

int64_t span_units() { return static_cast<int64_t>(sys::page_bytes() / sizeof(Leaf)); }

// Makes the account count a promise of `units`. pre: the lock, live.
bool apply(PagerState& state, int64_t units, bool must_fit) {
  const int64_t want = pages_for_units(units), more = want - g_promise.pages;
  const int64_t room = kTableRoom + state.pinned_pages.load(std::memory_order_relaxed);
  if (more != 0 && !state.account.promise_tables(more, must_fit && more > 0 ? room : INT64_MIN))
    return false;
  g_promise.pages = want;
  return true;
}

}  // namespace

bool charged_exactly(const PagerState& state, const Region& region) {
  return region.of_maps() || !(state.thp_always || region.huge.load(std::memory_order_relaxed));
}

Committed count_committed(const PagerState& state, Region& region, uint64_t first, uint64_t end,
                          int sign) {
  const bool exactly = charged_exactly(state, region);
  Committed change{0, 0};
  for (uint64_t at = first, next; at < end; at = next) {
    const uint64_t chunk = at / kChunkPages;
    next = chunk_end(at, end);
    const int32_t part = static_cast<int32_t>(next - at) * sign;
    const int32_t before = region.chunk_committed[chunk].fetch_add(part, std::memory_order_relaxed);
    if (exactly)
      change.pages += part;
    else if ((before == 0) != (before + part == 0))
      change.pages += sign * static_cast<int64_t>(region.chunk_size(chunk));
    change.units += units_of(region, chunk, before + part) - units_of(region, chunk, before);
    const int32_t in_span =
        region.table.span_of(at).committed.fetch_add(part, std::memory_order_relaxed);
    if ((in_span == 0) != (in_span + part == 0)) change.units += sign * span_units();
  }
  return change;
}

int64_t pages_for_units(int64_t units) { return (units + span_units() - 1) / span_units(); }

bool promise_change(PagerState& state, int64_t units) {
  sys::Locked<sys::SpinLock> lock(g_promise.lock);
  if (g_promise.live && !apply(state, g_promise.units + units, true)) return false;
  g_promise.units += units;
  return true;
}

int64_t promise_pages() { return g_promise.pages; }

void promise_go_live(PagerState& state, int64_t handed) {
  sys::Locked<sys::SpinLock> lock(g_promise.lock);
  g_promise.live = true;
  g_promise.pages = handed;
  (void)apply(state, g_promise.units, false);
}

// The parent's other threads may have been in the middle of counting.
void promise_enter_child(PagerState& state) {
  g_promise.lock.unlock();
  g_promise.live = false;
  g_promise.pages = 0;
  int64_t units = 0;
  for (const Region& region : state.regions) {
    const uint64_t end = region.table_pages.load();
    if (region.on_touch) continue;
    for (uint64_t at = 0; at < end; at += kChunkPages)
      units += units_of(region, at / kChunkPages, region.chunk_committed[at / kChunkPages].load());
    for (uint64_t at = 0; at < end; at += PageTable::span_pages())
      if (region.table.span_of(at).committed.load() != 0) units += span_units();
  }
  g_promise.units = units + tables_loose_units();
}

int promise_commit(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  const sys::ScopedSignalBlock signals;
  const int64_t units = count_committed(state, region, first, end, 1).units;
  if (promise_change(state, units)) return 0;
  wait_for_sweep(state);  // dead members count until then
  if (promise_change(state, units)) return 0;
  (void)count_committed(state, region, first, end, -1);
  return -ENOMEM;
}

void promise_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  const sys::ScopedSignalBlock signals;
  (void)promise_change(state, count_committed(state, region, first, end, -1).units);
}

}  // namespace lunar
